"""The reader of messages in wheel queues. Standard library only.

::

    raw, or its parts  ──►  Message     headers without the envelope, and with eta null
                       └─►  Unreadable  the bytes, a reason for people, an id made of the bytes

Promises

1. Reading raises nothing but MemoryError, which says nothing about the bytes.
2. The headers of a Message are, byte for byte, the headers that Celery sends for the same task without a delay: same
   keys, same order, ``eta`` null. The body is never parsed; protocol 1 keeps its eta in there.
3. A message whose destination is one of the wheel's own queues is Unreadable: it would return for ever.

As everywhere in kombu, the last of duplicated keys counts, and NaN and Infinity pass.
The JSON is plain: values such as ``{"__type__": …}``, which kombu's JSON would decode, pass untouched to the worker.
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from typing import Any
from uuid import UUID

from celery_wheel.broker.envelope import HEADER, Envelope, check, short_repr
from celery_wheel.broker.names import is_own_name
from celery_wheel.store.model import Message, Unreadable

#: Namespace of the UUIDs made of unreadable bytes.
_UNREADABLE = UUID("5f7c1e0a-7d0c-5c5e-9a55-3f4e1f6f3a10").bytes

#: Properties that are not stored: data about one delivery, fields of the envelope, and parts with a place of their own.
NOT_STORED = frozenset(
    [
        "delivery_info",
        "delivery_tag",
        "body_encoding",
        "priority",
        "expiration",
        "content_type",
        "content_encoding",
        "application_headers",
    ]
)

_scan = json.JSONDecoder().raw_decode
_dumps = json.JSONEncoder().encode  # kombu's separators: ", " and ": "

_COPIED = tuple(name for name in Envelope.__slots__ if name != "id")


@dataclass(frozen=True, slots=True)
class QueuedMessageReader:
    """Reads messages by the rules of one installation.

    Args:
        namespace: the first part of the wheel queues' names, which no task may have as its destination.
        max_message_bytes: a larger message is stored as rejected instead of being parsed.
        keep_eta: whether headers keep their ``eta``.
    """

    namespace: str = "wheel"
    max_message_bytes: int = 2**63
    keep_eta: bool = False

    def decode(self, raw: bytes) -> Message | Unreadable:
        """Read a raw message of a kombu virtual transport, in the form that it has in the wheel queue."""

        def read() -> Message:
            self.check_size(raw)
            message = _parse(raw)
            headers, properties = _object(message, "headers"), _object(message, "properties")
            stored = stored_properties(properties, message.get("content-type"), message.get("content-encoding"))
            for name in ("content_type", "content_encoding"):
                if type(stored[name]) is not str and stored[name] is not None:
                    raise ValueError(f"{name} must be text, got {short_repr(stored[name])}")
            body = _body(message.get("body"), properties.get("body_encoding"))
            return self.message(headers, _dumps(stored).encode(), body)

        return read_or_reject(read, lambda: raw)

    def check_size(self, data: bytes) -> None:
        if len(data) > self.max_message_bytes:
            raise ValueError(f"message must be at most {self.max_message_bytes:,} bytes, got {len(data):,}")

    def message(
        self, headers: dict[str, Any], properties: bytes, body: bytes, dumps: Callable[[Any], str] = _dumps
    ) -> Message:
        """Return a message made of its parts, and remove the envelope from the headers. Raises ValueError."""
        fields = headers.get(HEADER)
        if type(fields) is not dict:
            raise ValueError(f"header {HEADER!r} must be an envelope, got {type(fields).__name__}")
        check(fields)
        self._check_destination(fields)
        if "own" in fields:
            headers[HEADER] = fields["own"]
        else:
            del headers[HEADER]
        if not self.keep_eta and "eta" in headers:
            headers["eta"] = None
        copied: dict[str, Any] = {name: fields.get(name) for name in _COPIED}
        return Message(
            envelope_id=fields["id"],
            headers=dumps(headers).encode(),
            properties=properties,
            body=body,
            **copied,
        )

    def _check_destination(self, fields: dict[str, Any]) -> None:
        for name in (fields.get("queue"), "" if fields["exchange"] else fields["routing_key"]):
            if name and is_own_name(self.namespace, name):
                raise ValueError(f"a task's queue must not be one of the wheel's own, got {name!r}")


def read_or_reject(read: Callable[[], Message], raw: Callable[[], bytes]) -> Message | Unreadable:
    """Return the result of ``read``; where it raises, an Unreadable with the reason and the bytes of ``raw``."""
    try:
        return read()
    except RecursionError:
        reason = "JSON must not be nested this deeply"
    except MemoryError:
        raise
    except Exception as error:  # no bytes may stop the loop that reads them
        reason = str(error) or type(error).__name__
    found = raw()
    digest = sha1(_UNREADABLE + found, usedforsecurity=False).digest()
    return Unreadable(envelope_id=str(UUID(bytes=digest[:16], version=5)), reason=reason, raw=found)


def _parse(raw: bytes) -> dict[str, Any]:
    text = raw.decode().strip()
    message, end = _scan(text)
    if type(message) is not dict or end != len(text):
        raise ValueError("message must be one JSON object")
    return message


def stored_properties(properties: dict[str, Any], content_type: Any, content_encoding: Any) -> dict[str, Any]:
    """Return the properties as the store keeps them: content type and encoding first."""
    content = {"content_type": content_type, "content_encoding": content_encoding}
    return content | {name: value for name, value in properties.items() if name not in NOT_STORED}


def _body(body: Any, encoding: Any) -> bytes:
    if type(body) is dict and len(body) == 2:  # kombu's JSON of bytes where body_encoding is switched off
        kind, body = body.get("__type__"), body.get("__value__")
        encoding = {"base64": "base64", "bytes": None}.get(kind, kind) if type(kind) is str else kind
    if type(body) is not str:
        raise ValueError(f"body must be text, got {type(body).__name__}")
    if encoding == "base64":
        return a2b_base64(body, strict_mode=True)
    if encoding is None or (type(encoding) is str and encoding.lower() == "utf-8"):
        return body.encode()
    raise ValueError(f"body_encoding must be base64 or utf-8, got {short_repr(encoding)}")


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    part = message.get(name)
    if type(part) is not dict:
        raise ValueError(f"{name} must be an object, got {type(part).__name__}")
    return part
