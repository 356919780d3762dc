"""The reader of messages in wheel queues: a Message, or an Unreadable with the bytes, the reason and an id of them.

1. Reading raises nothing but MemoryError, which says nothing about the bytes.
2. The headers of a Message are, byte for byte, the headers that Celery sends for the same task without a delay, with
   ``eta`` null. The body is never parsed; protocol 1 keeps its eta in there.
3. A message whose destination is reserved (see ``destinations``) is Unreadable: in a wheel queue it would return
   for ever, and in the others be a command, an event or a result.

As everywhere in kombu, the last of duplicated keys counts, NaN and Infinity pass, and values such as
``{"__type__": …}`` pass untouched. msgspec reads and writes nearly all messages in half the time of Python's own JSON,
which serves the rest, and words what is wrong with bytes that are no JSON. A message is the same by either.
"""

from __future__ import annotations

import json
import sys
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.envelope import HEADER, check
from celery_wheel.broker.sealed import SEALED, MessageSeal
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.values.error_text import Malformed, error_text
from celery_wheel.values.text import text_rule

#: Namespace of the UUIDs made of unreadable bytes.
_UNREADABLE = UUID("5f7c1e0a-7d0c-5c5e-9a55-3f4e1f6f3a10").bytes

#: The most bytes of headers, and of properties, in JSON. Celery's have less than a thousandth of it.
MAX_HEADERS = 2**20
_TOO_LONG = f"headers and properties must each be at most {MAX_HEADERS:,} bytes"

#: A message is kept whole up to so many times the size that is allowed; of a larger one, its beginning: to store a
#: message of 100 MB takes seconds, in which no other is accepted.
KEPT_FACTOR, BEGINNING = 4, 2**16

#: Properties that are not stored: data about one delivery, fields of the envelope, and parts with a place of their own.
_DROPPED = ("application_headers", "body_encoding", "delivery_info", "delivery_tag", "expiration", "priority")
NOT_STORED = frozenset((*_DROPPED, "content_type", "content_encoding"))


