"""The scheduler as a process of its own, so that its memory and its CPU time are its own. Run by ``spine``.

::

    python -m tests.benchmarks.scheduler '{"broker": …, "store": …, "ahead_ms": 0}'      "metrics": an address
        {"do": "status"}                                {"accepted": …, "dispatched": …, "rss": …, "cpu_s": …}
        {"do": "move", "ms": 3600000}                   {…}      the clock goes on from there at the pace of time
        {"do": "until", "count": "accepted", "is": 9}   {…} {…}  twice a second, and when it is reached
        end of file                                     stop

The process runs the parts that ``celery beat -S wheel`` runs: the app's settings, ``Runner`` with its threads, all that
beat imports. Only the clock differs, and no difference of clocks takes the shard.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import celery_wheel.beat
from celery_wheel.conf import Conf
from celery_wheel.engine.pool import Wait
from celery_wheel.engine.runner import Runner
from celery_wheel.operations import bench
from celery_wheel.scheduler.monitoring import Monitoring
from celery_wheel.scheduler.process import tune_memory
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app

assert celery_wheel.beat  # imported for its memory

#: The shortest retention that the settings allow, in seconds, so that the bench has history to forget.
RETENTION_S = 3_600

#: Seconds between two reads of a count, and between two reports.
LOOK_S = 0.01
SAY_S = 0.5


@contextmanager
def scheduler(options: dict[str, Any], clock: MovedClock) -> Iterator[tuple[Runner, CoreWaits]]:
    """Make the engine and its runner as ``WheelService.start`` does."""
    settings = {"wheel_history_retention": RETENTION_S, "wheel_metrics": options.get("metrics")}
    app = make_app(options["broker"], options["store"], **settings)
    conf = Conf(app)
    with bench(app, clock, schedules=True, **NO_WATCH) as parts:
        tune_memory()
        runner = Runner(parts.engine, lease_ms=conf.lease_ms, poll_ms=conf.poll_interval_ms)
        waits, monitoring = CoreWaits(runner), Monitoring(conf, 1, lambda: [parts.engine], parts.store, runner.pool)
        runner.start()
        monitoring.start()
        yield runner, waits
        monitoring.stop()
        runner.stop()


def status(runner: Runner, waits: CoreWaits, clock: MovedClock) -> dict[str, Any]:
    if runner.pool.failure is not None:
        raise runner.pool.failure[1]
    kernel = Path("/proc/self/status").read_text()
    rss, peak = (int(re.search(rf"{name}:\s+(\d+) kB", kernel)[1]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return {
        **dataclasses.asdict(runner.engines[0].stats),
        "held": int(runner.engines[0].held),
        "now_ms": clock.now_ms(),
        "cpu_s": time.process_time(),
        "core_wait_s": waits.seconds,
        "rss": rss,
        "rss_peak": peak,
    }


class CoreWaits:
    """By activity: the seconds in which its thread was ready to run and others had the cores."""

    def __init__(self, runner: Runner) -> None:
        [shard] = runner.shards
        self.seconds = dict.fromkeys(shard.jobs, 0.0)
        for name, job in shard.jobs.items():
            job.run = partial(self._measured, name, job.run)

    def _measured(self, name: str, run: Callable[[], Wait]) -> Wait:
        before = self._thread_ns()
        wait = run()
        self.seconds[name] += (self._thread_ns() - before) / 1e9
        return wait

    @staticmethod
    def _thread_ns() -> int:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def counts(runner: Runner) -> Callable[[str], int]:
    """Return a function that reads a count cheaply: polls must not take the interpreter from the measured threads."""
    [engine] = runner.engines
    return lambda name: getattr(engine, name) if name == "held" else getattr(engine.stats, name)


def main(options: dict[str, Any]) -> None:
    clock = MovedClock(options["ahead_ms"])
    with scheduler(options, clock) as (runner, waits):
        serve(runner, waits, clock)


def serve(runner: Runner, waits: CoreWaits, clock: MovedClock) -> None:
    """Answer each line of stdin, until it ends."""
    count = counts(runner)

    def say() -> None:
        print(json.dumps(status(runner, waits, clock)), flush=True)

    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "move":
            clock.ahead_ms += command["ms"]
            runner.engines[0].ctx.wake.set()
        elif command["do"] == "until":
            name, goal, said_at = command["count"], command["is"], time.monotonic()
            while count(name) < goal:
                time.sleep(LOOK_S)
                if time.monotonic() - said_at > SAY_S:
                    say()
                    said_at = time.monotonic()
        say()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
