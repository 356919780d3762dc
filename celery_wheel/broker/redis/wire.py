"""A stored row as the bytes that kombu's Redis transport would have pushed for it.

::

    {"body": "<base64>", "content-encoding": …, "content-type": …, "headers": <as stored>,
     "properties": {<correlation_id, reply_to, … as stored>, "delivery_mode": 2, "expiration": "30000",
                    "delivery_info": {"exchange": …, "routing_key": …}, "priority": 0,
                    "body_encoding": "base64", "delivery_tag": "<a new UUID4>"}}

Promises: byte for byte what Celery 5.7 with kombu 5.7 writes, but for the delivery tag, as long as the stored
headers and property values are as kombu's JSON encoder makes them. The body is never looked into and the headers
are copied, not parsed. ``expiration`` is what is left until the row's ``expires_ms``: an expired message is
published all the same, as "0", so that the worker does its REVOKED bookkeeping.

The body is always base64, kombu's default, whatever ``body_encoding`` says in the transport options: consumers
go by the message's own property.

Source: ``prepare_message`` and ``_inplace_augment_message`` in kombu 5.7 ``transport/virtual/base.py``,
``Producer.publish`` in ``messaging.py``.
"""

from __future__ import annotations

import json
import os
from binascii import b2a_base64
from collections.abc import Iterator

from celery_wheel.store.model import Row

#: What is written here from the row itself, or at a place of its own.
_OWN = frozenset(
    {
        "content_type",
        "content_encoding",
        "delivery_mode",
        "expiration",
        "delivery_info",
        "priority",
        "body_encoding",
        "delivery_tag",
    }
)

#: kombu's default: the message survives a restart of the broker.
_PERSISTENT = 2

# The bare scanner and encoder: json.loads and json.dumps spend three times as long on looking at their arguments.
_scan = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder().encode

_TAGS_AT_ONCE = 256


class Unwritable(ValueError):
    """No message can be made of this row; the text says why."""


def delivery_tags() -> Iterator[bytes]:
    """UUID4s, from blocks of randomness. One generator a chunk: after a fork, two processes share none.

    They must be unique among all messages that workers hold: kombu keeps those in one hash by delivery tag.
    """
    while True:
        digits = os.urandom(16 * _TAGS_AT_ONCE).hex()
        for at in range(0, len(digits), 32):
            d = digits[at : at + 32]
            yield f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{'89ab'[int(d[16], 16) & 3]}{d[17:20]}-{d[20:]}".encode()


class WireWriter:
    """Writes the messages of one chunk; what its rows have in common is encoded once."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._contents: dict[tuple[str, str], bytes] = {}
        self._tails: dict[tuple[str, str, int | None], bytes] = {}

    def write(self, row: Row, delivery_tag: bytes) -> bytes:
        """Raises Unwritable."""
        properties = _properties(row)
        content = _encode(properties.get("content_encoding")), _encode(properties.get("content_type"))
        target = row.exchange, row.routing_key, row.priority
        return b"".join(
            (
                b'{"body": "',
                b2a_base64(row.body, newline=False),
                self._contents.get(content) or self._content(content),
                row.headers,
                self._stored(row, properties).encode(),
                self._tails.get(target) or self._tail(target),
                delivery_tag,
                b'"}}',
            )
        )

    def _stored(self, row: Row, properties: dict[str, object]) -> str:
        parts = [', "properties": {']
        for name, value in properties.items():
            if name not in _OWN:
                parts.append(f"{_encode(name)}: {_encode(value)}, ")
        parts.append(f'"delivery_mode": {_encode(properties.get("delivery_mode", _PERSISTENT))}, ')
        if row.expires_ms is not None:
            parts.append(f'"expiration": "{max(0, row.expires_ms - self._now_ms)}", ')
        return "".join(parts)

    def _content(self, content: tuple[str, str]) -> bytes:
        encoding, kind = content
        text = f'", "content-encoding": {encoding}, "content-type": {kind}, "headers": '
        encoded = self._contents[content] = text.encode()
        return encoded

    def _tail(self, target: tuple[str, str, int | None]) -> bytes:
        exchange, routing_key, priority = target
        text = (
            f'"delivery_info": {{"exchange": {_encode(exchange)}, "routing_key": {_encode(routing_key)}}}, '
            f'"priority": {priority or 0}, "body_encoding": "base64", "delivery_tag": "'
        )
        encoded = self._tails[target] = text.encode()
        return encoded


def _properties(row: Row) -> dict[str, object]:
    try:
        text = row.properties.decode().strip()
        found, end = _scan(text)
    except ValueError as error:
        raise Unwritable(f"its stored properties are no JSON: {error}") from error
    if not isinstance(found, dict) or end != len(text):
        raise Unwritable("its stored properties are no JSON object")
    return found
