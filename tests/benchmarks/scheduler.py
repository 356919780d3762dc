"""The scheduler as a process of its own, so that its memory and its CPU time are its own; ``child.Child`` runs it.

::

    python -m tests.benchmarks.scheduler '{"broker": …, "store": …, "ahead_ms": 0}'      "metrics": an address
                                                                                         "settings": of the app
        {"do": "status"}                                  {"accepted": …, "dispatched": …, "rss": …, "cpu_s": …}
        {"do": "move", "ms": 3600000}                     {…}      the clock goes on from there at the pace of time
        {"do": "until", "count": "accepted", "goal": 9}   {…} {…}  twice a second, and when it is reached
        end of file                                       stop

It runs what ``celery beat -S wheel`` runs; only the clock differs, and no difference of clocks takes the shard.
"""

import dataclasses
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import celery_wheel.beat
from celery_wheel.conf import Conf
from celery_wheel.engine.pool import Wait
from celery_wheel.engine.runner import Runner
from celery_wheel.operations.bench import rig
from celery_wheel.scheduler.monitoring import Monitoring, tune_process
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app

assert celery_wheel.beat  # imported for its memory

#: The shortest retention that the settings allow, in seconds, so that the bench has history to forget.
RETENTION_S = 3_600

#: Seconds between two reads of a count, and between two reports.
LOOK_S = 0.01
SAY_S = 0.5


class Scheduler:
    def __init__(self, runner: Runner, clock: MovedClock) -> None:
        [self.engine], [shard] = runner.engines, runner.shards
        self.runner, self.clock = runner, clock
        self.core_wait_s = dict.fromkeys(shard.jobs, 0.0)
        for name, job in shard.jobs.items():
            job.run = partial(self._measured, name, job.run)

    def _measured(self, name: str, run: Callable[[], Wait]) -> Wait:
        """Add up the seconds in which the thread of an activity was ready to run, and others had the cores."""
        before = _waited_ns()
        wait = run()
        self.core_wait_s[name] += (_waited_ns() - before) / 1e9
        return wait

    def say(self) -> None:
        if self.runner.pool.failure is not None:
            raise self.runner.pool.failure[1]
        kernel = Path("/proc/self/status").read_text()
        rss, peak = (int(re.search(rf"{name}:\s+(\d+) kB", kernel)[1]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        own = {"held": int(self.engine.held), "now_ms": self.clock.now_ms(), "cpu_s": time.process_time()}
        used = {"core_wait_s": self.core_wait_s, "rss": rss, "rss_peak": peak}
        print(json.dumps(dataclasses.asdict(self.engine.stats) | own | used), flush=True)

    def until(self, name: str, goal: int) -> None:
        """Wait by cheap reads: they must not take the interpreter from the measured threads."""
        owner: Any = self.engine if name == "held" else self.engine.stats
        said_at = time.monotonic()
        while getattr(owner, name) < goal:
            time.sleep(LOOK_S)
            if time.monotonic() - said_at > SAY_S:
                self.say()
                said_at = time.monotonic()


class _OfThread(threading.local):
    """A thread's open statistics: to open them twice a round would cost a tenth of its CPU."""

    def __init__(self) -> None:
        self.file = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115 - until the thread ends


_statistics = _OfThread()


def _waited_ns() -> int:
    return int(os.pread(_statistics.file.fileno(), 100, 0).split()[1])


def main(options: dict[str, Any]) -> None:
    """Make the engine and its runner as ``WheelService.start`` does, and answer each line of stdin until it ends."""
    clock = MovedClock(options["ahead_ms"])
    settings = {"wheel_history_retention": RETENTION_S, "wheel_metrics": options.get("metrics")}
    app = make_app(options["broker"], options["store"], **settings, **options.get("settings", {}))
    conf = Conf(app)
    with rig(app, clock, schedules=True, **NO_WATCH) as parts:
        tune_process()
        runner = Runner(parts.engine, lease_ms=conf.lease_ms, poll_ms=conf.poll_interval_ms)
        scheduler = Scheduler(runner, clock)
        monitoring = Monitoring(conf, 1, lambda: [parts.engine], parts.store, runner.pool)
        runner.start()
        monitoring.start()
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "move":
                clock.ahead_ms += command["ms"]
                parts.engine.ctx.wake.set()
            elif command["do"] == "until":
                scheduler.until(command["count"], command["goal"])
            scheduler.say()
        monitoring.stop()
        runner.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
