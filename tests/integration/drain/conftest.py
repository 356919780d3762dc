"""Stacks for rescue and drain, and producers without the wheel."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery
import pytest

from celery_wheel.broker import wheel_queue_name
from celery_wheel.errors import StoreConflict, StoreUnusable
from celery_wheel.operations.drain import open_existing_store, would_drain
from celery_wheel.operations.stores import claim_broker
from celery_wheel.store.ports import FullStore
from celery_wheel.store.sql.schema import bytes_to_task_id
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

QUEUES = [
    ("celery", "celery", "direct", "celery"),
    ("sport", "news", "topic", "news.sport"),
    ("golf", "news", "topic", "news.golf"),
    ("every", "news", "topic", "*.golf"),
    ("orders", "shop", "direct", "order"),
]


class LeavingStack(Stack):
    def __init__(self, folder: Path, broker: str, store: str = "") -> None:
        super().__init__(folder, broker, store, queues=QUEUES, accept_content=["json", "pickle"])
        self.plain_app = self.producer(celery.Celery)  # Celery's own class

    def producer(self, kind: Any, **settings: Any) -> Any:
        return self.make_app(kind, **{"accept_content": ["json", "pickle"], **settings})

    def drain(self, *arguments: str) -> Process:
        """Start a drain that stops at the step of its arguments: see ``killed_drain``."""
        process = self.python("drain", "-m", "tests.integration.drain.killed_drain", *arguments)
        process.wait_for("stopped")
        return process

    def claim_broker(self) -> None:
        def is_claimed() -> bool:
            with suppress(StoreConflict):
                claim_broker(self.app)
                return True
            return False

        wait_until(is_claimed, "the broker is free")

    def opened(self) -> closing[FullStore]:
        return closing(open_existing_store(self.app))

    def count_pending(self) -> int:
        """Return the number of pending tasks; -1 while there is no store."""
        try:
            with self.opened() as store:
                return would_drain(self.app, store).moved
        except StoreUnusable:
            return -1

    # -- tasks ---------------------------------------------------------------------------------------

    def send_eta(
        self, tag: str, in_s: float, app: Any = None, retries: int = 0, now: datetime | None = None, **options: Any
    ) -> str:
        eta = (now or datetime.now(UTC)) + timedelta(seconds=in_s)
        eta_ms = -(-int(eta.timestamp() * 1_000_000) // 1_000)
        task, args = ("retried", (tag, retries, eta_ms)) if retries else ("note", (tag, eta_ms))
        sent: str = (app or self.plain_app).send_task(task, args, eta=eta, **options).id
        return sent

    def in_store(self) -> dict[str, tuple[Any, ...]]:
        """Return task id → (queue, exchange, priority, expires_ms, lane)."""
        return {row[0]: row[1:] for row in self.select("text(task_id), queue, exchange, priority, expires_ms, lane")}

    def select(self, columns: str) -> list[tuple[Any, ...]]:
        """Return columns of all rows; an empty list while the store has no tables."""
        with closing(sqlite3.connect(self.file)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'wheel_timer'").fetchone():
                return []
            database.create_function("text", 1, bytes_to_task_id, deterministic=True)
            rows = "wheel_timer t JOIN wheel_route r ON r.id = t.route"
            return database.execute(f"SELECT {columns} FROM {rows} ORDER BY due_ms, seq").fetchall()


def waiting(app: Any, queue: str = wheel_queue_name("wheel", 0)) -> int:
    """Return the number of messages in a queue; 0 where the broker has no such queue."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["redis", pytest.param("rabbit", marks=ON_RABBITMQ)])
def broker(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url
    rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
    return rabbit.fresh()


@pytest.fixture
def stack(tmp_path: Path, broker: str) -> Iterator[LeavingStack]:
    with LeavingStack(tmp_path, broker) as found:
        yield found


@pytest.fixture
def redis_stack(tmp_path: Path, redis_server: RedisServer) -> Iterator[LeavingStack]:
    with LeavingStack(tmp_path, redis_server.url) as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


@pytest.fixture
def other(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/other.sqlite3"
