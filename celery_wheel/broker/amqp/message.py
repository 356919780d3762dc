"""Conversion between AMQP messages and rows: a worker gets the message that Celery would have sent without a delay.

::

    headers, properties ──kombu's JSON──► bytes ──► the same values: datetimes, Decimals, UUIDs and bytes as well
    priority, expiration                            fields of the row: messages in the wheel queue have neither
    redelivered                                     an additional header: wheel_redelivered = true

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
from celery_wheel.broker.errors import UnencodableMessage
from celery_wheel.broker.reader import NOT_STORED, QueuedMessageReader, read_or_reject, stored_properties
from celery_wheel.store.model import Message, Row, Unreadable

_dumps: Any = json.dumps
_loads: Any = json.loads

_PERSISTENT = 2

#: Longest name of an exchange or routing key, in bytes.
_MAX_NAME_BYTES = 255

#: Numbers in kombu's JSON that AMQP does not allow.
_NOT_FINITE = (b"NaN", b"Infinity")


def decode(raw: amqp.Message, reader: QueuedMessageReader) -> Message | Unreadable:
    """Read a delivery of the wheel queue."""
    body = bytes(raw.body)
    properties: dict[str, Any] = raw.properties

    def read() -> Message:
        reader.check_size(body)
        headers = properties.get("application_headers")
        if type(headers) is not dict:
            raise ValueError(f"headers must be an object, got {type(headers).__name__}")
        if headers.keys() == {UNREADABLE}:
            raise ValueError("its properties cannot be read: they are no AMQP")
        stored = stored_properties(properties, properties.get("content_type"), properties.get("content_encoding"))
        return reader.message(dict(headers), _dumps(stored).encode(), body, _dumps)

    return read_or_reject(read, lambda: _as_virtual(properties, body))


def _as_virtual(properties: dict[str, Any], body: bytes) -> bytes:
    """Return the whole message in the form of kombu's virtual transports, which can be read and sent again."""
    rest = {name: value for name, value in properties.items() if name not in NOT_STORED}
    message = {
        "body": b64encode(body).decode(),
        "content-encoding": properties.get("content_encoding"),
        "content-type": properties.get("content_type"),
        "headers": properties.get("application_headers"),
        "properties": {**rest, "body_encoding": "base64"},
    }
    encoded: bytes = _dumps(_with_text_names(message), default=repr).encode()
    return encoded


def _with_text_names(value: Any) -> Any:
    """Return a copy whose names are text: in AMQP they may be any bytes."""
    if isinstance(value, dict):
        return {
            name.decode("latin-1") if isinstance(name, bytes) else name: _with_text_names(item)
            for name, item in value.items()
        }
    return [_with_text_names(item) for item in value] if isinstance(value, list) else value


class EncodedMessage(amqp.Message):  # type: ignore[misc]
    """A message whose properties are encoded at once: a value that AMQP cannot carry fails here, not within a frame."""

    def __init__(self, body: bytes, headers: dict[str, Any], **properties: Any) -> None:
        super().__init__(body, application_headers=headers, **properties)
        self.encoded: bytes = super()._serialize_properties()

    def _serialize_properties(self) -> bytes:
        return self.encoded


def encode(row: Row, now_ms: int, redelivered: bool) -> EncodedMessage:
    """Return the message of a row. Raises UnencodableMessage."""
    for name, value in (("exchange", row.route.exchange), ("routing key", row.route.routing_key)):
        if (size := len(value.encode())) > _MAX_NAME_BYTES:
            raise UnencodableMessage(f"{name} must be at most {_MAX_NAME_BYTES} bytes in AMQP, got {size}: {value!r}")
    try:
        parts = row.parts()
        headers, properties = _loads(parts.headers), _loads(parts.properties)
        if type(headers) is not dict or type(properties) is not dict:
            raise ValueError("they must be objects")
        if any(word in parts.headers for word in _NOT_FINITE):
            _check_finite(headers)
        if redelivered:
            headers[REDELIVERED] = True
        properties.setdefault("delivery_mode", _PERSISTENT)
        if row.expires_ms is not None:
            properties["expiration"] = str(max(0, row.expires_ms - now_ms))
        return EncodedMessage(parts.body, headers, priority=row.route.priority or 0, **properties)
    except Exception as error:
        raise UnencodableMessage(f"its headers or properties cannot be sent by AMQP: {error}") from error


def _check_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, over which RabbitMQ ends the connection."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"numbers must be finite, got {value}")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)
