"""A drained task or schedule as a line of a file, and back. JSON, one object on each line; bodies in base64.

::

    {"celery_wheel": "drain", "version": 1, "drain": uuid, "store": uuid, "count": 2, "schedules": 1, "created_ms": …}
    {"shard", "row", "due_ms", "redelivered"?, "outcome"?, "reason"?,           its place and state in the store
     "envelope_id", "task_id", "task", "eta_ms", … "headers", "properties", "body"}          the message, byte for byte
    {"schedule": {"name", "definition", "next_ms", …}, "shard", "revisions": […]}            after all tasks

``wire`` is the message as a producer would put it into the wheel queue; the scheduler reads it from the inbox. The
document of a schedule is the definition of the command ``restore``: see ``celery_wheel.engine.recurring.change``.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from uuid import UUID

from celery_wheel.broker.envelope import HEADER, REDELIVERED, Envelope, encode
from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.store.model import Message
from celery_wheel.store.ports.handover import HandoverMessage, HandoverSchedule
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule
from celery_wheel.values.text import check_text

VERSION = 1
KIND = "drain"

#: Outcomes of tasks that a file may have besides pending ones.
OUTCOMES = ("rejected", "parked")

_TEXTS = ("headers", "properties")
_PLAIN = tuple(one.name for one in fields(Message) if one.name not in (*_TEXTS, "body"))

#: Fields of a message's envelope; the line has more, which the store knew.
_ENVELOPE = tuple(one for one in Envelope.__struct_fields__ if one != "id")


#: Fields that no message of the task has otherwise, unless it was moved to another instant; claims end when it is due.
_COMPARED = tuple(name for name in _PLAIN if name not in ("envelope_id", "task_id", "watch", "unique", "on_conflict"))

#: Fields by the names that people read.
_SHOWN = {"task": "name", "eta_ms": "instant", "body": "arguments", "created_ms": "time of sending"}


@dataclass(frozen=True, slots=True)
class DrainHeader:
    drain: str
    store: str
    count: int  #: tasks
    created_ms: int
    schedules: int = 0

    @property
    def lines(self) -> int:
        """The number of lines after the header."""
        return self.count + self.schedules

    def line(self) -> bytes:
        return json.dumps({"celery_wheel": KIND, "version": VERSION, **asdict(self)}).encode() + b"\n"


def check_include(include: Collection[str]) -> None:
    """Raise SettingError unless ``include`` has only outcomes that a file may have."""
    if unknown := set(include) - set(OUTCOMES):
        raise SettingError(f"include must be among {OUTCOMES}, got {sorted(unknown)}")


def header_of(line: bytes, name: str) -> DrainHeader:
    """Return the header in a file's first line. Raises FileUnusable for any other line."""
    try:
        found = json.loads(line)
        if found["celery_wheel"] != KIND:
            raise ValueError(KIND)
        version = found["version"]
        drain, store = str(UUID(found["drain"])), str(UUID(found["store"]))
        header = DrainHeader(drain, store, int(found["count"]), found["created_ms"], int(found.get("schedules", 0)))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileUnusable(
            f"{name} must begin with the line that a drain writes, got {line[:60]!r}; nothing was done; name a file "
            "that `drain` has made"
        ) from None
    if version != VERSION:
        raise FileUnusable(
            f"{name} must be of version {VERSION}, got {version!r}; nothing was done; install the newer celery-wheel "
            "that has made it"
        )
    return header


