"""Ids of messages: UUIDv7, the id of a message whose own one another task has, and dispatch ids.

A UUIDv7 sorts by the time of its making, so indexes grow at their end. Within a process ids increase strictly, also
when the wall clock steps back: each millisecond the counter starts at a random number in the lower half of its range.
Source: RFC 9562, section 6.2, method 1. Python has ``uuid.uuid7`` from 3.14 on.

A dispatch id tells a worker when its message was dispatched, without a header. On Redis it is the delivery tag, which
kombu itself makes at random; elsewhere the property ``message_id``, which Celery does not set.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID, uuid5

_COUNTER_BITS = 42
_lock = threading.Lock()
_last_ms = 0
_counter = 0


def uuid7() -> str:
    """Return a new UUIDv7 in its 36-character form."""
    global _last_ms, _counter
    now_ms = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    with _lock:
        _counter += 1
        if now_ms > _last_ms or _counter >> _COUNTER_BITS:
            _last_ms = max(now_ms, _last_ms + 1)
            _counter = random >> 39  # 41 bits: the upper half of the counter is room for more ids
        at_ms, counter = _last_ms, _counter
    value = at_ms << 80 | 7 << 76 | (counter >> 30) << 64 | 2 << 62 | (counter & 0x3FFFFFFF) << 32 | random & 0xFFFFFFFF
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_beside(envelope_id: str, task_id: str) -> str:
    """Return another id for a message whose own one another task has: the same whenever the message comes again."""
    return str(uuid5(UUID(envelope_id), task_id))


def is_derived(envelope_id: str) -> bool:
    """Whether an id is a UUIDv5, as a holder derives it from what it makes a message of."""
    return envelope_id[14:15] == "5"


def _reset_in_child() -> None:
    """Start anew after a fork: parent and child must not continue one counter, nor share a held lock."""
    global _lock, _last_ms, _counter
    _lock = threading.Lock()
    _counter = int.from_bytes(os.urandom(5))


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_reset_in_child)


def dispatch_ids(now_ms: int) -> Iterator[bytes]:
    """Generate ids for the messages of one chunk: its time, a random part, then a count from a random number.

    Ids must be unique among all messages that workers hold: kombu keeps these messages in one hash by delivery tag. A
    generator serves one chunk, so that two processes share none after a fork.
    """
    time, digits = f"{now_ms:012x}", os.urandom(3).hex()
    beginning = f"{time[:8]}-{time[8:]}-7{digits[:3]}-a{digits[3:]}-".encode()
    for number in count(int.from_bytes(os.urandom(5))):
        yield b"%b%012x" % (beginning, number)


def dispatched_ms(dispatch_id: Any) -> int | None:
    """Return the time of dispatch; None for a value that is no dispatch id, like a delivery tag of kombu's own."""
    if type(dispatch_id) is not str or len(dispatch_id) != 36 or dispatch_id[14] != "7":
        return None
    try:
        return int(dispatch_id[:8] + dispatch_id[9:13], 16)
    except ValueError:
        return None
