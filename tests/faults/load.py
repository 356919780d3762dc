"""A stack under load for the fault tests: two schedulers, a worker, and a producer that sends until it is stopped.

::

    producer ──► broker ──► scheduler a ─┐ store
                    │       scheduler b ─┘ stands by, or holds half of the shards
                    └──► worker ──► notes, a line a run
"""

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from kombu.exceptions import OperationalError

from tests.faults.judge import Verdict, audit, judge
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.stack import Broker, Stack

#: A worker that has run nothing for so long has lost the published tasks that have not run.
FOR_THE_WORKER_S = 4

SCHEDULERS = ("scheduler-a", "scheduler-b")

SETTINGS = {
    "broker_connection_max_retries": None,
    "task_ignore_result": True,
    "task_acks_late": True,
    "worker_prefetch_multiplier": 1,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
}


class StackUnderLoad(Stack):
    """Two schedulers, a worker and a producer; ``every_s`` is the pause between two tasks.

    The producer sends nothing while ``pauses`` is true.
    """

    def __init__(
        self, folder: Path, broker: Broker, store_url: str, rng: random.Random, every_s: float = 0.01, **settings: Any
    ) -> None:
        super().__init__(folder, broker, store_url, **SETTINGS, **settings)
        if broker.url.startswith("amqp"):
            # Without confirms a message counts as sent when it is written to a socket, even if the server dies.
            self.app.conf.broker_transport_options = {"confirm_publish": True}
        self.rng = rng
        self.every_s = every_s
        self.pauses = False
        self.scheduled: list[str] = []
        self.perhaps: list[str] = []
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce)

    # -- processes -----------------------------------------------------------------------------------

    def kill_scheduler(self, name: str) -> None:
        self[name].kill()
        self.beat(name)

    def take_faults(self, count: int, database: PostgresServer | None) -> None:
        """Kill each role once at least, in a random order; a SQLite store has no server to be killed."""
        self.wait_for_runs(20)
        faults: list[Callable[[], None]] = [
            *(partial(self.kill_scheduler, name) for name in SCHEDULERS),
            self.restart_broker,
            *([] if database is None else [database.restart]),
        ]
        order = [*faults, *self.rng.choices(faults, k=count - len(faults))]
        self.rng.shuffle(order)
        for fault in order:
            fault()
            self.wait_for_runs(len(self.runs()) + self.rng.randrange(20, 150))

    def restart_broker(self) -> None:
        """Kill the worker as well: a restart may break it (kombu 5.7: AttributeError in restore_unacked)."""
        self.server.restart()
        self["worker"].kill()
        self._start_worker()

    def _start_worker(self) -> None:
        self.celery("worker", "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle")

    def __enter__(self) -> Self:
        self.declare_queues()
        for name in SCHEDULERS:
            self.beat(name)
        self._start_worker()
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._producer.join(patience())
        self.close()

    def wait_for_runs(self, count: int, seconds: float = 60) -> None:
        wait_until(lambda: len(self.runs()) >= count, f"{count} tasks have run", seconds)

    # -- load ----------------------------------------------------------------------------------------

    def _produce(self) -> None:
        """Send a task every ``every_s`` or so, due within 4 s, until the load stops."""
        while not self._stop.wait(self.every_s):
            if not self.pauses:
                self.schedule(self.rng.uniform(0.05, 4))

    def schedule(self, countdown_s: float) -> None:
        task_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        eta_ms = time.time_ns() // 1_000_000 + int(countdown_s * 1_000)
        try:
            self.app.send_task("note", ("load", eta_ms), countdown=countdown_s, task_id=task_id, retry=False)
        except (OperationalError, OSError):  # the broker does not answer: it may have the task or not
            self.perhaps.append(task_id)
            self._stop.wait(0.2)
        else:
            self.scheduled.append(task_id)

    # -- the end -------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        return not set(self.scheduled) - set(self.ran())

    def _wait_for_the_worker(self) -> None:
        ran = -1
        while ran < len(self.runs()):
            ran = len(self.runs())
            wait_until(lambda ran=ran: len(self.runs()) > ran or self.is_done(), "a task runs", FOR_THE_WORKER_S)

    def settle(self, seconds: float, published: Callable[[], Mapping[str, int]] | None = None) -> Verdict:
        """Stop the load, wait until everything has arrived, and judge."""
        self._stop.set()
        self._producer.join(patience())
        expected = set(self.scheduled)
        with suppress(AssertionError):  # the judge counts the missing tasks as lost
            if published:
                wait_until(lambda: not expected - published().keys(), "all tasks are published", seconds)
                self._wait_for_the_worker()
            wait_until(self.is_done, "all tasks have run", seconds)
        said = published() if published else None
        if os.environ.get("FAULTS_JUDGE") == "reconcile":
            return audit(self.folder / "audit", self.scheduled, self.perhaps, self.runs(), said)
        return judge(self.scheduled, self.perhaps, self.runs(), said)
