"""The wheel against ``heapq`` and kombu's ``Timer``: one million timers, two lives.

::

    add                 each due at a random instant of one hour
    cancel              two of three, in random order: time-outs that were not needed
    expire              one hour in 3,600 steps of a second; the other timers expire

    bucket to bucket    a second life: the same timers, none cancelled, and time goes to the next bucket each time, as
                        it does for a reaper

Each contestant has a process of its own, so that its memory can be measured and the order means nothing. Each does
the same: it refuses no timer, and returns id and payload in order of due time. A heap cancels lazily: a cancelled entry
stays where it is, and is removed when it comes to the top.
"""

from __future__ import annotations

import gc
import heapq
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import kombu.asynchronous.timer
import psutil

from celery_wheel.operations.figure import Figure
from celery_wheel.timing import TimingWheel

SPAN_MS = 3_600_000
STEP_MS = 1_000
SEED = 7


class Contestant(Protocol):
    def add(self, dues: list[int]) -> None: ...

    def cancel(self, timer_ids: list[int]) -> None: ...

    def expire(self, now_ms: int) -> int:
        """Remove the due timers; returns their number."""

    def next_ms(self) -> int | None:
        """Return the next instant at which there is work; None without timers."""


class Wheel:
    def __init__(self) -> None:
        self._wheel = TimingWheel(tick_ms=1, wheel_size=512)

    def add(self, dues: list[int]) -> None:
        schedule = self._wheel.schedule
        for timer_id, due_ms in enumerate(dues):
            schedule(timer_id, due_ms)

    def cancel(self, timer_ids: list[int]) -> None:
        cancel = self._wheel.cancel
        for timer_id in timer_ids:
            cancel(timer_id)

    def expire(self, now_ms: int) -> int:
        return len(self._wheel.advance(now_ms))

    def next_ms(self) -> int | None:
        return self._wheel.next_expiration_ms()


class Heap:
    """The quickest way with a heap: plain tuples in it, and a dict of the timers that are not cancelled."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._pending: dict[int, Any] = {}

    def add(self, dues: list[int]) -> None:
        heap, pending, push = self._heap, self._pending, heapq.heappush
        for timer_id, due_ms in enumerate(dues):
            pending[timer_id] = None
            push(heap, (due_ms, timer_id))

    def cancel(self, timer_ids: list[int]) -> None:
        take = self._pending.pop
        for timer_id in timer_ids:
            take(timer_id)

    def expire(self, now_ms: int) -> int:
        heap, pending, pop, left = self._heap, self._pending, heapq.heappop, []
        while heap and heap[0][0] <= now_ms:
            due_ms, timer_id = pop(heap)
            if timer_id in pending:
                left.append((due_ms, timer_id, pending.pop(timer_id)))
        return len(left)

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None


class KombuTimer:
    """kombu's timer as a worker uses it for eta tasks: ``call_at``, ``cancel``, iterate. Its clock is held back."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timer: Any = kombu.asynchronous.timer.Timer()  # type: ignore[no-untyped-call]
        self._entries: dict[int, Any] = {}

    def add(self, dues: list[int]) -> None:
        entries, call_at = self._entries, self._timer.call_at
        for timer_id, due_ms in enumerate(dues):
            entries[timer_id] = call_at(due_ms / 1000, self._left, (timer_id,))

    def cancel(self, timer_ids: list[int]) -> None:
        entries, cancel = self._entries, self._timer.cancel
        for timer_id in timer_ids:
            cancel(entries.pop(timer_id))

    def expire(self, now_ms: int) -> int:
        before, self._now_s = len(self._entries), now_ms / 1000
        for _, entry in self._timer.__iter__(nowfun=lambda: self._now_s):
            if entry is None:
                break
            entry()
        return before - len(self._entries)

    def next_ms(self) -> int | None:
        heap = self._timer._queue  # its property ``queue`` sorts a copy
        return round(heap[0].eta * 1000) if heap else None

    def _left(self, timer_id: int) -> None:
        del self._entries[timer_id]


CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "TimingWheel": Wheel,
    "heapq": Heap,
    "kombu Timer": KombuTimer,
}


UNITS = {"memory": "bytes/timer", "bucket to bucket": "µs/timer"}
TARGETS = {"memory": 150.0, "bucket to bucket": 6.0}


def run(count: int) -> Iterator[Figure]:
    """Run every contestant in a process of its own, one after the other."""
    found: dict[str, dict[str, float]] = {}
    for name in CONTESTANTS:
        command = [sys.executable, "-m", "tests.benchmarks.wheel", name, str(count)]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours = found.pop("TimingWheel")
    for what, value in ours.items():
        unit, less_is_better = UNITS.get(what, "ops/s"), what in UNITS
        for name, theirs in found.items():
            yield Figure("wheel", what, value, unit, name, theirs[what], TARGETS.get(what), less_is_better)


def measure(contestant: str, count: int) -> dict[str, float]:
    rng = random.Random(SEED)
    dues = [rng.randrange(1, SPAN_MS) for _ in range(count)]
    cancelled = rng.sample(range(count), count * 2 // 3)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    timers = CONTESTANTS[contestant]()
    began = time.process_time()
    found = {"add": count / _timed(lambda: timers.add(dues))}
    gc.collect()
    found["memory"] = (process.memory_info().rss - before) / count
    found["cancel"] = len(cancelled) / _timed(lambda: timers.cancel(cancelled))
    left = 0

    def expire() -> None:
        nonlocal left
        for now_ms in range(STEP_MS, SPAN_MS + STEP_MS, STEP_MS):
            left += timers.expire(now_ms)

    found["expire"] = (count - len(cancelled)) / _timed(expire)
    found["whole life"] = count / (time.process_time() - began)
    assert left == count - len(cancelled), f"{left} left"
    found["bucket to bucket"] = (
        _timed(lambda: _live_from_bucket_to_bucket(CONTESTANTS[contestant](), dues)) / count * 1e6
    )
    return found


def _live_from_bucket_to_bucket(timers: Contestant, dues: list[int]) -> None:
    timers.add(dues)
    left = 0
    while (next_ms := timers.next_ms()) is not None:
        left += timers.expire(next_ms)
    assert left == len(dues), f"{left} left"


def _timed(work: Callable[[], None]) -> float:
    """Return the CPU seconds of this process, since others share the machine."""
    before = time.process_time()
    work()
    return time.process_time() - before


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
