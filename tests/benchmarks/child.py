"""Processes beside a bench that speak with it: a line of JSON for each line of JSON. ``Child`` is a scheduler."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple, Self

from celery_wheel.console.output import progress
from tests.kit.patience import PATIENCE_S

#: No wait takes this long, however slow the machine; a bench that hangs ends with an error.
STALLED_S = 120.0

#: Counts that are 0 in a clean run.
DEFECTS = ("known", "rejected", "rollbacks", "guard_trips", "broker_errors", "store_errors")


class Piped:
    """``python -m tests.benchmarks.<module> <arguments>`` in a session of its own; killed at the end of the block."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"tests.benchmarks.{module}", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, line: str = "") -> Any:
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args} has died; its output is above"
        return json.loads(line)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def measured(module: str, *arguments: object) -> Any:
    """Return what a process of its own prints, for benches that measure memory."""
    with Piped(module, *arguments) as process:
        return process.hear()


class Status(NamedTuple):
    held: int
    now_ms: int
    accepted: int
    dispatched: int
    forgotten: int
    defects: int
    cpu_s: float
    core_wait_s: dict[str, float]  #: by activity: seconds in which its thread was ready to run and others had the cores
    rss: int
    rss_peak: int


class Child(Piped):
    """A scheduler process on a clock that can be moved; entered when it holds its shard, stopped at the end."""

    def __init__(self, broker: str, store: str, *, ahead_ms: int = 0, **options: Any) -> None:
        self.ahead_ms = ahead_ms
        super().__init__("scheduler", json.dumps({"broker": broker, "store": store, "ahead_ms": ahead_ms, **options}))

    def status(self) -> Status:
        return self._do("status")

    def move(self, ms: int) -> Status:
        self.ahead_ms += ms
        return self._do("move", ms=ms)

    def until(self, count: str, goal: int) -> Status:
        """Wait until one of the process's counts has reached a goal; a bar shows it twice a second."""
        before, moved_at = self._do("until", count=count, goal=goal), time.monotonic()
        now = before
        with progress(f"{count}, of {goal:,}", goal) as bar:
            while getattr(now, count) < goal:
                bar(0, done=getattr(now, count))
                now = self._status(self.hear())
                if now[2:5] != before[2:5]:
                    before, moved_at = now, time.monotonic()
                assert time.monotonic() < moved_at + STALLED_S, f"nothing has moved for {STALLED_S:g} s: {now}"
        assert not now.defects, f"a clean run has no defects, got {now}"
        return now

    def _do(self, what: str, **options: Any) -> Status:
        return self._status(self.ask(json.dumps({"do": what, **options})))

    @staticmethod
    def _status(said: dict[str, Any]) -> Status:
        said["defects"] = sum(said[name] for name in DEFECTS)
        return Status(**{name: said[name] for name in Status._fields})

    def __enter__(self) -> Self:
        self.until("held", 1)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Let the process settle and release the shard, unless it was killed or the bench has failed."""
        if kind is None and self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        self.kill()
