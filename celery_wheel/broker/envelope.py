"""The envelope: what a delayed message carries to the wheel, and how it is read there. Standard library only.

::

    producer   headers + {"wheel": encode(Envelope)}  ──►  the shard's wheel queue (one raw message of kombu's)
    scheduler  decode(raw)  ──►  Message     headers without the envelope, and with eta null
                            └─►  Unreadable  the bytes, a reason for people, an id made of the bytes

    {"v": 1, "id", "task", "task_id", "eta_ms", "created_ms", "exchange", "exchange_type", "routing_key", "queue",
     "priority", "expires_ms", "queue_expires_ms", "key"}
     "misfire_ms", "watch", "unique", "on_conflict"    where the call asked for them
     "own"                                             a header called wheel that the task had itself

Promises

1. What ``encode`` takes, ``decode`` reads. Both ask the same of every field.
2. ``decode`` raises nothing but MemoryError, which says nothing about the bytes.
3. The headers of a Message are, byte for byte, what Celery would have sent for the same task without a delay:
   same keys, same order, ``eta`` null. The body is never looked into; protocol 1 keeps its eta in there.
4. Text that a store or a broker could not take (lone surrogates, NUL, too long) is refused here, where there is
   a place for it, and not later inside a group commit.

As everywhere in kombu, the last of a duplicated key counts, and NaN and Infinity pass.
Plain JSON, not kombu's: its ``{"__type__": …}`` values are for the worker to build, here they pass untouched.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from typing import Any
from uuid import UUID

from celery_wheel.store.model import KEEP, REJECT, REPLACE, Message, Unreadable

HEADER = "wheel"

#: A header of a message that workers are to hold themselves, whatever its eta: the wheel has had it, or shall not.
NATIVE = "wheel_native"

#: A header of a message that may be in its queue a second time.
REDELIVERED = "wheel_redelivered"

VERSION = 1

#: The first instant that no eta may reach: 1 January 9999. A later one overflows a date in some time zone.
END_OF_TIME_MS = 253_370_764_800_000

#: Names and ids: in characters, and in bytes as UTF-8. Two of them, a queue and a task, stand in one row of an index,
#: and PostgreSQL takes 2,704 bytes there.
MAX_TEXT, MAX_TEXT_BYTES = 512, 1_024

#: Keys that one message may watch.
MAX_WATCHED = 16

#: Namespace of the ids that are made of unreadable bytes.
_UNREADABLE = UUID("5f7c1e0a-7d0c-5c5e-9a55-3f4e1f6f3a10").bytes

#: kombu's own bookkeeping of one delivery, and what the envelope carries in its own form.
_NOT_KEPT = ("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration")

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
_scan = json.JSONDecoder().raw_decode
_dumps = json.JSONEncoder().encode  # kombu's separators: ", " and ": "


@dataclass(slots=True)
class Envelope:
    """What is known of a delayed message beside the message. Instants are UTC epoch milliseconds."""

    id: str
    task: str
    task_id: str
    eta_ms: int
    created_ms: int
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None = None
    priority: int | None = None
    expires_ms: int | None = None
    queue_expires_ms: int | None = None
    key: str | None = None
    misfire_ms: int | None = None
    watch: list[str] | None = None
    unique: str | None = None
    on_conflict: str | None = None


_FIELDS = Envelope.__slots__

#: Left out where nobody asked for them, which is nearly always.
_RARE = frozenset(("misfire_ms", "watch", "unique", "on_conflict"))


def encode(envelope: Envelope, own: Any = None) -> dict[str, Any]:
    """The header's value. ``own`` is what the task itself had put there. Raises ValueError."""
    fields: dict[str, Any] = {"v": VERSION}
    for name in _FIELDS:  # asdict would copy every value, and take ten times as long
        value = getattr(envelope, name)
        if value is not None or name not in _RARE:
            fields[name] = value
    _check(fields)
    if own is not None:
        fields["own"] = own
    return fields


def decode(raw: bytes, max_bytes: int, keep_eta: bool = False) -> Message | Unreadable:
    """One raw message of a kombu virtual transport, as it lies in the wheel queue."""

    def read() -> Message:
        if len(raw) > max_bytes:
            raise ValueError(f"message must be at most {max_bytes:,} bytes, got {len(raw):,}")
        message = _parse(raw)
        headers, properties = _part(message, "headers", dict), _part(message, "properties", dict)
        kept = _properties(message, properties)
        body = _body(message.get("body"), properties.get("body_encoding"))
        return message_of(headers, kept, body, keep_eta)

    return readable(read, lambda: raw)


def readable(read: Callable[[], Message], raw: Callable[[], bytes]) -> Message | Unreadable:
    """What ``read`` makes of a message, or the reason why it makes nothing, with its bytes."""
    try:
        return read()
    except RecursionError:
        reason = "JSON must not be nested this deeply"
    except MemoryError:
        raise
    except Exception as error:  # whatever these bytes do, they must not stop the loop that reads them
        reason = str(error) or type(error).__name__
    found = raw()
    digest = sha1(_UNREADABLE + found, usedforsecurity=False).digest()
    return Unreadable(envelope_id=str(UUID(bytes=digest[:16], version=5)), reason=reason, raw=found)


