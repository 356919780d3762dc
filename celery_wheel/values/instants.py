"""Instants: Unix milliseconds, which the store has, and datetimes. A file of its own: every room converts them.

Each function is exact, where a float would not be.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_US = timedelta(microseconds=1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def utc(at_ms: int) -> datetime:
    """Return the instant as a datetime in UTC. Raises OverflowError where no calendar has it."""
    return EPOCH + timedelta(milliseconds=at_ms)


def utc_of_us(at_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=at_us)


def ms_of(moment: datetime) -> int:
    """Return Unix milliseconds, rounded down."""
    return (moment - EPOCH) // _MS


def ceil_ms(moment: datetime) -> int:
    """Return Unix milliseconds, rounded up: a task is never early, not even by a microsecond."""
    return -((EPOCH - moment) // _MS)


def us_of(moment: datetime) -> int:
    return (moment - EPOCH) // _US
