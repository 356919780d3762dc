"""The app of a real ``celery beat -S wheel`` process, and that process: for benches that need no other clock.

::

    with beat(broker, store, shards=16) as process:      psutil's process: CPU and memory with those of its children
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.benchmarks.parts import make_app

app = make_app(
    os.environ.get("BENCH_BROKER", "redis://"),
    os.environ.get("BENCH_STORE", "sqlite:///"),
    wheel_shards=int(os.environ.get("BENCH_SHARDS", "1")),
    wheel_processes=int(os.environ.get("BENCH_PROCESSES", "1")),
)


class Tree:
    """A process and its children, with what they have used."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of all, and of children that have ended."""
        return sum(sum(each.cpu_times()[:4]) for each in self._all())

    @property
    def rss(self) -> int:
        return sum(each.memory_info().rss for each in self._all())

    @property
    def alive(self) -> bool:
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    def _all(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


@contextmanager
def beat(broker: str, store: str, shards: int, processes: int = 1) -> Iterator[Tree]:
    numbers = {"BENCH_SHARDS": str(shards), "BENCH_PROCESSES": str(processes)}
    environment = os.environ | {"BENCH_BROKER": broker, "BENCH_STORE": store, **numbers}
    celery = [sys.executable, "-m", "celery", "-q", "-A", "tests.benchmarks.beat"]
    command = [*celery, "beat", "-S", "wheel", "-l", "ERROR"]
    with tempfile.TemporaryDirectory() as folder:
        pidfile = ["--pidfile", f"{folder}/beat.pid", "-s", f"{folder}/beat"]
        process = subprocess.Popen([*command, *pidfile], env=environment, start_new_session=True)
        try:
            yield Tree(psutil.Process(process.pid))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
