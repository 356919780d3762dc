"""The envelope: the header that a delayed message carries to the wheel. docs/wire-format.md has its fields.

Promises: the reader reads every envelope that ``encode`` makes, since both call ``check``. Text that a store or a
broker cannot hold is refused here, in the caller's process. msgspec checks the fields by their types.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from celery_wheel.store.model import FOLLOW, KEEP, REJECT, REPLACE
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.text import END_OF_TIME_MS, MAX_TEXT, check_group, check_text

HEADER = "wheel"

#: A header of a message that a worker holds itself, whatever its eta: the wheel returned it, or ``wheel=False``.
NATIVE = "wheel_native"

#: A header of a message that may be a second copy.
REDELIVERED = "wheel_redelivered"

#: A header with the group of the task, which tasks sent from within it inherit.
GROUP = "wheel_group"

VERSION = 1

#: A header with the name of the batch to which the call belongs. In a message for the worker: the number of its calls.
BATCH = "wheel_batch"

#: Calls that one message of a batch has at most.
MAX_BATCH = 10_000

#: Keys that one message may watch at most.
MAX_WATCHED = 16

_Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_TextOrEmpty = Annotated[str, Meta(max_length=MAX_TEXT)]
_Instant = Annotated[int, Meta(ge=0, lt=END_OF_TIME_MS)]
_Duration = Annotated[int, Meta(ge=0, le=END_OF_TIME_MS)]
_Priority = Annotated[int, Meta(ge=0, le=255)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
_Keys = Annotated[list[_Text], Meta(min_length=1, max_length=MAX_WATCHED)]
_Rule = Annotated[str, Meta(pattern=rf"^({KEEP}|{REPLACE}|{REJECT}|{FOLLOW})\Z")]


class Envelope(msgspec.Struct):
    """The wheel's data about a delayed message. docs/wire-format.md has the descriptions."""

    id: Annotated[str, Meta(description="id of the message, a UUIDv7: a message that is accepted twice is one")]
    task: Annotated[_Text, Meta(description="name of the task")]
    task_id: Annotated[_Text, Meta(description="Celery's task id")]
    eta_ms: Annotated[_Instant, Meta(description="requested time; Unix milliseconds, rounded up")]
    created_ms: Annotated[_Instant, Meta(description="time of sending; Unix milliseconds")]
    exchange: Annotated[_TextOrEmpty, Meta(description="exchange to publish to; empty: the default exchange")]
    exchange_type: Annotated[_Text, Meta(description="`direct`, `topic`, `fanout` or another")]
    routing_key: Annotated[_TextOrEmpty, Meta(description="routing key to publish with")]
    queue: Annotated[_Text | None, Meta(description="the task's own queue, where the producer named one")] = None
    priority: Annotated[_Priority | None, Meta(description="AMQP priority")] = None
    expires_ms: Annotated[_Instant | None, Meta(description="the task's own `expires`; Unix milliseconds")] = None
    queue_expires_ms: Annotated[
        _Count | None, Meta(description="`x-expires` of the queue, to which Redis renews an expiry; milliseconds")
    ] = None
    key: Annotated[_Text | None, Meta(description="option `key`: it chooses the shard")] = None
    misfire_ms: Annotated[
        _Duration | None, Meta(description="option `misfire`: the message expires when found later; milliseconds")
    ] = None
    watch: Annotated[_Keys | None, Meta(description="option `watch`: keys that complete the task")] = None
    unique: Annotated[_Text | None, Meta(description="option `unique`: the name of which one task is pending")] = None
    on_conflict: Annotated[_Rule | None, Meta(description="option `on_conflict`: the rule for a second one")] = None
    group: Annotated[_Text | None, Meta(description="option `group`; `key` is the same text")] = None
    latest_ms: Annotated[
        _Instant | None, Meta(description="a task that replaces this one is due by then; Unix milliseconds")
    ] = None
    window_ms: Annotated[
        _Duration | None, Meta(description="option `window`: `unique` stays taken after the eta; milliseconds")
    ] = None
    batch: Annotated[
        _Batch | None, Meta(description="option `size`: `unique` is the name of a batch, of up to so many calls")
    ] = None