class _Queued(msgspec.Struct, forbid_unknown_fields=True):  # of unknown fields, msgspec would not read the values
    """A message as kombu's virtual transports write it."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Any = None
    content_type: str | None = msgspec.field(default=None, name="content-type")
    content_encoding: str | None = msgspec.field(default=None, name="content-encoding")


class _Sized(msgspec.Struct):
    """The parts of a message whose values take a hundred times their bytes in memory; they are not read yet."""

    headers: msgspec.Raw = msgspec.Raw()
    properties: msgspec.Raw = msgspec.Raw()


class _TaskNames(msgspec.Struct):
    task: str
    task_id: str


class _NamedHeaders(msgspec.Struct):
    wheel: _TaskNames


class _Named(msgspec.Struct):
    headers: _NamedHeaders


def _refuse_float(text: str) -> NoReturn:
    raise ValueError(f"Python writes {text} in another way than msgspec")


_decode_queued = msgspec.json.Decoder(_Queued, float_hook=_refuse_float).decode
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=_refuse_float).decode
_decode_sized = msgspec.json.Decoder(_Sized).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_encode = msgspec.json.Encoder().encode
_scan = json.JSONDecoder().raw_decode
_dumps_all = json.JSONEncoder().encode  # kombu's separators: ", " and ": "


@dataclass(frozen=True, slots=True)
class QueuedMessageReader:
    """Reads messages by the rules of one installation."""

    destinations: Destinations = field(default_factory=Destinations)  #: the names that no task may have as its own
    max_message_bytes: int = 2**61  #: a larger message is stored as rejected instead of being parsed
    keep_eta: bool = False  #: whether headers keep their ``eta``
    seal: MessageSeal = field(default_factory=MessageSeal)  #: opens sealed messages

    @property
    def namespace(self) -> str:
        return self.destinations.namespace

    def decode(self, raw: bytes) -> Message | Unreadable:
        """Read a raw message of a kombu virtual transport, in the form that it has in the wheel queue."""
        try:
            return self._read(raw)
        except Exception as error:  # no bytes may stop the loop that reads them
            return unreadable(error, raw, self.max_kept_bytes)

    def _read(self, raw: bytes) -> Message:
        self.check_size(len(raw))
        if len(raw) > MAX_HEADERS:
            _check_headers(raw)
        dumps: Callable[[Any], str] = _dumps
        try:
            queued = _decode_queued(raw)
        except (ValueError, RecursionError):
            queued, dumps = _parse(raw), _dumps_all
        properties = queued.properties
        body = _body(queued.body, properties.get("body_encoding"))
        if type(fields := queued.headers.get(HEADER)) is dict and SEALED in fields:
            return self._opened(fields, body)  # before properties that are not the message's are made
        stored = stored_properties(properties, queued.content_type, queued.content_encoding)
        return self.message(queued.headers, dumps(stored).encode(), body, dumps)

    @property
    def max_kept_bytes(self) -> int:
        """The most bytes of an unreadable message that the store keeps; of a larger one it keeps the beginning."""
        return KEPT_FACTOR * self.max_message_bytes

    def check_size(self, size: int) -> None:
        if size > self.max_message_bytes:
            raise self._too_large(size)

    def _too_large(self, size: int) -> Malformed:
        note = "; the store has only its beginning" if size > self.max_kept_bytes else ""
        return Malformed(f"message must be at most {self.max_message_bytes:,} bytes, not {size:,}{note}")

    def reject_cut(self, size: int, beginning: bytes, end: bytes) -> Unreadable:
        """Return a message above ``max_kept_bytes`` of which an edge has held only two parts.

        Two of the same size with the same parts are one message: the store would keep the same of both.
        """
        of = _name_and_id(b"{" + end[end.find(b'"headers": {') :])  # kombu writes the body before the headers
        return Unreadable(_id_of(b"%d:" % size, beginning, end), error_text(self._too_large(size)), beginning, of)

    def message(
        self,
        headers: dict[str, Any],
        properties: bytes,
        body: bytes,
        dumps: Callable[[Any], str] = _dumps_all,
        is_inner: bool = False,
    ) -> Message:
        """Return a message made of its parts, and remove the envelope from the headers. Raises ValueError.

        ``is_inner``: of a sealed message.
        """
        fields = headers.get(HEADER)
        if type(fields) is not dict:
            raise Malformed(f"header {HEADER!r} must be an envelope, not {type(fields).__name__}")
        if SEALED in fields and not is_inner:
            return self._opened(fields, body)
        one = check(fields)
        if why := self.destinations.misuse(one.exchange, one.routing_key, one.queue):
            raise Malformed(why)
        if "own" in fields:
            headers[HEADER] = fields["own"]
        else:
            del headers[HEADER]
        if not self.keep_eta and "eta" in headers:
            headers["eta"] = None
        return Message(  # by position, which takes a third of the time
            one.id,
            one.task_id,
            one.task,
            one.eta_ms,
            one.created_ms,
            one.exchange,
            one.exchange_type,
            one.routing_key,
            one.queue,
            one.priority,
            one.key,
            one.expires_ms,
            one.queue_expires_ms,
            dumps(headers).encode(),
            properties,
            body,
            one.misfire_ms,
            one.group,
            one.watch,
            one.unique,
            one.on_conflict,
            one.latest_ms,
            one.window_ms,
            one.batch,
        )

    def _opened(self, fields: dict[str, Any], body: bytes) -> Message:
        parts, signed_for = self.seal.open(body, self.max_message_bytes, fields.get("shard"))
        if max(len(parts.headers), len(parts.properties)) > MAX_HEADERS:
            raise Malformed(_TOO_LONG)
        dumps: Callable[[Any], str] = _dumps
        try:
            headers, properties = _decode_object(parts.headers), _decode_object(parts.properties)
        except (ValueError, RecursionError):
            headers, properties, dumps = json.loads(parts.headers), json.loads(parts.properties), _dumps_all
            if type(headers) is not dict or type(properties) is not dict:
                raise Malformed("headers and properties of a sealed message must be objects") from None
        stored = stored_properties(properties, properties.get("content_type"), properties.get("content_encoding"))
        found = self.message(headers, dumps(stored).encode(), parts.body, dumps, is_inner=True)
        if (found.task, found.task_id) != (fields.get("task"), fields.get("task_id")):
            raise Malformed("sealed message must be one message, of the task that its header names")
        found.signed_for, found.signed = signed_for, signed_for is not None
        return found


def read_or_reject(read: Callable[[], Message], raw: Callable[[], bytes], max_kept_bytes: int) -> Message | Unreadable:
    """Return the result of ``read``; where it raises, an Unreadable with the reason and the bytes of ``raw``."""
    try:
        return read()
    except Exception as error:
        return unreadable(error, raw(), max_kept_bytes)


def unreadable(error: Exception, raw: bytes, max_kept_bytes: int) -> Unreadable:
    """Return the bytes with the reason why they are no message; raise a MemoryError, which says nothing about them."""
    if isinstance(error, MemoryError):
        raise error
    kept = raw if len(raw) <= max_kept_bytes else raw[:BEGINNING]
    return Unreadable(_id_of(raw), error_text(error), kept, _name_and_id(raw))


def _id_of(*parts: bytes) -> str:
    digest = sha1(_UNREADABLE, usedforsecurity=False)
    for part in parts:
        digest.update(part)
    return str(UUID(bytes=digest.digest()[:16], version=5))


def _name_and_id(raw: bytes) -> tuple[str, str]:
    """Return the task's name and id as the envelope of a raw message has them; msgspec skips the rest of its bytes."""
    try:
        found = _decode_named(raw).headers.wheel
    except (ValueError, RecursionError):
        return "", ""
    return ("", "") if text_rule(found.task) or text_rule(found.task_id) else (found.task, found.task_id)


