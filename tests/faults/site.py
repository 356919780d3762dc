"""An installation for the fault tests: a broker, a store, two schedulers, a worker, and a producer under load.

::

    producer ──► broker ──► scheduler a ─┐ store
                    │       scheduler b ─┘ stands by, or holds half of the shards
                    └──► worker ──► notes, a line a run
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from kombu.exceptions import OperationalError

from celery_wheel import Celery
from tests.faults.auditor import audit
from tests.faults.judge import Verdict, judge
from tests.servers import PATIENCE_S, wait_until

HERE = Path(__file__).parent

#: What is published runs within this time, or the worker has lost it.
FOR_THE_WORKER_S = 8


class Server(Protocol):
    """A broker or a database that can be killed and started again, keeping what it had promised to keep."""

    @property
    def url(self) -> str: ...

    def restart(self) -> None: ...


class Site:
    def __init__(
        self, folder: Path, broker: Server, store_url: str, rng: random.Random, every_s: float = 0.01, **settings: Any
    ) -> None:
        self.folder = folder
        self.broker = broker
        self.settings = {"wheel_store": store_url, **settings}
        self.rng = rng
        self.every_s = every_s  #: between two tasks
        self.scheduled: list[str] = []
        self.perhaps: list[str] = []
        self.app = Celery("producer", broker=broker.url, set_as_current=False)
        self.app.conf.update(task_ignore_result=True, **settings)
        if broker.url.startswith("amqp"):
            # Without it a message that was written to a socket counts as sent, whatever becomes of the server.
            self.app.conf.broker_transport_options = {"confirm_publish": True}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce)

    # -- processes -----------------------------------------------------------------------------------

    def run(self, name: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
            "FAULTS_BROKER": self.broker.url,
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_SETTINGS": json.dumps(self.settings),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "project", *arguments],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def scheduler(self, name: str) -> None:
        self.run(name, "beat", "-l", "INFO", "--pidfile", "")

    def kill_scheduler(self, name: str) -> None:
        """kill -9, and another in its place at once, as a supervisor would."""
        self._kill(name)
        self.scheduler(name)

    def restart_broker(self) -> None:
        """And the worker: it does not always survive that (kombu 5.7: AttributeError in restore_unacked)."""
        self.broker.restart()
        self._kill("worker")
        self._worker()

    def _worker(self) -> None:
        self.run("worker", "worker", "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle")

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)

    def __enter__(self) -> Site:
        self.scheduler("scheduler-a")
        self.scheduler("scheduler-b")
        self._worker()
        self._producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._producer.join(PATIENCE_S)
        for name in list(self._processes):
            self._kill(name)
        self.app.close()

    # -- load ----------------------------------------------------------------------------------------

    def _produce(self) -> None:
        """A task every ``every_s`` or so, due within 4 s, until it is told to stop."""
        while not self._stop.wait(self.every_s):
            self._send(self.rng.uniform(0.05, 4))

    def _send(self, countdown_s: float) -> None:
        task_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        eta_ms = time.time_ns() // 1_000_000 + int(countdown_s * 1_000)
        try:
            self.app.send_task("note", (eta_ms,), countdown=countdown_s, task_id=task_id, retry=False)
        except (OperationalError, OSError):  # the broker is away: whether it has the task, nobody knows
            self.perhaps.append(task_id)
            self._stop.wait(0.2)
        else:
            self.scheduled.append(task_id)

    # -- the end -------------------------------------------------------------------------------------

    def notes(self) -> list[dict[str, Any]]:
        """What tasks have noted; the last line may be under way."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, count: int, seconds: float) -> None:
        """Until so many have run; a failure has the processes' words."""
        try:
            wait_until(lambda: len(self.notes()) >= count, f"{count} tasks have run", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {len(self.notes())} have\n{self.said()}") from error

    def settle(self, seconds: float, published: Callable[[], Mapping[str, int]] | None = None) -> Verdict:
        """Stop the load, wait until everything has arrived, and judge."""
        self._stop.set()
        self._producer.join(PATIENCE_S)
        expected = set(self.scheduled)
        with suppress(AssertionError):  # what is missing then is what the judge calls lost
            if published:
                wait_until(lambda: not expected - published().keys(), "all tasks are published", seconds)
                seconds = FOR_THE_WORKER_S
            wait_until(lambda: not expected - {note["id"] for note in self.notes()}, "all tasks have run", seconds)
        said = published() if published else None
        if os.environ.get("FAULTS_JUDGE") == "reconcile":
            return audit(self.folder / "audit", self.scheduled, self.perhaps, self.notes(), said)
        return judge(self.scheduled, self.perhaps, self.notes(), said)

    def said(self) -> str:
        """The last words of all processes, for a failure."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))
