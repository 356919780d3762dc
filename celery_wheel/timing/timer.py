"""What waits in the wheel: an id, an instant, and whatever the caller hung on it.

Inside the wheel a timer is a *record*, a plain tuple, and only what is handed out is made a :class:`Timer`. A plain
tuple is made several times faster than any object with attributes, it sorts by itself into the order of leaving, and
the garbage collector stops looking at it when its payload holds no references (None, a number, a string, bytes), so
that millions of waiting timers do not slow down the rest of the process.

A record does not know its bucket. So there are no cycles of references: a wheel that is dropped frees its memory at
once. Per waiting timer, besides the caller's own id, instant and payload (CPython 3.11, one million timers)::

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
"""(due_at_ms, order, timer_id, payload): what the wheel keeps. Orders differ, so sorting never reaches the id."""


class Timer(NamedTuple):
    """One timer, a value: it does not change when the wheel does. Timers sort into the order in which they leave.

    Attributes:
        due_at_ms: the instant exactly as it was asked for, not rounded to a tick.
        order: the place in the order of scheduling, increasing within its wheel. Moving takes a new one, cascading
            keeps it.
        timer_id: unique within its wheel.
        payload: the object given to ``schedule``, untouched.
    """

    due_at_ms: int
    order: int
    timer_id: Hashable
    payload: Any
