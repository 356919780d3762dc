"""Native Celery: a worker that holds tasks with an eta in its memory, in a process of its own.

::

    python -m tests.benchmarks.native redis://…
        line on stdin     {"late_ms": [[due, late], …], "cpu_s": 4.1, "rss_peak": …}      since the line before

A task arrives when the worker hands it to its pool, as a task of the wheel arrives in its worker's queue. The worker
is that of ``celery worker`` with eight children, without gossip, mingle and heartbeats; its CPU time is without theirs.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import redis
from celery import Celery, signals
from celery.concurrency.prefork import TaskPool

from tests.benchmarks.child import Piped
from tests.benchmarks.letters import KINDS, Letters

QUEUE = "bench.native"
#: More children made it no faster, fewer made it slower: the results of children wake the worker's loop.
CHILDREN = 8

#: The tasks that have arrived since the last report: when each was due, and how late it was.
NOTED: list[tuple[float, float]] = []


class Arrived(NamedTuple):
    late_ms: list[tuple[float, float]]  #: due, late
    cpu_s: float
    rss_peak: int


class Native(Piped):
    def __init__(self, broker: str, client: redis.Redis) -> None:
        self.client = client
        with Celery("native", broker=broker, set_as_current=False) as app:
            self.letters = Letters(app, client, [(task, QUEUE) for task, _ in KINDS])
        super().__init__("native", broker)
        self.arrived()

    def arrived(self) -> Arrived:
        return Arrived(**self.ask())

    def wait(self, count: int, at_most_s: float) -> Arrived:
        until_s, found = time.monotonic() + at_most_s, self.arrived()
        while len(found.late_ms) < count and time.monotonic() < until_s:
            time.sleep(0.1)
            more = self.arrived()
            found = more._replace(late_ms=found.late_ms + more.late_ms)
        return found

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.client.flushall()


class NotingPool(TaskPool):
    def apply_async(self, target: Any, args: Any = (), *more: Any, **options: Any) -> Any:
        eta_ms = datetime.fromisoformat(args[2]["eta"]).timestamp() * 1_000
        NOTED.append((eta_ms, time.time() * 1_000 - eta_ms))
        return super().apply_async(target, args, *more, **options)


def main(broker: str) -> None:
    app = Celery("native", broker=broker)
    app.conf.update(task_ignore_result=True, task_default_queue=QUEUE, worker_redirect_stdouts=False)

    def nothing(**_: Any) -> None: ...

    for task, _ in KINDS:
        app.task(name=task, shared=False)(nothing)
    without = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat"), True)
    options = {"pool_cls": NotingPool, "queues": [QUEUE], "concurrency": CHILDREN, "loglevel": "ERROR", "quiet": True}
    worker = app.Worker(**options, **without)
    # Not before the worker has forked its children: a child would wait for the lock of stdin.
    signals.worker_ready.connect(lambda **_: threading.Thread(target=answer, daemon=True).start(), weak=False)
    worker.start()


def answer() -> None:
    for _ in sys.stdin:
        found = NOTED[:]
        del NOTED[: len(found)]
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
        print(json.dumps({"late_ms": found, "cpu_s": time.process_time(), "rss_peak": peak}), flush=True)
    os.killpg(0, signal.SIGKILL)  # the bench has ended: the worker and its children have a process group of their own


if __name__ == "__main__":
    main(sys.argv[1])
