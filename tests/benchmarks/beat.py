"""The app of a real ``celery beat -S wheel`` process, and that process: for benches that need no other clock."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    @property
    def cpu_s(self) -> float:
        return sum(sum(each.cpu_times()[:4]) for each in self._all())

    def cpu_share(self, seconds: float) -> float:
        before_s, began = self.cpu_s, time.perf_counter()
        time.sleep(seconds)
        return (self.cpu_s - before_s) / (time.perf_counter() - began)

    @property
    def rss(self) -> int:
        return sum(each.memory_info().rss for each in self._all())

    @property
    def threads(self) -> int:
        return sum(each.num_threads() for each in self._all())

    def _all(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def wait(self, is_over: Callable[[], bool], at_most_s: float) -> None:
        until_s = time.monotonic() + at_most_s
        while not is_over():
            assert self._process.status() != psutil.STATUS_ZOMBIE, "celery beat has ended; its output is above"
            assert time.monotonic() < until_s, "celery beat did not become ready, or did not do its work"
            time.sleep(0.01)


@contextmanager
def beat(broker: str, store: str, shards: int, processes: int = 1) -> Iterator[Tree]:
    numbers = {"BENCH_SHARDS": str(shards), "BENCH_PROCESSES": str(processes)}
    environment = os.environ | {"BENCH_BROKER": broker, "BENCH_STORE": store, **numbers}
    celery = [sys.executable, "-m", "celery", "-q", "-A", "tests.benchmarks.beat", "beat", "-S", "wheel", "-l", "ERROR"]
    with tempfile.TemporaryDirectory() as folder:
        files = ["--pidfile", f"{folder}/beat.pid", "-s", f"{folder}/beat"]
        process = subprocess.Popen([*celery, *files], env=environment, start_new_session=True)
        try:
            yield Tree(psutil.Process(process.pid))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
