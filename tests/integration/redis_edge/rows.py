"""Rows, messages and brokers for the tests of the Redis edge."""

from __future__ import annotations

import json
import uuid
from typing import Any

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.store.model import ORIGIN, Message, Position, Row

STORE = "019a0000-0000-7000-8000-000000000001"
NOW_MS = 1_800_000_000_000
EPOCH = 7
SHARD = 3

_PROPERTIES = {"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": "c", "reply_to": "r"}


def make_row(number: int, **changes: Any) -> Row:
    """Row ``number``, due at that millisecond, for queue ``mail``."""
    values: dict[str, Any] = {
        "id": number,
        "lane": 0,
        "due_ms": number,
        "seq": number,
        "eta_ms": number,
        "task": "shop.remind",
        "exchange": "",
        "exchange_type": "direct",
        "routing_key": "mail",
        "queue": "mail",
        "priority": None,
        "expires_ms": None,
        "queue_expires_ms": None,
        "headers": b'{"lang": "py", "task": "shop.remind"}',
        "properties": json.dumps({**_PROPERTIES, "delivery_mode": 2}).encode(),
        "body": f"[[{number}], {{}}, {{}}]".encode(),
    }
    return Row(**{**values, **changes})


def row_of(message: Message, number: int = 1) -> Row:
    """A message as the engine would store it."""
    return Row.of(message, number, 0, number, number)


def at(number: int) -> Position:
    return Position(number, number)


def adopted(broker: RedisBroker, *lanes: int) -> RedisBroker:
    """The broker, holding SHARD at EPOCH with the offsets of these lanes at the origin."""
    broker.adopt(SHARD, EPOCH)
    for lane in lanes or (0,):
        broker.set_offset(SHARD, EPOCH, lane, ORIGIN)
    return broker


def number_of(raw: bytes) -> int:
    """The number of the row of which a pushed message was made."""
    return int(json.loads(body_of(raw))[0][0])


def body_of(raw: bytes) -> bytes:
    import base64

    return base64.b64decode(json.loads(raw)["body"])


def without_tag(raw: bytes) -> bytes:
    """The message with its delivery tag blanked out; asserts that it had one of the form of a UUID4."""
    tag = json.loads(raw)["properties"]["delivery_tag"]
    assert str(uuid.UUID(tag)) == tag
    assert uuid.UUID(tag).version == 4
    return raw.replace(tag.encode(), b"-")
