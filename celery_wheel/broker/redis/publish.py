"""A chunk as ``publish.lua`` takes it: the bytes that kombu's Redis transport would push for each row, list by list.

::

    rows 1 2 3 4 5     1, 3, 4 → list a      KEYS  offset  a  b  a a3 a6 a9
                       3 → list b too        ARGV  …  "1,3,4" 3 60000   "3" 1 0   "2" topic message
                       2 → topic                   message message message   message
                       5 → no destination          and, among the first: {"5": "no queue is bound to …"}

Promises: except for the delivery tag, the bytes equal those of Celery 5.7 with kombu 5.7; stored headers and properties
are copied, not parsed. Within a list the order is that of the rows. An expired message is published with expiration
"0", so that the worker records it as REVOKED. Source: ``prepare_message`` and ``_inplace_augment_message`` in kombu 5.7
``transport/virtual/base.py``, ``Producer.publish`` in ``messaging.py``.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_wheel.broker.batches import ids_of, merge
from celery_wheel.broker.errors import UnencodableMessage
from celery_wheel.broker.reader import NOT_STORED
from celery_wheel.broker.redis.routing import RedisRoute, RedisRouter
from celery_wheel.store.model import SEPARATOR, Route, Row, with_header
from celery_wheel.store.schedule_model import SLOT
from celery_wheel.values.error_text import error_text
from celery_wheel.values.ids import dispatch_ids

#: Properties that the row's fields replace, or that have a place of their own.
_REPLACED = NOT_STORED | {"delivery_mode"}

#: kombu's default: the message survives a restart of the broker.
_PERSISTENT = 2

# The bare scanner and encoder: json.loads and json.dumps take three times as long, to check their arguments.
_scan = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder().encode

#: The text after content type and encoding in the stored properties of a Celery message, and their end.
_CORRELATED = b', "correlation_id": '
_PERSISTED = b', "delivery_mode": 2}'

_SLOT = SLOT.encode()


class WireWriter:
    """Writes the messages of one chunk; parts that its rows share are encoded once."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._heads: dict[bytes, bytes] = {}
        self._contents: dict[tuple[str, str], bytes] = {}
        self._tails: dict[Route, bytes] = {}

    def write(self, row: Row, delivery_tag: bytes) -> bytes:
        """Return the bytes of a row's message. Raises UnencodableMessage."""
        try:
            # Not ``row.parts()``: three calls and a named tuple cost more than the unpacking.
            headers, properties, body = row.packing.unpack(row.packed).split(SEPARATOR, 2)
            if row.reports:
                headers = _with_slot(headers, row.id)
        except ValueError as error:
            raise UnencodableMessage(error_text(error)) from error
        content, stored = self._copied(properties) or self._parsed(properties)
        expires_ms, route = row.expires_ms, row.route
        return b"".join(
            (
                b'{"body": "',
                b2a_base64(body, newline=False),
                content,
                headers,
                b', "properties": {',
                stored,
                b"" if expires_ms is None else b'"expiration": "%d", ' % max(0, expires_ms - self._now_ms),
                self._tails.get(route) or self._tail(route),
                delivery_tag,
                b'"}}',
            )
        )

    def _copied(self, properties: bytes) -> tuple[bytes, bytes] | None:
        """Return content and properties without parsing the properties; None unless they are a Celery message's.

        Nearly all are. A quote in a JSON text has a backslash before it, so the text found is the property's name.
        """
        head, found, rest = properties.partition(_CORRELATED)
        if not found or not rest.endswith(_PERSISTED):
            return None
        content = self._heads.get(head)
        if content is None:
            content = self._heads[head] = self._head(head)
        return (content, b"%b%b, " % (_CORRELATED[2:], rest[:-1])) if content else None

    def _head(self, head: bytes) -> bytes:
        """Return the content's text; empty unless content type and encoding, in this order, are the whole head."""
        try:
            found = json.loads(head + b"}")
        except ValueError:
            return b""
        if list(found) != ["content_type", "content_encoding"]:
            return b""
        return self._content((_encode(found["content_encoding"]), _encode(found["content_type"])))

    def _parsed(self, stored: bytes) -> tuple[bytes, bytes]:
        properties = _properties(stored)
        content = _encode(properties.get("content_encoding")), _encode(properties.get("content_type"))
        parts = [f"{_encode(name)}: {_encode(value)}, " for name, value in properties.items() if name not in _REPLACED]
        parts.append(f'"delivery_mode": {_encode(properties.get("delivery_mode", _PERSISTENT))}, ')
        return self._contents.get(content) or self._content(content), "".join(parts).encode()

    def _content(self, content: tuple[str, str]) -> bytes:
        encoding, kind = content
        text = f'", "content-encoding": {encoding}, "content-type": {kind}, "headers": '
        encoded = self._contents[content] = text.encode()
        return encoded

    def _tail(self, route: Route) -> bytes:
        text = (
            f'"delivery_info": {{"exchange": {_encode(route.exchange)}, "routing_key": {_encode(route.routing_key)}}}, '
            f'"priority": {route.priority or 0}, "body_encoding": "base64", "delivery_tag": "'
        )
        encoded = self._tails[route] = text.encode()
        return encoded


