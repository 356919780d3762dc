"""Messages, rows and chunks for the tests of broker edges."""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.engine.port import Chunk, RangeChecksum
from celery_wheel.store.model import ORIGIN, PLAIN, Parts, Position, Route, Row, join

SHARD = 3
EPOCH = 7
NOW_MS = 1_800_000_000_000
BIG = 2**30

#: A destination without a queue on any broker, or whose key is no queue.
BROKEN = "broken"


def at(number: int) -> Position:
    return Position(number, number) if number else ORIGIN


def make_row(number: int, queue: str = "mail", **changes: Any) -> Row:
    values: dict[str, Any] = {
        "id": number,
        "lane": 0,
        "due_ms": number,
        "seq": number,
        "eta_ms": number,
        "task": "shop.remind",
        "exchange": "",
        "exchange_type": "direct",
        "routing_key": queue,
        "queue": queue,
        "priority": None,
        "expires_ms": None,
        "queue_expires_ms": None,
        "batch": None,
        "signed": False,
        "headers": b'{"lang": "py", "task": "shop.remind", "id": "task-%d"}' % number,
        "properties": b'{"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2}',
        "body": f"[[{number}], {{}}, {{}}]".encode(),
    }
    values |= changes
    own = [values.pop(name) for name in Route.__slots__]
    parts = [values.pop(name) for name in Parts._fields]
    content = {"size": sum(map(len, parts)), "packed": join(*parts), "packing": PLAIN}
    return Row(**{"misfire_ms": None, **values}, route=Route.make(*own), **content)


def make_chunk(after: int, upto: int, rows: Sequence[Row] | None = None, **changes: Any) -> Chunk:
    """Return the chunk of a lane from one number to another; its rows have those numbers, for queue ``mail``."""
    found = [make_row(n) for n in range(after + 1, upto + 1)] if rows is None else rows
    return chunk_of(at(after), at(upto), found, **changes)


def chunk_of(after: Position, upto: Position, rows: Sequence[Row], **changes: Any) -> Chunk:
    values: dict[str, Any] = {"shard": SHARD, "epoch": EPOCH, "lane": 0, "number": 1, "confirmed": 0}
    values |= {"now_ms": NOW_MS, **changes}
    return Chunk(after=after, upto=upto, rows=rows, **values)


def make_checksum(number: int) -> RangeChecksum:
    return RangeChecksum(at(number), 2, 5)


def wire(number: int, **fields: Any) -> dict[str, Any]:
    """Return a delayed message as a producer sends it to the wheel queue, in the form of kombu's virtual transports."""
    envelope = Envelope(
        **{
            "id": str(UUID(int=number, version=4)),
            "task": "shop.remind",
            "task_id": f"task-{number}",
            "eta_ms": NOW_MS + number,
            "created_ms": NOW_MS,
            "exchange": "",
            "exchange_type": "direct",
            "routing_key": "mail",
            "queue": "mail",
            **fields,
        }
    )
    return {
        "body": b64encode(b"x" * 100).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": "shop.remind", "id": f"task-{number}", "wheel": encode(envelope)},
        "properties": {
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": f"wheel.{SHARD}"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(UUID(int=number, version=4)),
        },
    }


def raw(number: int, **fields: Any) -> bytes:
    return json.dumps(wire(number, **fields)).encode()


def number_of(body: bytes | str) -> int:
    return int(json.loads(body)[0][0])


def number_in(message: bytes | dict[str, Any]) -> int:
    """Return the number of the row, from a message of a virtual transport."""
    found = json.loads(message) if isinstance(message, bytes) else message
    return number_of(b64decode(found["body"]))
