"""The edge pushes byte for byte the message of Celery and kombu; only the delivery tag is new."""

from __future__ import annotations

import json
import uuid
from typing import Any

import kombu
import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.store.model import ORIGIN, Message, Unreadable
from tests.integration.redis_edge.rows import (
    EPOCH,
    NOW_MS,
    SHARD,
    Connect,
    adopted,
    at,
    make_row,
    publish_rows,
    row_of,
    without_tag,
)
from tests.kit.patience import patience, wait_until
from tests.kit.servers.redis import RedisServer

QUEUES = [
    Queue("mail", Exchange("mail"), routing_key="mail"),
    Queue("news", Exchange("news", type="topic"), routing_key="news.#"),
    Queue("orders", Exchange("shop", type="direct"), routing_key="order"),
    Queue("short", Exchange("short"), routing_key="short", expires=60),
]

CASES: dict[str, dict[str, Any]] = {
    "plain": {"queue": "mail"},
    "arguments": {"queue": "mail", "args": (1, "zwei", None), "kwargs": {"drei": [3.5]}},
    "not ASCII": {"queue": "mail", "args": ("påske \U0001f430",), "headers": {"greeting": "Grüße ✓", "q": '"\\/\n'}},
    "priority": {"queue": "mail", "priority": 6},
    "priority 0": {"queue": "mail", "priority": 0},
    "priority out of range": {"queue": "mail", "priority": 12},
    "pickle": {"queue": "mail", "serializer": "pickle", "args": ({1, 2}, b"\x00\xff")},
    "yaml and bytes": {"queue": "mail", "args": (b"\x00\xff",)},
    "zlib": {"queue": "mail", "compression": "zlib", "args": ("a" * 2_000,)},
    "zlib pickle": {"queue": "mail", "compression": "zlib", "serializer": "pickle", "args": ("a" * 2_000,)},
    "transient": {"queue": "mail", "delivery_mode": 1},
    "more properties": {"queue": "mail", "message_id": "m-1", "app_id": "shop", "timestamp": 5},
    "stamps": {"queue": "mail", "headers": {"stamped_headers": ["tenant"], "stamps": {"tenant": [["a"]]}}},
    "a time in the headers": {"queue": "mail", "headers": {"at": {"__type__": "datetime", "__value__": "2026-01-01"}}},
    "topic": {"queue": "news", "routing_key": "news.sport"},
    "named direct": {"exchange": "shop", "routing_key": "order"},
    "expiring queue": {"queue": "short"},
    "large": {"queue": "mail", "args": ("x" * 300_000,)},
}


@pytest.fixture
def app(server: RedisServer) -> Any:
    app = Celery("shop", broker=server.url, set_as_current=False)
    app.conf.update(task_queues=QUEUES, task_default_queue="mail", broker_connection_retry=False)
    with app.connection_for_write() as connection:
        for queue in QUEUES:  # as a worker does; without bindings kombu drops messages to exchanges
            queue(connection.default_channel).declare()
    yield app
    app.close()


def lists(client: redis.Redis) -> dict[bytes, list[bytes]]:
    """Return all lists with their messages, the delivery tags blanked out."""
    keys = [key for key in client.scan_iter("*") if client.type(key) == b"list"]
    return {key: [without_tag(raw) for raw in client.lrange(key, 0, -1)] for key in keys}


def through_the_wheel(broker: RedisBroker, client: redis.Redis, raw: bytes, **envelope: Any) -> Message:
    """Put a native message into the wheel queue in an envelope, and accept it."""
    message = json.loads(raw)
    headers = message["headers"]
    headers["eta"] = "2026-01-01T00:00:00+00:00"
    headers["wheel"] = encode(
        Envelope(str(uuid.uuid4()), headers["task"], headers["id"], eta_ms=1, created_ms=0, **envelope)
    )
    client.lpush(f"wheel.{SHARD}", json.dumps(message))
    peeked = broker.peek(SHARD, 1, 1)
    assert broker.trim(SHARD, EPOCH, peeked.token)
    (arrival,) = peeked.arrivals
    assert not isinstance(arrival, Unreadable), arrival.reason
    return arrival


@pytest.mark.parametrize("case", CASES)
def test_a_message_has_the_bytes_that_celery_would_have_pushed(
    app: Celery, broker: RedisBroker, client: redis.Redis, case: str
) -> None:
    options = CASES[case]
    app.send_task("shop.remind", **options)
    native = lists(client)
    (key,) = native
    (raw,) = client.lrange(key, 0, -1)
    expires_ms = client.pttl(key)
    client.delete(key)

    info = json.loads(raw)["properties"]["delivery_info"]
    message = through_the_wheel(
        broker,
        client,
        raw,
        exchange=info["exchange"],
        exchange_type="topic" if case == "topic" else "direct",
        routing_key=info["routing_key"],
        queue=options.get("queue"),
        priority=options.get("priority"),
        queue_expires_ms=60_000 if options.get("queue") == "short" and kombu.VERSION >= (5, 7) else None,
    )
    assert publish_rows(broker, ORIGIN, at(1), [row_of(message)]).failed == {}
    assert lists(client) == native
    assert abs(client.pttl(key) - expires_ms) < 10_000


@pytest.mark.parametrize(("left_ms", "written"), [(30_000, b'"30000"'), (1, b'"1"'), (0, b'"0"'), (-5_000, b'"0"')])
def test_the_expiration_is_the_remaining_time(
    app: Celery, broker: RedisBroker, client: redis.Redis, left_ms: int, written: bytes
) -> None:
    app.send_task("shop.remind", queue="mail", expires=30)
    (native,) = client.lrange("mail", 0, -1)
    assert b'"expiration": "30000"' in native
    client.delete("mail")
    message = through_the_wheel(
        broker, client, native, exchange="", exchange_type="direct", routing_key="mail", expires_ms=NOW_MS + left_ms
    )
    publish_rows(broker, ORIGIN, at(1), [row_of(message)])
    (released,) = client.lrange("mail", 0, -1)
    assert without_tag(released) == without_tag(native).replace(b'"30000"', written)


def test_a_broadcast_has_the_bytes_that_kombu_would_have_published(
    app: Celery, server: RedisServer, broker: RedisBroker, client: redis.Redis
) -> None:
    with client.pubsub() as listener:
        listener.subscribe("/0.all")
        wait_until(lambda: client.pubsub_numsub("/0.all")[0][1] == 1, "the subscription")
        with app.connection_for_write() as connection, connection.channel() as channel:
            exchange = Exchange("all", type="fanout", channel=channel)
            exchange.declare()
            producer = connection.Producer(channel)
            app.send_task("shop.remind", exchange="all", exchange_type="fanout", routing_key="", producer=producer)
        native = [heard for _ in range(2) if (heard := listener.get_message(timeout=patience(5)))][-1]["data"]
        message = through_the_wheel(broker, client, native, exchange="all", exchange_type="fanout", routing_key="")
        publish_rows(broker, ORIGIN, at(1), [row_of(message)])
        assert without_tag(listener.get_message(timeout=patience(5))["data"]) == without_tag(native)


def test_the_body_is_never_parsed(server: RedisServer, client: redis.Redis, connect: Connect) -> None:
    broker = adopted(connect(server))
    body = bytes(range(256))
    row = make_row(1, body=body, properties=b'{"content_type": null}')
    publish_rows(broker, ORIGIN, at(1), [row])
    with Celery(broker=server.url, set_as_current=False).connection_for_read() as connection:
        received = connection.SimpleQueue("mail").get(block=False)
    assert received.body == body