def _with_slot(headers: bytes, row_id: int) -> bytes:
    """Return encoded headers with a slot of the row's own, in place of the one that a retry has inherited."""
    if _SLOT not in headers:
        return with_header(headers, SLOT, row_id)
    return _encode({**json.loads(headers), SLOT: row_id}).encode()


def _properties(stored: bytes) -> dict[str, object]:
    try:
        text = stored.decode().strip()
        found, end = _scan(text)
    except ValueError as error:
        raise UnencodableMessage(f"its stored properties are no JSON: {error_text(error)}") from error
    if not isinstance(found, dict) or end != len(text):
        raise UnencodableMessage("its stored properties are no JSON object")
    return found


@dataclass(slots=True)
class _List:
    expires_ms: int = 0  #: the longest x-expires of its rows, to which an expiry is renewed; 0: none
    priorities: tuple[bytes, ...] = ()  #: all lists of a queue that expires
    ids: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class PublishCall:
    """Lists to push to and messages to broadcast; ``failed`` has the rows that fail before Redis is called."""

    lists: dict[bytes, _List] = field(default_factory=dict)
    broadcasts: list[bytes | str] = field(default_factory=list)  #: row id, topic, message, row id, …
    failed: dict[str, str] = field(default_factory=dict)

    def keys(self) -> list[bytes]:
        return [*self.lists, *(key for part in self.lists.values() for key in part.priorities)]

    def arguments(self, counted: int = 0) -> list[bytes | str | int]:
        """Return the arguments from the failed rows on; ``counted`` keys follow those of the call."""
        lists = self.lists.values()
        priorities = max((len(part.priorities) for part in lists), default=0)
        arguments: list[bytes | str | int] = [
            json.dumps(self.failed),
            len(lists),
            priorities,
            len(self.broadcasts) // 3,
            counted,
        ]
        for part in lists:
            arguments += (",".join(part.ids), len(part.ids), part.expires_ms)
        arguments += self.broadcasts
        for part in lists:
            arguments += part.messages
        return arguments


def publish_call(rows: Sequence[Row], router: RedisRouter, now_ms: int) -> PublishCall:
    """Route and encode the rows of a chunk. The ids of the rows of one message are joined by dots."""
    call, rows = PublishCall(), merge(rows)
    routes = router.routes([row.route for row in rows])
    lists = {route: _lists(call, route, own) for route, own in routes.items()}
    write = WireWriter(now_ms).write
    tags = dispatch_ids(now_ms)
    for row in rows:
        row_id, route = ".".join(map(str, ids_of(row))), row.route
        try:
            for part in lists[route]:
                part.messages.append(write(row, next(tags)))
                part.ids.append(row_id)
            topic = routes[route].topic
            if topic is not None:
                call.broadcasts += (row_id, topic, write(row, next(tags)))
            elif not lists[route]:
                call.failed[row_id] = routes[route].refusal
        except UnencodableMessage as error:
            call.failed[row_id] = str(error)
    call.lists = {key: part for key, part in call.lists.items() if part.messages}
    return call


def _lists(call: PublishCall, route: Route, own: RedisRoute) -> list[_List]:
    lists = [call.lists.setdefault(key, _List()) for key in own.lists]
    for key, part in zip(own.lists, lists, strict=True):
        if key in own.expiring:
            part.expires_ms, part.priorities = max(part.expires_ms, route.queue_expires_ms or 0), own.expiring
    return lists
