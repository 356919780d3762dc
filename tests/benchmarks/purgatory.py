"""The purgatory: how fast operations complete, by their event or by their time-out, whichever comes first.

::

    watch        each under two keys: one of its own, and one of 100 that it shares with others; due in 30 s
    check        the key of each is checked, in random order: all complete by their event
    4 threads    the same, each thread checking every key, so that all race for all
    force        completed from outside; the entries are left to the purge
    expire       nothing happens to any; the clock is moved on, and the reaper's thread completes them all

The bench runs in a process of its own, to measure its memory. The rates are by wall clock and not by CPU time,
because threads that wait for one another are the cost in question. Every operation is counted as its hook runs, and a
round ends with an error unless each has run once and nothing is left in the lists but what the bound allows.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.timing import DelayedOperation, ManualClock, Purgatory, SystemTimer

SEED = 7
SHARED_KEYS = 100
THREADS = 4
DELAY_MS = 30_000
BOUND = 1_000
#: The target: completions a second of one core, however the operations complete.
TARGET = 5_000
LONGEST_S = 600


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
    """A purgatory with a number of operations in it."""

    def __init__(self, count: int, *, reaper: bool = False) -> None:
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

    def force(self) -> None:
        for number in self.order:
            self.operations[number].force_complete()

    def expire(self) -> None:
        over = threading.Event()
        # the last timer of its millisecond, so that it runs after all the others
        self.timer.add("over", self.clock.now_ms() + DELAY_MS, over.set)
        self.clock.advance(DELAY_MS)
        if not over.wait(LONGEST_S):
            raise TimeoutError(f"{self.purgatory.delayed:,} operations have not expired after {LONGEST_S} s")

    def close(self) -> None:
        """Shut the purgatory down, and check its counts."""
        self.purgatory.shutdown()
        wrong = sum(operation.ran != 1 for operation in self.operations)
        left = self.purgatory.watched, self.purgatory.delayed, self.timer.size()
        if wrong or left[0] > BOUND or any(left[1:]):
            raise AssertionError(f"{wrong:,} operations did not complete once; watched, delayed, timers are {left}")


COMPLETE: dict[str, Callable[[Round], None]] = {
    "complete by a check": Round.check,
    f"complete by {THREADS} racing threads": Round.check_by_threads,
    "complete by force": Round.force,
    "expire by the reaper": Round.expire,
}


def run(count: int) -> Iterator[Figure]:
    """All rounds, in one process."""
    with progress("purgatory", 1):
        command = [sys.executable, "-m", "tests.benchmarks.purgatory", str(count)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    yield Figure("purgatory", "watch", found["watch"], "ops/s")
    for name in COMPLETE:
        yield Figure("purgatory", name, found[name], "ops/s", target=TARGET)
    yield Figure("purgatory", "memory of what waits", found["memory"], "bytes/op")


def measure(count: int) -> dict[str, float]:
    found: dict[str, float] = {}
    process = psutil.Process()
    for name, complete in COMPLETE.items():
        gc.collect()
        before = process.memory_info().rss
        each = Round(count, reaper=complete is Round.expire)
        watching = count / _timed(Round.watch, each)
        if "watch" not in found:  # the first round: later ones reuse the memory of the process
            found |= {"watch": watching, "memory": (process.memory_info().rss - before) / count}
        found[name] = count / _timed(complete, each)
        each.close()
    return found


def _timed(work: Callable[[Round], None], each: Round) -> float:
    began = time.perf_counter()
    work(each)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
