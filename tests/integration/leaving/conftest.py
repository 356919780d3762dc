"""Processes of the project in ``leaving_project`` on a broker and a store, and producers that know no wheel."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery
import pytest

from celery_wheel import Celery
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.claim import claim
from celery_wheel.errors import StoreConflict
from tests.integration.leaving.leaving_project import QUEUES
from tests.rabbit import RabbitServer
from tests.servers import PATIENCE_S, RedisServer, wait_until

HERE = Path(__file__).parent


class Stack:
    def __init__(self, folder: Path, broker: str, store: str = "", **settings: Any) -> None:
        self.folder = folder
        self.broker = broker
        self.file = folder / "wheel.sqlite3"
        self.store = store or f"sqlite:///{self.file}"
        self.settings = {"wheel_store": self.store, **settings}
        self.app = self.producer(Celery, **self.settings)  # as the project's own code has it
        self.plain = self.producer(celery.Celery)  # knows no wheel
        self._apps = [self.app, self.plain]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def producer(self, kind: Any, **settings: Any) -> Any:
        app = kind("leaving", broker=self.broker, set_as_current=False)
        app.conf.update(task_ignore_result=True, task_queues=QUEUES, accept_content=["json", "pickle"], **settings)
        return app

    # -- processes -----------------------------------------------------------------------------------

    def run(self, name: str, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        return self.python(name, "-m", "celery", "-A", "leaving_project", *arguments, **settings)

    def python(self, name: str, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE)]),
            "LEAVING_BROKER": self.broker,
            "LEAVING_FOLDER": str(self.folder),
            "LEAVING_SETTINGS": json.dumps({**self.settings, **settings}),
            "C_FORCE_ROOT": "1",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def worker(self, **settings: Any) -> None:
        before = self.said("worker").count(" ready.")
        self.run("worker", "worker", "-P", "solo", "-l", "INFO", "--without-gossip", "--without-mingle", **settings)
        wait_until(lambda: self.said("worker").count(" ready.") > before, "the worker is ready")

    def beat(self, name: str = "beat", **settings: Any) -> None:
        self.run(name, "beat", "-l", "INFO", "--pidfile", "", **settings)

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        for app in self._apps:
            app.close()

    # -- tasks ---------------------------------------------------------------------------------------

    def send(
        self, tag: str, in_s: float, app: Any = None, retries: int = 0, now: datetime | None = None, **options: Any
    ) -> str:
        """A task with an eta; returns its id."""
        eta = (now or datetime.now(UTC)) + timedelta(seconds=in_s)
        eta_ms = -(-int(eta.timestamp() * 1_000_000) // 1_000)
        sent: str = (app or self.plain).send_task("note", (tag, eta_ms, retries), eta=eta, **options).id
        return sent

    def notes(self) -> dict[str, list[dict[str, Any]]]:
        path, found = self.folder / "notes", dict[str, list[dict[str, Any]]]()
        for line in path.read_text().splitlines() if path.exists() else ():
            note = json.loads(line)
            found.setdefault(note["tag"], []).append(note)
        return found

    def wait_for(self, *tags: str, seconds: float = PATIENCE_S) -> None:
        try:
            wait_until(lambda: not set(tags) - self.notes().keys(), f"{tags} have run", seconds)
        except AssertionError as error:
            missing = set(tags) - self.notes().keys()
            logs = "\n".join(f"--- {name}\n{self.said(name)[-3000:]}" for name in self._processes)
            raise AssertionError(f"{missing} did not run\n{logs}") from error

    def in_store(self) -> dict[str, tuple[Any, ...]]:
        """By task id: queue, exchange, priority, expires_ms, lane."""
        return {row[0]: row[1:] for row in self.select("task_id, queue, exchange, priority, expires_ms, lane")}

    def select(self, columns: str) -> list[tuple[Any, ...]]:
        """Of all rows; none while there are no tables."""
        with closing(sqlite3.connect(self.file)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'wheel_timer'").fetchone():
                return []
            return database.execute(f"SELECT {columns} FROM wheel_timer ORDER BY due_ms, seq").fetchall()

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def waiting(app: Any, queue: str = wheel_queue_name("wheel", 0)) -> int:
    """How many messages are in a queue; a broker that has none says so by an error."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["redis", "rabbit"])
def broker(request: pytest.FixtureRequest) -> str:
    """The URL of an empty broker."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.client().flushall()
        return server.url
    rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
    return rabbit.fresh()


@pytest.fixture
def stack(tmp_path: Path, broker: str) -> Iterator[Stack]:
    found = Stack(tmp_path, broker)
    yield found
    found.close()


@pytest.fixture
def redis_stack(tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    redis_server.client().flushall()
    found = Stack(tmp_path, redis_server.url)
    yield found
    found.close()


def claimed(app: Any, shards: Iterable[int]) -> bool:
    """Claim the broker for the app's store; False while a holder of the other store was seen lately."""
    try:
        claim(app, shards)
    except StoreConflict:
        return False
    return True
