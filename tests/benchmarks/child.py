"""A scheduler process of a bench: start, request, wait, stop, kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.kit.patience import PATIENCE_S

#: No wait takes this long, however slow the machine; a bench that hangs ends with an error.
STALLED_S = 120.0

#: Counts that are 0 in a clean run.
DEFECTS = ("known", "rejected", "rollbacks", "guard_trips", "broker_errors", "store_errors")


class Status(NamedTuple):
    """A status line of the process."""

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


class Child:
    def __init__(self, options: dict[str, Any]) -> None:
        self.ahead_ms: int = options["ahead_ms"]
        # A session of its own: Ctrl-C is for the bench, which then ends its processes in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.scheduler", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def status(self) -> Status:
        return self._ask({"do": "status"})

    def move(self, ms: int) -> Status:
        """Move the process's clock forward."""
        self.ahead_ms += ms
        return self._ask({"do": "move", "ms": ms})

    def until(self, count: str, goal: int, seen: Callable[[Status], None] = lambda _: None) -> Status:
        """Wait until one of the process's counts has reached a goal; ``seen`` reports progress twice a second."""
        self._say({"do": "until", "count": count, "is": goal})
        before, moved_at = self._hear(), time.monotonic()
        now = before
        while getattr(now, count) < goal:
            seen(now)
            now = self._hear()
            if (now.accepted, now.dispatched, now.forgotten) != (before.accepted, before.dispatched, before.forgotten):
                before, moved_at = now, time.monotonic()
            assert time.monotonic() < moved_at + STALLED_S, f"nothing has moved for {STALLED_S:g} s: {now}"
        assert not now.defects, f"a clean run has no defects, got {now}"
        return now

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Let the process settle and release the shard."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _ask(self, command: dict[str, Any]) -> Status:
        self._say(command)
        return self._hear()

    def _say(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Status:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the scheduler process has died; its output is above"
        said = json.loads(line)
        defects = sum(said[name] for name in DEFECTS)
        return Status(**{name: said[name] for name in Status._fields if name != "defects"}, defects=defects)

    def _end(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        else:
            self._end()
