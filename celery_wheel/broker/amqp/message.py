"""Conversion between AMQP messages and rows: a worker gets the message that Celery would have sent without a delay.

Headers and properties are kept as kombu's JSON, with datetimes, Decimals, UUIDs and bytes. Priority and expiration are
fields of the row: messages in the wheel queue have neither. A message with a value that kombu's JSON cannot represent
(AMQP tables have no such type either) is rejected.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from json import JSONDecoder
from math import isfinite
from typing import Any, NamedTuple

from kombu.utils import json

from celery_wheel.broker.amqp.frames import RawMessage, encode_properties, publish_method
from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.broker.errors import UnencodableMessage
from celery_wheel.broker.reader import NOT_STORED, QueuedMessageReader, read_or_reject, stored_properties
from celery_wheel.store.model import Message, Row, Unreadable

_dumps_any: Any = json.dumps
_loads_typed: Any = json.loads
_dumps = json.JSONEncoder().encode
_decode_json = JSONDecoder().decode
#: Marks a value that kombu's JSON reads as an object of Python.
_TYPED = b"__type__"

_PERSISTENT = 2

#: The header that has the bytes of properties that cannot be read.
UNREADABLE = "unreadable"

#: Longest name of an exchange or routing key, in bytes.
_MAX_NAME_BYTES = 255

#: Numbers in kombu's JSON that AMQP does not allow.
_NOT_FINITE = (b"NaN", b"Infinity")


def decode(raw: RawMessage, reader: QueuedMessageReader) -> Message | Unreadable:
    """Read a delivery of the wheel queue."""
    properties: dict[str, Any] = {"application_headers": {UNREADABLE: raw.encoded}}

    def read() -> Message:
        nonlocal properties
        try:
            properties = raw.decode_properties()
        except Exception as error:
            raise ValueError("its properties cannot be read: they are no AMQP") from error
        reader.check_size(raw.body)
        headers = properties.get("application_headers")
        if type(headers) is not dict:
            raise ValueError(f"headers must be an object, got {type(headers).__name__}")
        stored = stored_properties(properties, properties.get("content_type"), properties.get("content_encoding"))
        return reader.message(dict(headers), _dumps(stored).encode(), raw.body, _dumps)

    return read_or_reject(read, lambda: _as_virtual(properties, raw.body))


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
    encoded: bytes = _dumps_any(_with_text_names(message), default=repr).encode()
    return encoded


def _with_text_names(value: Any) -> Any:
    """Return a copy whose names are text: in AMQP they may be any bytes."""
    if isinstance(value, dict):
        return {
            name.decode("latin-1") if isinstance(name, bytes) else name: _with_text_names(item)
            for name, item in value.items()
        }
    return [_with_text_names(item) for item in value] if isinstance(value, list) else value


class EncodedMessage(NamedTuple):
    """A message whose values are encoded at once: a value that AMQP cannot carry fails here, not within a frame."""

    exchange: str
    routing_key: str
    method: bytes
    properties: bytes
    body: bytes
    is_checked: bool  #: the server checks one of its properties or headers, and may close the channel over it


def encode(row: Row, now_ms: int, redelivered: bool, message_id: str) -> EncodedMessage:
    """Return the message of a row. Raises UnencodableMessage."""
    address = row.route.exchange, row.route.routing_key
    method = _method(*address)
    try:
        encoded_headers, encoded_properties, body = row.parts()
        headers, properties = _loads(encoded_headers), _loads(encoded_properties)
        if type(headers) is not dict or type(properties) is not dict:
            raise ValueError("they must be objects")
        if any(word in encoded_headers for word in _NOT_FINITE):
            _check_finite(headers)
        if redelivered:
            headers[REDELIVERED] = True
        properties.setdefault("delivery_mode", _PERSISTENT)
        properties.setdefault("message_id", message_id)
        if row.expires_ms is not None:
            properties["expiration"] = str(max(0, row.expires_ms - now_ms))
        properties["priority"], properties["application_headers"] = row.route.priority or 0, headers
        is_checked = "user_id" in properties or "CC" in headers or "BCC" in headers
        return EncodedMessage(*address, method, encode_properties(properties), body, is_checked)
    except Exception as error:
        raise UnencodableMessage(f"its headers or properties cannot be sent by AMQP: {error}") from error


@lru_cache(1_024)
def _method(exchange: str, routing_key: str) -> bytes:
    for name, value in (("exchange", exchange), ("routing key", routing_key)):
        if (size := len(value.encode())) > _MAX_NAME_BYTES:
            raise UnencodableMessage(f"{name} must be at most {_MAX_NAME_BYTES} bytes in AMQP, got {size}: {value!r}")
    return publish_method(exchange, routing_key)


def _loads(data: bytes) -> Any:
    """Read JSON as kombu does, whose function calls another one for each object to find types of its own."""
    return _loads_typed(data) if _TYPED in data else _decode_json(data.decode())


def _check_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, over which RabbitMQ ends the connection."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"numbers must be finite, got {value}")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)