def line_of(kept: HandoverMessage) -> bytes:
    message = kept.message
    found: dict[str, Any] = {"shard": kept.shard, "row": kept.id, "due_ms": kept.due_ms}
    if kept.redelivered:
        found["redelivered"] = True
    if kept.outcome:
        found |= {"outcome": kept.outcome, "reason": kept.reason}
    found |= {name: getattr(message, name) for name in _PLAIN}
    found |= {name: getattr(message, name).decode() for name in _TEXTS}
    found["body"] = b64encode(message.body).decode()
    return json.dumps(found).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class DrainedTask:
    """The task of a line. ``task`` is empty for bytes that never were a message."""

    envelope_id: str
    shard: int
    row: int
    task: str
    task_id: str
    key: str | None
    outcome: str | None  #: None where the task was pending
    wire: bytes
    found: dict[str, Any] = field(repr=False)  #: the line

    def with_id(self, envelope_id: str) -> DrainedTask:
        """Return the task with another envelope id."""
        return replace(self, envelope_id=envelope_id, wire=_wire(self.found, envelope_id, self.found["body"]))

    def differing(self, stored: Message) -> list[str]:
        """Return the names of what another message of the task has otherwise."""
        names = [name for name in _COMPARED if self.task and getattr(stored, name) != self.found[name]]
        names += ["body"] if stored.body != b64decode(self.found["body"]) else []
        return [_SHOWN.get(name, name) for name in names]


def task_of(line: bytes) -> DrainedTask:
    """Return the task of a line. Raises ValueError, with the reason, where the line cannot be read."""
    try:
        found = json.loads(line)
        body = b64decode(found["body"], validate=True)
        envelope_id = str(UUID(found["envelope_id"]))
        task, task_id, key = found["task"], found["task_id"], found["key"]
        wire = body if task == "" else _wire(found, envelope_id, found["body"])
        place = int(found["shard"]), int(found["row"])
    except KeyError as error:
        raise ValueError(f"the line must have {error}") from None
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the line must be one that a drain writes ({error})") from None
    return DrainedTask(envelope_id, *place, task, task_id, key, found.get("outcome"), wire, found)


def _wire(found: dict[str, Any], envelope_id: str, body: str) -> bytes:
    headers, properties = json.loads(found["headers"]), json.loads(found["properties"])
    if type(headers) is not dict or type(properties) is not dict:
        raise ValueError("headers and properties must be objects")
    envelope = Envelope(id=envelope_id, **{name: found[name] for name in _ENVELOPE})
    headers[HEADER] = encode(envelope, headers.get(HEADER))
    occurrence = headers.get(OCCURRENCE)
    if isinstance(occurrence, dict):  # its worker must not report to a store that never had its run
        headers[OCCURRENCE] = {**occurrence, "report": False}
    if found.get("redelivered"):
        headers[REDELIVERED] = True
    kinds = {"content-type": properties.pop("content_type", None)}
    kinds["content-encoding"] = properties.pop("content_encoding", None)
    properties["body_encoding"] = "base64"
    return json.dumps({"body": body, **kinds, "headers": headers, "properties": properties}).encode()


# -- schedules ------------------------------------------------------------------------------------------

#: Changes of a schedule that are written, the last ones: as many as the store shows.
REVISIONS = 60

_SCHEDULE_LINE = b'{"schedule": '


@dataclass(frozen=True, slots=True)
class DrainedSchedule:
    shard: int
    schedule: Schedule  #: as it was in the store that was drained
    document: dict[str, Any]  #: for the command ``restore``


def schedule_line_of(kept: HandoverSchedule) -> bytes:
    revisions = [asdict(one) for one in kept.revisions[-REVISIONS:]]
    return json.dumps({"schedule": asdict(kept.schedule), "shard": kept.shard, "revisions": revisions}).encode() + b"\n"


def is_schedule(line: bytes) -> bool:
    return line.startswith(_SCHEDULE_LINE)


def schedule_of(line: bytes, *, same_store: bool = False) -> DrainedSchedule:
    """Return the schedule of a line. Raises ValueError, with the reason, where the line cannot be read.

    Args:
        same_store: the store has its revisions, with that of the drain.
    """
    try:
        found = json.loads(line)
        schedule, shard = Schedule(**found["schedule"]), int(found["shard"])
        values = {name: value for name, value in found["schedule"].items() if name not in ("id", "name")}
        of_schedule = [{**one} for one in found["revisions"]]
        for one in of_schedule:
            del one["schedule"], one["name"]
        values["revision"] += same_store
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the line must be one that a drain writes ({error!r})") from None
    check_text("name", schedule.name)
    return DrainedSchedule(shard, schedule, {"schedule": values, "revisions": [] if same_store else of_schedule})