def _check_headers(raw: bytes) -> None:
    """Raise Malformed where headers or properties would take seconds to read, before they are read.

    Where msgspec cannot tell, all values of the message are counted, by the characters between them.
    """
    try:
        parts = _decode_sized(raw)
        size = max(len(parts.headers), len(parts.properties))
    except (ValueError, RecursionError):
        size = sum(map(raw.count, (b"[", b"{", b",", b":")))
    if size > MAX_HEADERS:
        raise Malformed(_TOO_LONG)


def _parse(raw: bytes) -> _Queued:
    text = raw.decode().strip()
    try:
        message, end = _scan(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise Malformed(f"numbers must have at most {sys.get_int_max_str_digits():,} digits") from None
    if type(message) is not dict or end != len(text):
        raise Malformed("message must be one JSON object")
    found = _Queued(_object(message, "headers"), _object(message, "properties"), message.get("body"))
    for name in ("content_type", "content_encoding"):
        value = message.get(name.replace("_", "-"))
        if type(value) is not str and value is not None:
            raise Malformed(f"{name} must be text, got {value!r:.60}")
        setattr(found, name, value)
    return found


def _dumps(value: Any) -> str:
    """Return what ``_dumps_all`` returns, for JSON without floats."""
    try:
        text = msgspec.json.format(_encode(value), indent=0).decode()
    except (ValueError, RecursionError):
        return _dumps_all(value)
    return text if text.isascii() and "\x7f" not in text else _dumps_all(value)


def stored_properties(properties: dict[str, Any], content_type: Any, content_encoding: Any) -> dict[str, Any]:
    """Return the properties as the store keeps them: content type and encoding first."""
    stored = {"content_type": None, "content_encoding": None, **properties}
    for name in _DROPPED:
        stored.pop(name, None)
    stored["content_type"], stored["content_encoding"] = content_type, content_encoding
    return stored


def _body(body: Any, encoding: Any) -> bytes:
    if type(body) is dict and len(body) == 2:  # kombu's JSON of bytes where body_encoding is switched off
        kind, body = body.get("__type__"), body.get("__value__")
        encoding = {"base64": "base64", "bytes": None}.get(kind, kind) if type(kind) is str else kind
    if type(body) is not str:
        raise Malformed(f"body must be text, not {type(body).__name__}")
    if encoding == "base64":
        try:
            return msgspec.convert(body, bytes)  # a third of the time of binascii, which words what is wrong
        except ValueError:
            if not body.isascii():
                raise Malformed("body must be base64, which is ASCII") from None
            return a2b_base64(body, strict_mode=True)
    if encoding is None or (type(encoding) is str and encoding.lower() == "utf-8"):
        return body.encode()
    raise Malformed(f"body_encoding must be base64 or utf-8, got {encoding!r:.60}")


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    part = message.get(name)
    if type(part) is not dict:
        raise Malformed(f"{name} must be an object, not {type(part).__name__}")
    return part
