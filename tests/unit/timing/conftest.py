"""A timer on a clock that reports waits, and threads that switch often."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from celery_wheel.timing import SystemTimer
from tests.unit.timing.recorders import START, WatchedClock


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock(START)


@pytest.fixture
def timer(clock: WatchedClock) -> SystemTimer:
    return SystemTimer(clock, tick_ms=1, wheel_size=20)


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads switch every few instructions, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
