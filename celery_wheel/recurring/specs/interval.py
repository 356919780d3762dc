"""Intervals of milliseconds, counted from an anchor. A day is 24 hours, whatever the wall clock does."""

from __future__ import annotations

from dataclasses import dataclass

from celery_wheel.recurring.checks import check_duration, check_whole
from celery_wheel.recurring.specs.spec import Spec
from celery_wheel.values.text import END_OF_TIME_MS


@dataclass(frozen=True, slots=True)
class Interval(Spec):
    """The instants ``anchor_ms + n * every_ms``, for all whole numbers n: also those before the anchor."""

    every_ms: int
    anchor_ms: int = 0

    def __post_init__(self) -> None:
        check_duration("every_ms", self.every_ms, 1, END_OF_TIME_MS)
        check_whole("anchor_ms", self.anchor_ms, -END_OF_TIME_MS, END_OF_TIME_MS)

    def next_after(self, at_ms: int) -> int:
        return at_ms + self.every_ms - (at_ms - self.anchor_ms) % self.every_ms
