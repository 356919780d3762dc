"""Dispatch ids: the UUIDv7s of the messages of a chunk, from which a worker reads when they were dispatched.

::

    Redis                  the delivery tag, which kombu itself makes at random
    RabbitMQ and others    the property ``message_id``, which Celery does not set

So the time of dispatch needs no header, and a worker without the wheel ignores it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Any


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