_FIELDS = Envelope.__struct_fields__

_INSTANT = "milliseconds from 1970 to the end of 9998"

#: The rules of fields that hold no single text, to complete "must be …".
_RULES = {
    "eta_ms": _INSTANT,
    "created_ms": _INSTANT,
    "expires_ms": _INSTANT,
    "queue_expires_ms": f"a whole number from 0 to {2**63 - 1:,}",
    "priority": "a whole number from 0 to 255",
    "misfire_ms": f"a whole number from 0 to {END_OF_TIME_MS:,}",
    "watch": f"a list of 1 to {MAX_WATCHED} keys",
    "on_conflict": f"{KEEP}, {REPLACE}, {REJECT} or {FOLLOW}",
    "latest_ms": _INSTANT,
    "window_ms": f"a whole number from 0 to {END_OF_TIME_MS:,}",
    "batch": f"a whole number from 1 to {MAX_BATCH:,}",
}

_is_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode(envelope: Envelope, own: Any = None) -> dict[str, Any]:
    """Return the header's value; ``own`` is the task's own header of that name. Raises ValueError."""
    fields: dict[str, Any] = {"v": VERSION}
    for name in _FIELDS:
        value = getattr(envelope, name)
        if value is not None:
            fields[name] = value
    check(fields)
    if own is not None:
        fields["own"] = own
    return fields


def check(fields: dict[str, Any]) -> Envelope:
    """Return the envelope of a header's value. Raises ValueError for fields that no envelope may have."""
    version = fields.get("v")
    if version != VERSION or type(version) is not int:
        raise Malformed(
            f"envelope version must be {VERSION} (a newer producer needs a newer scheduler), got {version!r:.60}"
        )
    try:
        envelope = msgspec.convert(fields, Envelope)
    except ValueError as error:
        raise Malformed(_reason(fields, error)) from None
    if not _is_uuid(envelope.id):
        raise Malformed(_id_rule(envelope.id))
    one = envelope
    if one.group is not None and one.group != one.key:  # the key chooses the shard
        raise Malformed(f"group must be equal to key, got {one.group!r:.60} and {one.key!r:.60}")
    if one.unique is None and not (one.latest_ms is one.window_ms is one.batch is None):
        raise Malformed("latest_ms, window_ms and batch must be beside unique, the name that they are about")
    texts = f"{one.task}{one.task_id}{one.exchange}{one.exchange_type}{one.routing_key}{one.queue}{one.key}{one.unique}"
    if not texts.isascii() or "\0" in texts or one.watch or not (one.routing_key or one.exchange):
        _check_texts(fields)  # rarely: their length as UTF-8, and characters that no store holds
    if one.group is not None:
        check_group("group", one.group)
    return envelope


def _check_texts(fields: dict[str, Any]) -> None:
    for name in ("task", "task_id", "exchange_type"):
        check_text(name, fields.get(name))
    exchange = check_text("exchange", fields.get("exchange"), 0)
    check_text("routing_key", fields.get("routing_key"), 0 if exchange else 1)
    for name in ("queue", "key", "unique", "group"):
        if fields.get(name) is not None:
            check_text(name, fields[name])
    watch = fields.get("watch")
    for key in watch if type(watch) is list else ():
        check_text("watch", key)


def _reason(fields: dict[str, Any], error: ValueError) -> str:
    """Return the reason, for people, why msgspec refuses the fields."""
    try:
        _check_texts(fields)
    except ValueError as found:
        return str(found)
    field = re.search(r"`(?:\$\.)?(\w+)[^`]*`$", str(error))  # "Expected `int` >= 0 - at `$.eta_ms`"
    name = field and field[1]
    if name == "id":
        return _id_rule(fields.get("id"))
    return f"{name} must be {_RULES[name]}, got {fields.get(name)!r:.60}" if name in _RULES else str(error)


def _id_rule(value: Any) -> str:
    return f"id must be a UUID in its 36 characters, got {value!r:.60}"
