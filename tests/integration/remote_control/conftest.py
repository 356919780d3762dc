"""Schedulers and workers under Celery's own remote control, on Redis or RabbitMQ; results in Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


def answers(nodes: int = 1) -> dict[str, Any]:
    """Return options that end a broadcast's wait, otherwise always a second, when so many nodes have answered."""
    return {"reply": True, "limit": nodes, "timeout": patience()}


class NodeStack(Stack):
    """A stack with schedulers; ``app`` is the app in a user's shell."""

    def send_far(self, name: str = "note", **options: Any) -> Any:
        result = self.app.send_task(name, **{"countdown": 3_600, **options})
        wait_until(lambda: self.app.wheel.find(result.id), "the task is in the store")
        return result

    def inspect(self, nodes: int = 1) -> Any:
        return self.app.control.inspect(limit=nodes, timeout=patience())

    def output(self, *arguments: str) -> str:
        """Return the output of a command, which is repeated until it has an answer: it waits for a second only."""
        printed: list[str] = []

        def answered() -> bool:
            code, said = self.celery(*arguments).end()
            printed.append(said)
            return code == 0

        wait_until(answered, f"celery {' '.join(arguments)} has an answer")
        return printed[-1]

    def revoke(self, *task_ids: str) -> None:
        """Revoke tasks, and wait until the holder has carried it out: the node answers when it is in the inbox."""
        self.app.control.revoke(list(task_ids), **answers())
        wait_until(lambda: not self.app.wheel.store.has_arrivals(0), "the revoke is carried out")

    def states(self, task_id: str) -> list[str]:
        return [one.state for one in self.app.wheel.find(task_id)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[NodeStack]:
    with RedisServer(tmp_path / "redis") as server, NodeStack(tmp_path, server, result_backend=server.url) as found:
        yield found


@pytest.fixture
def rabbit_stack(tmp_path: Path, rabbit_server: RabbitServer, redis_server: RedisServer) -> Iterator[NodeStack]:
    with NodeStack(tmp_path, rabbit_server.fresh(), result_backend=redis_server.url) as found:
        yield found
