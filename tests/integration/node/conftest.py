"""Schedulers and workers that are commanded by what Celery's users type, on Redis or RabbitMQ; results in Redis."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from tests.integration.scheduler.conftest import Process
from tests.rabbit import RabbitServer
from tests.servers import RedisServer, wait_until

HERE = Path(__file__).parent


class Site:
    """A broker, a result backend, a store; ``app`` is what a user has in a shell."""

    def __init__(self, folder: Path, server: RedisServer, broker: str | None = None) -> None:
        self.folder = folder
        self.server = server
        self.redis = server.client()
        self.broker = broker or server.url
        self.store = f"sqlite:///{folder}/wheel.sqlite3"
        self.app = Celery("user", broker=self.broker, backend=server.url, set_as_current=False)
        self._apps = [self.app]
        self.app.conf.wheel_store = self.store
        self._processes: list[Process] = []

    def celery(self, *arguments: str, **settings: Any) -> Process:
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "C_FORCE_ROOT": "1",  # else a worker that may load pickles does not start as root
            "NODE_BROKER": self.broker,
            "NODE_BACKEND": self.server.url,
            "NODE_FOLDER": str(self.folder),
            "NODE_SETTINGS": json.dumps({"wheel_store": self.store, **settings}),
        }
        command = [sys.executable, "-m", "celery", "-A", "node_project", *arguments]
        process = Process(command, environment, self.folder / f"{len(self._processes)}-{arguments[0]}.log")
        self._processes.append(process)
        return process

    def beat(self, **settings: Any) -> Process:
        """A scheduler that holds the shard, if nobody else does, and whose node listens."""
        process = self.celery("beat", "--pidfile", "", "-l", "INFO", **settings)
        wait_until(lambda: "listens" in process.said(), "the node listens")
        wait_until(lambda: "at epoch" in process.said(), "the shard is held")
        return process

    def worker(self, **settings: Any) -> Process:
        process = self.celery("worker", "-P", "solo", "-l", "INFO", "--without-mingle", **settings)
        wait_until(lambda: "ready." in process.said(), "the worker is ready")
        return process

    def output(self, *arguments: str) -> str:
        """What a celery command prints; it has to succeed."""
        code, said = self.celery(*arguments).end()
        assert code == 0, said
        return said

    def send(self, name: str = "mark", **options: Any) -> Any:
        """One that waits for an hour, and that the wheel has."""
        result = self.app.send_task(name, **{"countdown": 3_600, **options})
        wait_until(lambda: self.app.wheel.find(result.id), "it is in the store")
        return result

    def states(self, task_id: str) -> list[str]:
        return [one.state for one in self.app.wheel.find(task_id)]

    def list_of(self, name: str) -> list[Any]:
        return [one.decode() for one in self.redis.lrange(name, 0, -1)]

    def signals(self) -> list[Any]:
        return [json.loads(one) for one in self.list_of("signals")]

    @property
    def tasks(self) -> Any:
        """The project's own module, for tasks with their canvas."""
        os.environ |= {"NODE_BROKER": self.broker, "NODE_BACKEND": self.server.url, "NODE_FOLDER": str(self.folder)}
        sys.path.insert(0, str(HERE))
        try:
            sys.modules.pop("node_project", None)
            project = importlib.import_module("node_project")
            self._apps.append(project.app)
            return project
        finally:
            sys.path.remove(str(HERE))

    def close_processes(self) -> None:
        for process in self._processes:
            process.kill_all()

    def close(self) -> None:
        self.close_processes()
        for app in self._apps:  # a result that is collected later would look for the server
            app.backend.remove_pending_result = lambda result: result
            app.backend.result_consumer.stop()
        self.app.wheel.close()
        self.app.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with RedisServer(tmp_path / "redis") as server:
        found = Site(tmp_path, server)
        yield found
        found.close()


@pytest.fixture
def rabbit_site(tmp_path: Path, rabbit_server: RabbitServer) -> Iterator[Site]:
    with RedisServer(tmp_path / "redis") as server:
        found = Site(tmp_path, server, rabbit_server.fresh())
        yield found
        found.close()
