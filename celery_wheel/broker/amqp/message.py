"""Conversion between AMQP messages and rows: a worker gets the message that Celery would have sent without a delay.

::

    headers, properties ──kombu's JSON──► bytes ──► the same values: datetimes, Decimals, UUIDs and bytes as well
    priority, expiration                            taken from the row: messages in the wheel queue have neither
    redelivered                                     one header more: wheel_redelivered = true

A message with a value that kombu's JSON cannot represent (AMQP tables have no such type either) is rejected.
"""

from __future__ import annotations

from base64 import b64encode
from math import isfinite
from typing import Any

import amqp
from kombu.utils import json

from celery_wheel.broker.amqp.link import UNREADABLE
from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.broker.reader import Reader, readable
from celery_wheel.store.model import Message, Row, Unreadable

dumps: Any = json.dumps
loads: Any = json.loads

#: Properties that are not kept: the row has them in fields of its own, or they belong to one delivery.
_NOT_KEPT = ("application_headers", "priority", "expiration", "content_type", "content_encoding")

_PERSISTENT = 2

#: Bytes of an exchange's name or a routing key at most.
_MAX_SHORT = 255

#: Numbers in kombu's JSON that AMQP does not allow.
_NOT_FINITE = (b"NaN", b"Infinity")


class Unwritable(ValueError):
    """No message can be made of this row; the text says why."""


def decode(raw: amqp.Message, reader: Reader) -> Message | Unreadable:
    body = bytes(raw.body)
    given: dict[str, Any] = raw.properties

    def read() -> Message:
        reader.check_size(body)
        headers = given.get("application_headers")
        if type(headers) is dict and headers.keys() == {UNREADABLE}:
            raise ValueError("its properties cannot be read: they are no AMQP")
        if type(headers) is not dict:
            raise ValueError(f"headers must be an object, got {type(headers).__name__}")
        kept = {"content_type": given.get("content_type"), "content_encoding": given.get("content_encoding")}
        kept |= {name: value for name, value in given.items() if name not in _NOT_KEPT}
        return reader.message(dict(headers), dumps(kept).encode(), body, dumps)

    return readable(read, lambda: _as_virtual(given, body))


def _as_virtual(properties: dict[str, Any], body: bytes) -> bytes:
    """All there is of a message, in the form of kombu's virtual transports: readable, and it can be sent again."""
    rest = {name: value for name, value in properties.items() if name not in _NOT_KEPT}
    message = {
        "body": b64encode(body).decode(),
        "content-encoding": properties.get("content_encoding"),
        "content-type": properties.get("content_type"),
        "headers": properties.get("application_headers"),
        "properties": {**rest, "body_encoding": "base64"},
    }
    encoded: bytes = dumps(_named(message), default=repr).encode()
    return encoded


def _named(value: Any) -> Any:
    """The same, its names as text: in AMQP they may be any bytes."""
    if isinstance(value, dict):
        return {name.decode("latin-1") if isinstance(name, bytes) else name: _named(one) for name, one in value.items()}
    return [_named(one) for one in value] if isinstance(value, list) else value


class Ready(amqp.Message):  # type: ignore[misc]
    """A message whose properties are encoded at once: a value that AMQP cannot carry fails here, not within a frame."""

    def __init__(self, body: bytes, headers: dict[str, Any], **properties: Any) -> None:
        super().__init__(body, application_headers=headers, **properties)
        self.encoded: bytes = super()._serialize_properties()

    def _serialize_properties(self) -> bytes:
        return self.encoded


def write(row: Row, now_ms: int, redelivered: bool) -> Ready:
    """Raises Unwritable."""
    for name, value in (("exchange", row.exchange), ("routing key", row.routing_key)):
        if len(value.encode()) > _MAX_SHORT:
            raise Unwritable(f"AMQP takes {_MAX_SHORT} bytes of {name}, and this has {len(value.encode())}: {value!r}")
    try:
        headers, properties = loads(row.headers), loads(row.properties)
        if type(headers) is not dict or type(properties) is not dict:
            raise ValueError("they must be objects")
        if any(word in row.headers for word in _NOT_FINITE):
            _check_finite(headers)
        if redelivered:
            headers[REDELIVERED] = True
        properties.setdefault("delivery_mode", _PERSISTENT)
        if row.expires_ms is not None:
            properties["expiration"] = str(max(0, row.expires_ms - now_ms))
        return Ready(row.body, headers, priority=row.priority or 0, **properties)
    except Exception as error:
        raise Unwritable(f"its headers or properties cannot be sent by AMQP: {error}") from error


def _check_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, over which RabbitMQ ends the connection."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"numbers must be finite, got {value}")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(one)
