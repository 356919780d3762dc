"""Rows, messages and brokers for the tests of the Redis edge."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import redis

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import Published
from celery_wheel.store.model import ORIGIN, Message, Position, Row
from tests.contract.edges.peers import STORE
from tests.kit.chunks import EPOCH, NOW_MS, SHARD, at, chunk_of, make_row
from tests.kit.chunks import number_in as number_of

#: Makes a broker of a server or its URL; see the fixture ``connect``.
Connect = Callable[..., RedisBroker]

__all__ = [
    "EPOCH",
    "NOW_MS",
    "SHARD",
    "STORE",
    "Connect",
    "adopted",
    "at",
    "make_row",
    "number_of",
    "publish_rows",
    "pushed",
    "row_of",
]


def publish_rows(
    broker: RedisBroker, after: Position, upto: Position, rows: Sequence[Row], **changes: Any
) -> Published:
    """Publish a chunk of lane 0 at EPOCH, with the fields in ``changes``."""
    return broker.publish(chunk_of(after, upto, rows, **changes))


def row_of(message: Message, number: int = 1) -> Row:
    """Return a message as the engine would store it."""
    return Row.of(message, number, 0, number, number)


def adopted(broker: RedisBroker, *lanes: int) -> RedisBroker:
    """Return the broker, which then holds SHARD at EPOCH with the offsets of these lanes at the origin."""
    broker.adopt(SHARD, EPOCH)
    for lane in lanes or (0,):
        broker.set_offset(SHARD, EPOCH, lane, ORIGIN)
    return broker


def pushed(client: redis.Redis, queue: str = "mail") -> list[int]:
    """Return the numbers of a queue's rows in the order in which a worker gets them."""
    return [number_of(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def without_tag(raw: bytes) -> bytes:
    """Return the message with its delivery tag blanked out; the tag is a UUID, kombu's own or the wheel's."""
    tag = json.loads(raw)["properties"]["delivery_tag"]
    assert str(uuid.UUID(tag)) == tag
    assert uuid.UUID(tag).version in (4, 7)
    return raw.replace(tag.encode(), b"-")
