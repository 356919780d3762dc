"""The scheduler as a process of its own, so that its memory and its CPU time are its own. Run by ``spine``.

::

    python -m tests.benchmarks.scheduler '{"broker": …, "store": …, "ahead_ms": 0}'
        {"do": "status"}                                {"accepted": …, "dispatched": …, "rss": …, "cpu_s": …}
        {"do": "move", "ms": 3600000}                   {…}      the clock goes on from there at the pace of time
        {"do": "until", "count": "accepted", "is": 9}   {…} {…}  twice a second, and when it is reached
        end of file                                     stop

What runs is what ``celery beat -S wheel`` runs: the app's settings, ``Runner`` with its threads, all that beat
imports. Only the clock is another one, and the watch that would call it wrong is told not to.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery_wheel.beat
from celery_wheel import Celery
from celery_wheel.broker import broker_for
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.runner import Runner
from celery_wheel.service import limits_of, open_store_of
from celery_wheel.timing import SystemClock

assert celery_wheel.beat  # imported for its weight

#: Seconds that a dispatched row stays: the floor that the settings allow, so that retention has something to do.
RETENTION_S = 3_600
NEVER_MS = 10**15

#: Between two looks at a count, and between two reports of it.
LOOK_S = 0.01
SAY_S = 0.5


class MovedClock(SystemClock):
    """This machine's clock, ahead or behind by what it was moved; both kinds of time move together."""

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


def make(options: dict[str, Any], clock: MovedClock) -> Runner:
    """As ``WheelService.start`` does it."""
    app = Celery("bench", broker=options["broker"], set_as_current=False)
    app.conf.update(wheel_store=options["store"], wheel_history_retention=RETENTION_S, **options.get("settings", {}))
    conf = Conf(app)
    conf.check()
    store = open_store_of(conf)
    limits = dataclasses.replace(limits_of(conf), max_clock_skew_ms=NEVER_MS, max_clock_step_ms=NEVER_MS)
    engine = Engine(0, f"bench/{os.getpid()}", store, broker_for(app, conf, store.uuid), clock, limits)
    return Runner(engine, lease_ms=conf.lease_ms, poll_ms=conf.poll_interval_ms)


def status(runner: Runner, clock: MovedClock) -> dict[str, Any]:
    if runner.failure is not None:
        raise runner.failure
    kernel = Path("/proc/self/status").read_text()
    rss, peak = (int(re.search(rf"{name}:\s+(\d+) kB", kernel)[1]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return {
        **dataclasses.asdict(runner.engine.stats),
        "held": int(runner.engine.held),
        "now_ms": clock.now_ms(),
        "cpu_s": time.process_time(),
        "core_wait_s": core_wait_s(),
        "rss": rss,
        "rss_peak": peak,
    }


def core_wait_s() -> dict[str, float]:
    """How long each thread has stood ready to run while others had the cores."""
    waits = {}
    for thread in threading.enumerate():
        said = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
        waits[thread.name.rpartition("-")[2]] = int(said.split()[1]) / 1e9
    return waits


def counts(runner: Runner) -> Callable[[str], int]:
    """To be asked often: looking must not take the interpreter from those who are looked at."""
    engine = runner.engine
    return lambda name: getattr(engine, name) if name == "held" else getattr(engine.stats, name)


def main(options: dict[str, Any]) -> None:
    clock = MovedClock(options["ahead_ms"])
    runner = make(options, clock)
    runner.start()
    count = counts(runner)

    def say() -> None:
        print(json.dumps(status(runner, clock)), flush=True)

    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "move":
            clock.ahead_ms += command["ms"]
            runner.engine.wake.set()
        elif command["do"] == "until":
            name, goal, said_at = command["count"], command["is"], time.monotonic()
            while count(name) < goal:
                time.sleep(LOOK_S)
                if time.monotonic() - said_at > SAY_S:
                    say()
                    said_at = time.monotonic()
        say()
    runner.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
