"""An AMQP message as the store keeps it, and back: what a worker gets is what Celery would have sent without a delay.

::

    headers, properties ──kombu's JSON──► bytes ──► the same values: datetimes, Decimals, UUIDs and bytes as well
    priority, expiration                            the row's own: the wheel queue had neither
    again                                           one header more: wheel_again = true

What kombu's JSON cannot say (a value of a type that AMQP tables do not have either) is no message, and is rejected.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import amqp
from kombu.utils import json

from celery_wheel.broker.envelope import message_of, readable
from celery_wheel.store.model import Message, Row, Unreadable

AGAIN = "wheel_again"

dumps: Any = json.dumps
loads: Any = json.loads

#: The row has its own, or they belong to one delivery.
_NOT_KEPT = ("application_headers", "priority", "expiration", "content_type", "content_encoding")

_PERSISTENT = 2


class Unwritable(ValueError):
    """No message can be made of this row; the text says why."""


def decode(raw: amqp.Message, max_bytes: int, keep_eta: bool) -> Message | Unreadable:
    body = raw.body.encode() if isinstance(raw.body, str) else bytes(raw.body)
    given: dict[str, Any] = raw.properties

    def read() -> Message:
        if len(body) > max_bytes:
            raise ValueError(f"message must be at most {max_bytes:,} bytes, got {len(body):,}")
        headers = given.get("application_headers")
        if type(headers) is not dict:
            raise ValueError(f"headers must be an object, got {type(headers).__name__}")
        kept = {"content_type": given.get("content_type"), "content_encoding": given.get("content_encoding")}
        kept |= {name: value for name, value in given.items() if name not in _NOT_KEPT}
        return message_of(dict(headers), dumps(kept).encode(), body, keep_eta, dumps)

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
    encoded: bytes = dumps(message, default=repr).encode()
    return encoded


def write(row: Row, now_ms: int, again: bool) -> amqp.Message:
    """Raises Unwritable."""
    try:
        headers, properties = loads(row.headers), loads(row.properties)
        if again:
            headers[AGAIN] = True
        properties.setdefault("delivery_mode", _PERSISTENT)
        if row.expires_ms is not None:
            properties["expiration"] = str(max(0, row.expires_ms - now_ms))
        message = amqp.Message(row.body, priority=row.priority or 0, application_headers=headers, **properties)
        message._serialize_properties()  # what AMQP cannot carry fails here, and not in the middle of a frame
    except Exception as error:
        raise Unwritable(f"its headers or properties cannot be sent by AMQP: {error}") from error
    return message
