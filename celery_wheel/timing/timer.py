"""A timer as the wheel returns it: an id, an instant and the caller's payload.

Inside the wheel a timer is no object but an entry of a few dicts; see :mod:`celery_wheel.timing.wheel`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple


class Timer(NamedTuple):
    """One timer, a value: it does not change when the wheel does.

    Attributes:
        due_at_ms: the instant exactly as it was scheduled, not rounded to a tick.
        timer_id: unique within its wheel.
        payload: the object passed to ``schedule``, unchanged.
    """

    due_at_ms: int
    timer_id: Hashable
    payload: Any
