"""A timer in the wheel: an id, an instant and the caller's payload.

Inside the wheel a timer is a *record*, a plain tuple; only returned timers are :class:`Timer` objects. A plain tuple is
made several times faster than an object with attributes, it sorts into the order of expiration, and the garbage
collector does not track it where its payload holds no references (None, a number, a string, bytes), so that millions
of pending timers do not slow down the rest of the process.

A record has no reference to its bucket, so there are no reference cycles: a wheel that is dropped frees its memory at
once. Per pending timer, besides the caller's own id, instant and payload (CPython 3.11, one million timers)::

     72  the record, a tuple of four; 16 more while the collector tracks it
     32  its order, an integer
     42  its entry in the wheel's index, a dict
     30  to 60: its entry in its bucket, a dict that is about half full
    ---
    180  to 200 bytes allocated, 210 to 215 of resident memory
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

Record: TypeAlias = tuple[int, int, Hashable, Any]
"""A timer in the wheel: (due_at_ms, order, timer_id, payload). Orders differ, so sorting never compares ids."""


class Timer(NamedTuple):
    """One timer, a value: it does not change when the wheel does. Timers sort into the order in which they expire.

    Attributes:
        due_at_ms: the instant exactly as it was scheduled, not rounded to a tick.
        order: place in the order of scheduling, increasing within its wheel. A moved timer gets a new place, a cascaded
            timer keeps its own.
        timer_id: unique within its wheel.
        payload: the object passed to ``schedule``, unchanged.
    """

    due_at_ms: int
    order: int
    timer_id: Hashable
    payload: Any
