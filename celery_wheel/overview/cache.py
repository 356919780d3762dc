"""The last reading of a process: fifty viewers cost what one costs.

::

    get ── fresh ──────────────────────────────────────────────────► the last reading
      └─── older than FRESH_S ─┬─ no other thread reads: read ─────► the new reading
                               └─ another reads ─┬─ last is older than STALE_S, or there is none: wait for it
                                                 └─ otherwise ─────► the last reading, at once

The first reading of a process has no seconds, so that it is fast: only with its hours is it known what they cost.

An error is a reading, too: it is raised to all who ask in the same second, so that a store that does not answer is not
asked by each of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from celery_wheel.errors import StoreError
from celery_wheel.overview.reading import DueLoad, Overview, read_overview
from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import ScheduleCounts

FRESH_S = 1.0

#: A reading of this age is not shown while a newer one is made, but waited for.
STALE_S = 5.0

#: Rows a second that are read for the seconds of the next hour, on average.
SECONDS_ROWS = 20_000

#: The counts of schedules take at most this part of the time: 0.4 s for a million schedules, every 40 seconds.
COUNTING_SHARE = 0.01

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedValue(Generic[T]):
    at_s: float
    value: T | None
    error: StoreError | None = None

    def result(self) -> T:
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.value is not None  # noqa: S101 - for the type checker
        return self.value


class Shared(Generic[T]):
    """A value that one thread reads at a time, and all threads use; ``read`` gets the value before."""

    def __init__(self, read: Callable[[T | None], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._last: SharedValue[T] | None = None

    def get(self) -> T:
        last = self._last
        if last is not None and self._age_s(last) < FRESH_S:
            return last.result()
        if not self._lock.acquire(blocking=last is None or self._age_s(last) >= STALE_S):
            assert last is not None  # noqa: S101 - for the type checker
            return last.result()
        try:
            last = self._last
            if last is None or self._age_s(last) >= FRESH_S:  # no other thread has read it meanwhile
                self._last = last = self._new(last)
        finally:
            self._lock.release()
        return last.result()

    def expire(self) -> None:
        """Forget the last reading: what this process has changed is shown at once."""
        self._last = None

    def _new(self, last: SharedValue[T] | None) -> SharedValue[T]:
        try:
            value = self._read(None if last is None else last.value)
        except StoreError as error:
            return SharedValue(self._clock(), None, error)
        return SharedValue(self._clock(), value)

    def _age_s(self, reading: SharedValue[T]) -> float:
        return self._clock() - reading.at_s


class OverviewCache(Shared[Overview]):
    """The overview of one open store, in one process."""

    def __init__(self, store: FullStore, now_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic):
        super().__init__(self._overview, clock)
        self._store = store
        self._now_ms = now_ms

    def _overview(self, last: Overview | None) -> Overview:
        now_ms = self._now_ms()
        with_seconds = last is not None and _are_to_count(last.due, now_ms)
        return read_overview(self._store, now_ms, with_seconds=with_seconds, last=last)


class PacedCounts(Shared[ScheduleCounts]):
    """The counts of schedules: all rows are counted, so the longer that takes, the more rarely it is done."""

    def __init__(self, count: Callable[[], ScheduleCounts], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda _: count(), clock)
        self._took_s = 0.0

    def _new(self, last: SharedValue[ScheduleCounts] | None) -> SharedValue[ScheduleCounts]:
        began_s = self._clock()
        found = super()._new(last)
        self._took_s = self._clock() - began_s
        return found

    def _age_s(self, reading: SharedValue[ScheduleCounts]) -> float:
        return super()._age_s(reading) / max(1.0, self._took_s / COUNTING_SHARE)


def _are_to_count(last: DueLoad, now_ms: int) -> bool:
    """Whether to count the seconds of the next hour anew: the more rows the hour has, the more rarely."""
    hour_ms = now_ms - now_ms % HOUR_MS
    rows = sum(last.hours.get(begin_ms, 0) for begin_ms in (hour_ms, hour_ms + HOUR_MS))
    return not 0 <= now_ms - last.seconds_ms < rows * 1_000 // SECONDS_ROWS
