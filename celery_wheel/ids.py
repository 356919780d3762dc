"""UUIDv7: ids that sort by when they were made, so that indexes on them grow at their end. Standard library only.

::

    48 bits              4   12 bits         2   30 bits        32 bits
    Unix milliseconds  | 7 | counter, high | 2 | counter, low | random

Within a process ids increase strictly, also within a millisecond and when the wall clock steps back: the counter
starts anywhere in the lower half of its range each millisecond and grows by one an id. A forked child starts a
counter of its own.

Source: RFC 9562, section 6.2, method 1. Python has ``uuid.uuid7`` from 3.14 on.
"""

from __future__ import annotations

import os
import threading
import time

_COUNTER_BITS = 42
_lock = threading.Lock()
_last_ms = 0
_counter = 0


def uuid7() -> str:
    """A new UUIDv7 in its 36-character form."""
    global _last_ms, _counter
    now_ms = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    with _lock:
        _counter += 1
        if now_ms > _last_ms or _counter >> _COUNTER_BITS:
            _last_ms = max(now_ms, _last_ms + 1)
            _counter = random >> 39  # 41 bits: the upper half of the counter is room to grow
        at_ms, counter = _last_ms, _counter
    value = at_ms << 80 | 7 << 76 | (counter >> 30) << 64 | 2 << 62 | (counter & 0x3FFFFFFF) << 32 | random & 0xFFFFFFFF
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _start_over() -> None:
    """In a forked child: parent and child must not count on from the same number, nor inherit a held lock."""
    global _lock, _last_ms, _counter
    _lock = threading.Lock()
    _counter = int.from_bytes(os.urandom(5))


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_start_over)
