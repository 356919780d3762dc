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
from itertools import count

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

#: What the stored properties of a Celery message have after content type and encoding, and how they end.
_CORRELATED = b', "correlation_id": '
_PERSISTED = b', "delivery_mode": 2}'


class Unwritable(ValueError):
    """No message can be made of this row; the text says why."""


def delivery_tags() -> Iterator[bytes]:
    """UUID4s in form: a random beginning, then a count. One generator a chunk: after a fork, two processes share none.

    They must be unique among all messages that workers hold: kombu keeps those in one hash by delivery tag.
    """
    digits = os.urandom(9).hex()
    beginning = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-a{digits[15:]}-".encode()
    for number in count(int.from_bytes(os.urandom(5))):
        yield b"%b%012x" % (beginning, number)


class WireWriter:
    """Writes the messages of one chunk; what its rows have in common is encoded once."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._heads: dict[bytes, bytes] = {}
        self._contents: dict[tuple[str, str], bytes] = {}
        self._tails: dict[tuple[str, str, int | None], bytes] = {}

    def write(self, row: Row, delivery_tag: bytes) -> bytes:
        """Raises Unwritable."""
        content, stored = self._copied(row.properties) or self._parsed(row)
        expires_ms, target = row.expires_ms, (row.exchange, row.routing_key, row.priority)
        return b"".join(
            (
                b'{"body": "',
                b2a_base64(row.body, newline=False),
                content,
                row.headers,
                b', "properties": {',
                stored,
                b"" if expires_ms is None else b'"expiration": "%d", ' % max(0, expires_ms - self._now_ms),
                self._tails.get(target) or self._tail(target),
                delivery_tag,
                b'"}}',
            )
        )

    def _copied(self, properties: bytes) -> tuple[bytes, bytes] | None:
        """Without parsing what lies between, if the properties are those of a Celery message: nearly all are.

        A quote within a JSON text has a backslash before it, so what is found outside the head is the property's name.
        """
        head, found, rest = properties.partition(_CORRELATED)
        if not found or not rest.endswith(_PERSISTED):
            return None
        content = self._heads.get(head)
        if content is None:
            content = self._heads[head] = self._head(head)
        return (content, b"%b%b, " % (_CORRELATED[2:], rest[:-1])) if content else None

    def _head(self, head: bytes) -> bytes:
        """Empty if the properties do not begin with the content type and encoding, and nothing else."""
        try:
            found = json.loads(head + b"}")
        except ValueError:
            return b""
        if list(found) != ["content_type", "content_encoding"]:
            return b""
        return self._content((_encode(found["content_encoding"]), _encode(found["content_type"])))

    def _parsed(self, row: Row) -> tuple[bytes, bytes]:
        properties = _properties(row)
        content = _encode(properties.get("content_encoding")), _encode(properties.get("content_type"))
        parts = [f"{_encode(name)}: {_encode(value)}, " for name, value in properties.items() if name not in _OWN]
        parts.append(f'"delivery_mode": {_encode(properties.get("delivery_mode", _PERSISTENT))}, ')
        return self._contents.get(content) or self._content(content), "".join(parts).encode()

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
