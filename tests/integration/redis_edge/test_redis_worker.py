"""A real Celery worker executes what the edge publishes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import Published, PublishResult
from celery_wheel.store.model import ORIGIN, Row
from tests.integration.redis_edge.conftest import Connect, adopted, publish_rows
from tests.kit.chunks import at, make_row
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Note, Stack

QUEUES = [
    ("mail", "mail", "direct", "mail"),
    ("sport", "news", "topic", "news.sport.#"),
    ("orders", "shop", "direct", "order"),
]


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Start a worker without the wheel, which takes the tasks of a queue in the broker's order."""
    with ExitStack() as stacks:

        def start(queues: str, prefix: str = "") -> Stack:
            settings = {"worker_prefetch_multiplier": 1, "accept_content": ["json", "pickle"]}
            options = {"broker_transport_options": {"global_keyprefix": prefix}} if prefix else {}
            stack = stacks.enter_context(Stack(tmp_path, server, queues=QUEUES, plain=True, **settings, **options))
            stack.worker("-P", "solo", "-Q", queues)
            return stack

        yield start


def task(number: int, text: str = "", **changes: Any) -> Row:
    task_id = f"00000000-0000-4000-8000-{number:012d}"
    headers = {"lang": "py", "task": "note", "id": task_id, "root_id": task_id, "eta": None, "greeting": "Grüße"}
    properties = {"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": task_id}
    parts = {"headers": headers, "properties": properties, "body": [[number, text], {}, {}]}
    return make_row(number, **{name: json.dumps(part).encode() for name, part in parts.items()}, **changes)


def publish(broker: RedisBroker, *rows: Row) -> Published:
    return publish_rows(broker, ORIGIN, at(rows[-1].id), rows)


def ran(stack: Stack, count: int) -> list[Note]:
    wait_until(lambda: len(stack.runs()) >= count, f"{count} tasks executed")
    return stack.runs()


@pytest.mark.parametrize("prefix", ["", "app:"])
def test_a_worker_executes_published_tasks_in_order(
    server: RedisServer, worker: Callable[..., Stack], connect: Connect, prefix: str
) -> None:
    broker = adopted(connect(server, transport_options={"global_keyprefix": prefix}))
    rows = [task(n, priority=p) for n, p in enumerate([9, 0, 3, None, 9, 4], start=1)]
    assert publish(broker, *rows) == Published(PublishResult.PUBLISHED, {})
    executed = ran(worker("mail", prefix), len(rows))
    assert [item["tag"] for item in executed] == [2, 4, 3, 6, 1, 5]  # in kombu on Redis 0 goes first
    assert [item["delivery_info"]["priority"] for item in executed] == [0, 0, 3, 4, 9, 9]
    assert {item["greeting"] for item in executed} == {"Grüße"}
    assert {item["eta"] for item in executed} == {None}
    assert executed[0]["id"] == "00000000-0000-4000-8000-000000000002"


def test_a_worker_gets_messages_of_the_exchanges_that_it_has_bound(
    broker: RedisBroker, worker: Callable[..., Stack], client: redis.Redis
) -> None:
    stack = worker("mail,sport,orders")
    wait_until(lambda: client.exists("_kombu.binding.news", "_kombu.binding.shop") == 2, "the worker's bindings")
    topic = {"exchange": "news", "exchange_type": "topic", "queue": None}
    published = publish(
        broker,
        task(1, exchange="shop", routing_key="order", queue="orders"),
        task(2, routing_key="news.sport.golf", **topic),
        task(3, routing_key="news.politics", **topic),
        task(4, "näch\u2028ste"),
    )
    executed = {item["tag"]: item for item in ran(stack, 3)}
    assert list(published.failed) == [3]
    assert set(executed) == {1, 2, 4}
    assert executed[2]["delivery_info"]["routing_key"] == "news.sport.golf"
    assert executed[4]["args"][0] == "näch\u2028ste"