def message_of(
    headers: dict[str, Any],
    properties: bytes,
    body: bytes,
    keep_eta: bool = False,
    dumps: Callable[[Any], str] = _dumps,
) -> Message:
    """A message from its parts, its envelope taken out of the headers. Raises ValueError."""
    fields = headers.get(HEADER)
    if type(fields) is not dict:
        raise ValueError(f"header {HEADER!r} must be an envelope, got {type(fields).__name__}")
    _check(fields)
    if "own" in fields:
        headers[HEADER] = fields["own"]
    else:
        del headers[HEADER]
    if not keep_eta and "eta" in headers:
        headers["eta"] = None
    return Message(
        envelope_id=fields["id"],
        task_id=fields["task_id"],
        task=fields["task"],
        eta_ms=fields["eta_ms"],
        created_ms=fields["created_ms"],
        exchange=fields["exchange"],
        exchange_type=fields["exchange_type"],
        routing_key=fields["routing_key"],
        queue=fields.get("queue"),
        priority=fields.get("priority"),
        key=fields.get("key"),
        expires_ms=fields.get("expires_ms"),
        queue_expires_ms=fields.get("queue_expires_ms"),
        headers=dumps(headers).encode(),
        properties=properties,
        body=body,
        misfire_ms=fields.get("misfire_ms"),
        watch=fields.get("watch"),
        unique=fields.get("unique"),
        on_conflict=fields.get("on_conflict"),
    )


def _parse(raw: bytes) -> dict[str, Any]:
    text = raw.decode().strip()
    message, end = _scan(text)
    if type(message) is not dict or end != len(text):
        raise ValueError("message must be one JSON object")
    return message


def _properties(message: dict[str, Any], properties: dict[str, Any]) -> bytes:
    kept = {"content_type": message.get("content-type"), "content_encoding": message.get("content-encoding")}
    for name, value in kept.items():
        if type(value) is not str and value is not None:
            raise ValueError(f"{name} must be text, got {_shown(value)}")
    for name, value in properties.items():
        if name not in _NOT_KEPT and name not in kept:
            kept[name] = value
    return _dumps(kept).encode()


def _body(body: Any, encoding: Any) -> bytes:
    if type(body) is dict and len(body) == 2:  # how kombu's JSON writes bytes where body_encoding is switched off
        kind, body = body.get("__type__"), body.get("__value__")
        encoding = {"base64": "base64", "bytes": None}.get(kind, kind) if type(kind) is str else kind
    if type(body) is not str:
        raise ValueError(f"body must be text, got {type(body).__name__}")
    if encoding == "base64":
        return a2b_base64(body, strict_mode=True)
    if encoding is None or (type(encoding) is str and encoding.lower() == "utf-8"):
        return body.encode()
    raise ValueError(f"body_encoding must be base64 or utf-8, got {_shown(encoding)}")


def _part(message: dict[str, Any], name: str, kind: type) -> Any:
    part = message.get(name)
    if type(part) is not kind:
        raise ValueError(f"{name} must be an object, got {type(part).__name__}")
    return part


# ---- what is asked of an envelope, by its writer and by its reader


def _check(fields: dict[str, Any]) -> None:
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise ValueError(
            f"envelope version must be {VERSION}, got {_shown(version)}; a newer producer needs a newer scheduler"
        )
    _uuid(fields.get("id"))
    _text(fields, "task", 1)
    _text(fields, "task_id", 1)
    _text(fields, "exchange", 0)
    _text(fields, "exchange_type", 1)
    _text(fields, "routing_key", 0 if fields["exchange"] else 1)
    if fields.get("queue") is not None:
        _text(fields, "queue", 1)
    if fields.get("key") is not None:
        _text(fields, "key", 1)
    _instant(fields, "eta_ms")
    _instant(fields, "created_ms")
    if fields.get("expires_ms") is not None:
        _instant(fields, "expires_ms")
    if fields.get("queue_expires_ms") is not None:
        _number(fields, "queue_expires_ms", 2**63 - 1)
    if fields.get("priority") is not None:
        _number(fields, "priority", 255)
    if not _RARE.isdisjoint(fields):
        _check_rare(fields)


def _check_rare(fields: dict[str, Any]) -> None:
    if fields.get("misfire_ms") is not None:
        _number(fields, "misfire_ms", END_OF_TIME_MS)
    watch = fields.get("watch")
    if watch is not None:
        if type(watch) is not list or not 0 < len(watch) <= MAX_WATCHED:
            raise ValueError(f"watch must be a list of 1 to {MAX_WATCHED} keys, got {_shown(watch)}")
        for key in watch:
            _text({"watch": key}, "watch", 1)
    if fields.get("unique") is not None:
        _text(fields, "unique", 1)
    if fields.get("on_conflict") not in (None, KEEP, REPLACE, REJECT):
        raise ValueError(f"on_conflict must be {KEEP}, {REPLACE} or {REJECT}, got {_shown(fields['on_conflict'])}")


def _uuid(value: Any) -> None:
    if type(value) is not str or not _UUID(value):
        raise ValueError(f"id must be a UUID in its 36 characters, got {_shown(value)}")


def _text(fields: dict[str, Any], name: str, at_least: int) -> None:
    value = fields.get(name)
    if type(value) is not str or not at_least <= len(value) <= MAX_TEXT:
        raise ValueError(f"{name} must be a text of {at_least} to {MAX_TEXT} characters, got {_shown(value)}")
    if "\0" in value:
        raise ValueError(f"{name} must be without NUL characters, got {_shown(value)}")
    if not value.isascii():
        size = len(value.encode())  # a lone surrogate is a UnicodeEncodeError, and that a ValueError
        if size > MAX_TEXT_BYTES:
            raise ValueError(f"{name} must be at most {MAX_TEXT_BYTES:,} bytes as UTF-8, got {size:,}: {_shown(value)}")


def _instant(fields: dict[str, Any], name: str) -> None:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < END_OF_TIME_MS:
        raise ValueError(f"{name} must be milliseconds from 1970 to the end of 9998, got {_shown(value)}")


def _number(fields: dict[str, Any], name: str, at_most: int) -> None:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= at_most:
        raise ValueError(f"{name} must be a whole number from 0 to {at_most:,}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """A value as an error shows it: its beginning."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
