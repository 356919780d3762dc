"""``celery_wheel.timing`` within a process: the wheel against ``heapq`` and kombu's ``Timer``, and the purgatory.

Each contestant has a process of its own, so that its memory can be measured and the order means nothing::

    python -m tests.benchmarks.timing heapq 1000000          {"add": 3159275.0, "memory": 138.0, …}
"""

import gc
import heapq
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu.asynchronous.timer
import psutil

from celery_wheel.timing import DelayedOperation, ManualClock, Purgatory, SystemTimer, TimingWheel
from tests.benchmarks.child import measured
from tests.benchmarks.figure import Figure

SPAN_MS, STEP_MS, SEED = 3_600_000, 1_000, 7
UNITS = {"memory": "bytes/timer", "bucket to bucket": "µs/timer"}
TARGETS = {"memory": 150.0, "bucket to bucket": 6.0}


def wheel(_folder: Path, rows: int) -> Iterator[Figure]:
    """The wheel against ``heapq`` and kombu's ``Timer``: one million timers, two lives.

    ::

        add                 each due at a random instant of one hour
        cancel              two of three, in random order: time-outs that were not needed
        expire              one hour in 3,600 steps of a second; the other timers expire

        bucket to bucket    a second life: the same timers, none cancelled, and time goes to the next bucket each time,
                            as it does for a reaper

    Each does the same: it refuses no timer, and returns id and payload in order of due time. A heap cancels lazily: a
    cancelled entry stays where it is, and is removed when it comes to the top.
    """
    found = {name: measured("timing", name, rows // 2) for name in CONTESTANTS}
    ours = found.pop("TimingWheel")
    for what, value in ours.items():
        unit, less_is_better = UNITS.get(what, "ops/s"), what in UNITS
        for name, theirs in found.items():
            yield Figure("wheel", what, value, unit, name, theirs[what], TARGETS.get(what), less_is_better)


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
            entries[timer_id] = call_at(due_ms / 1000, self._entries.__delitem__, (timer_id,))

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


CONTESTANTS: dict[str, type[Wheel | Heap | KombuTimer]] = {
    "TimingWheel": Wheel,
    "heapq": Heap,
    "kombu Timer": KombuTimer,
}


def lives(contestant: str, count: int) -> dict[str, float]:
    rng = random.Random(SEED)
    dues = [rng.randrange(1, SPAN_MS) for _ in range(count)]
    cancelled = rng.sample(range(count), count * 2 // 3)
    before, timers = _rss(), CONTESTANTS[contestant]()
    began = time.process_time()
    found = {"add": count / _timed(lambda: timers.add(dues))}
    found["memory"] = (_rss() - before) / count
    found["cancel"] = len(cancelled) / _timed(lambda: timers.cancel(cancelled))
    left = 0

    def expire() -> None:
        nonlocal left
        for now_ms in range(STEP_MS, SPAN_MS + STEP_MS, STEP_MS):
            left += timers.expire(now_ms)

    found["expire"] = (count - len(cancelled)) / _timed(expire)
    found["whole life"] = count / (time.process_time() - began)
    assert left == count - len(cancelled), f"{left} left"

    def live_from_bucket_to_bucket() -> None:
        timers, left = CONTESTANTS[contestant](), 0
        timers.add(dues)
        while (next_ms := timers.next_ms()) is not None:
            left += timers.expire(next_ms)
        assert left == len(dues), f"{left} left"

    return {**found, "bucket to bucket": _timed(live_from_bucket_to_bucket) / count * 1e6}


def _rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _timed(work: Callable[[], None]) -> float:
    """Return the CPU seconds of this process, since others share the machine."""
    before = time.process_time()
    work()
    return time.process_time() - before


SHARED_KEYS, THREADS, DELAY_MS, BOUND, LONGEST_S = 100, 4, 30_000, 1_000, 600


def purgatory(_folder: Path, rows: int) -> Iterator[Figure]:
    """The purgatory: how fast operations complete, by their event or by their time-out, whichever comes first.

    ::

        watch        each under two keys: one of its own, and one of 100 that it shares with others; due in 30 s
        check        the key of each is checked, in random order: all complete by their event
        4 threads    the same, each thread checking every key, so that all race for all
        expire       nothing happens to any; the clock is moved on, and the reaper's thread completes them all

    The rates are by wall clock and not by CPU time, because threads that wait for one another are the cost in question.
    Every operation is counted as its hook runs, and a round ends with an error unless each has run once and nothing is
    left in the lists but what the bound allows.
    """
    found = measured("timing", "purgatory", rows // 10)
    yield Figure("purgatory", "watch", found["watch"], "ops/s")
    for name in COMPLETE:
        yield Figure("purgatory", name, found[name], "ops/s", target=5_000)
    yield Figure("purgatory", "memory of what waits", found["memory"], "bytes/op")


class Waiting(DelayedOperation):
    """The smallest possible operation, so that the bench measures the purgatory."""

    def __init__(self) -> None:
        super().__init__(DELAY_MS)
        self.ready = False
        self.ran = 0

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> None:
        self.ran += 1


class Round:
    def __init__(self, count: int, *, reaper: bool) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer(self.clock, wheel_size=512)
        self.purgatory = Purgatory("bench", self.timer, purge_interval=BOUND, reaper=reaper)
        self.operations = [Waiting() for _ in range(count)]
        self.order = random.Random(SEED).sample(range(count), count)

    def watch(self) -> None:
        watch = self.purgatory.try_complete_else_watch
        for number, operation in enumerate(self.operations):
            watch(operation, (number, f"shared:{number % SHARED_KEYS}"))

    def check(self) -> None:
        operations, check = self.operations, self.purgatory.check_and_complete
        for number in self.order:
            operations[number].ready = True
            check(number)

    def check_by_threads(self) -> None:
        threads = [threading.Thread(target=self.check, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONGEST_S)

    def expire(self) -> None:
        over = threading.Event()
        # the last timer of its millisecond, so that it runs after all the others
        self.timer.add("over", self.clock.now_ms() + DELAY_MS, over.set)
        self.clock.advance(DELAY_MS)
        if not over.wait(LONGEST_S):
            raise TimeoutError(f"{self.purgatory.delayed:,} operations have not expired after {LONGEST_S} s")

    def close(self) -> None:
        self.purgatory.shutdown()
        wrong = sum(operation.ran != 1 for operation in self.operations)
        left = self.purgatory.watched, self.purgatory.delayed, self.timer.size()
        if wrong or left[0] > BOUND or any(left[1:]):
            raise AssertionError(f"{wrong:,} operations did not complete once; watched, delayed, timers are {left}")


COMPLETE: dict[str, Callable[[Round], None]] = {
    "complete by a check": Round.check,
    f"complete by {THREADS} racing threads": Round.check_by_threads,
    "expire by the reaper": Round.expire,
}


def rounds(count: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, complete in COMPLETE.items():
        before, each = _rss(), Round(count, reaper=complete is Round.expire)
        began = time.perf_counter()
        each.watch()
        watched = time.perf_counter()
        if not found:  # the first round: later ones reuse the memory of the process
            found = {"watch": count / (watched - began)}
            found["memory"] = (psutil.Process().memory_info().rss - before) / count
            watched = time.perf_counter()
        complete(each)
        found[name] = count / (time.perf_counter() - watched)
        each.close()
    return found


if __name__ == "__main__":
    what, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps(rounds(count) if what == "purgatory" else lives(what, count)))
