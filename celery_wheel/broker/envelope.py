"""The envelope: the header that a delayed message carries to the wheel. Standard library only.

::

    producer   headers + {"wheel": encode(Envelope)}  ──►  the shard's wheel queue (one raw message of kombu's)
    scheduler  ``reader`` removes the envelope from the headers and checks it by ``check``

    {"v": 1, "id", "task", "task_id", "eta_ms", "created_ms", "exchange", "exchange_type", "routing_key", "queue",
     "priority", "expires_ms", "queue_expires_ms", "key"}
     "misfire_ms", "watch", "unique", "on_conflict"    options of the call, where it has them
     "own"                                             the task's own header named wheel, where it has one

Promises: the reader reads every envelope that ``encode`` makes, since both call ``check``. Text that a store or a
broker cannot hold is refused here, in the caller's process, and not later in a group commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import KEEP, REJECT, REPLACE
from celery_wheel.values.text import END_OF_TIME_MS, check_text

HEADER = "wheel"

#: A header of a message that a worker holds itself, whatever its eta: the wheel returned it, or ``wheel=False``.
NATIVE = "wheel_native"

#: A header of a message that may be a second copy.
REDELIVERED = "wheel_redelivered"

VERSION = 1

#: Keys that one message may watch at most.
MAX_WATCHED = 16

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


@dataclass(slots=True)
class Envelope:
    """The wheel's data about a delayed message. Instants are UTC epoch milliseconds."""

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

#: Fields that ``encode`` omits where they are None, which they nearly always are.
_RARE = frozenset(("misfire_ms", "watch", "unique", "on_conflict"))


def encode(envelope: Envelope, own: Any = None) -> dict[str, Any]:
    """Return the header's value; ``own`` is the task's own header of that name. Raises ValueError."""
    fields: dict[str, Any] = {"v": VERSION}
    for name in _FIELDS:  # asdict would copy every value, and take ten times as long
        value = getattr(envelope, name)
        if value is not None or name not in _RARE:
            fields[name] = value
    check(fields)
    if own is not None:
        fields["own"] = own
    return fields


def check(fields: dict[str, Any]) -> None:
    """Raise ValueError for fields that no envelope may have; both ``encode`` and the reader call this."""
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise ValueError(
            f"envelope version must be {VERSION}, got {short_repr(version)}; a newer producer needs a newer scheduler"
        )
    _uuid(fields.get("id"))
    check_text("task", fields.get("task"))
    check_text("task_id", fields.get("task_id"))
    exchange = check_text("exchange", fields.get("exchange"), 0)
    check_text("exchange_type", fields.get("exchange_type"))
    check_text("routing_key", fields.get("routing_key"), 0 if exchange else 1)
    if fields.get("queue") is not None:
        check_text("queue", fields["queue"])
    if fields.get("key") is not None:
        check_text("key", fields["key"])
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
            raise ValueError(f"watch must be a list of 1 to {MAX_WATCHED} keys, got {short_repr(watch)}")
        for key in watch:
            check_text("watch", key)
    if fields.get("unique") is not None:
        check_text("unique", fields["unique"])
    if fields.get("on_conflict") not in (None, KEEP, REPLACE, REJECT):
        raise ValueError(f"on_conflict must be {KEEP}, {REPLACE} or {REJECT}, got {short_repr(fields['on_conflict'])}")


def _uuid(value: Any) -> None:
    if type(value) is not str or not _UUID(value):
        raise ValueError(f"id must be a UUID in its 36 characters, got {short_repr(value)}")


def _instant(fields: dict[str, Any], name: str) -> None:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < END_OF_TIME_MS:
        raise ValueError(f"{name} must be milliseconds from 1970 to the end of 9998, got {short_repr(value)}")


def _number(fields: dict[str, Any], name: str, at_most: int) -> None:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= at_most:
        raise ValueError(f"{name} must be a whole number from 0 to {at_most:,}, got {short_repr(value)}")


def short_repr(value: Any) -> str:
    """Return the beginning of a value's repr, for an error."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
