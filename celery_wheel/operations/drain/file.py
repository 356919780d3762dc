"""Drain into a file, which is complete, on disk and under its name before the store retires a task or a schedule.

::

    {"celery_wheel": "drain", "version": 1, "drain": uuid, "store": uuid, "count": 2, "schedules": 1, "limits": 1, …}
    {"limit": {"group", "concurrency", "rate_count", …}}        own limits of a group, which the store keeps as well
    {"shard", "row", "due_ms", "redelivered"?, "outcome"?, "reason"?,           its place and state in the store
     "envelope_id", "task_id", "task", "eta_ms", … "headers", "properties", "body"}          the message, byte for byte
    {"schedule": {"name", "definition", "next_ms", …}, "shard", "revisions": […]}            after all tasks

A drain killed before the file has its name has changed nothing. After a later kill, the next drain to the file writes
no task again, and retires the file's tasks that are still pending; ``dispatched_since`` counts those that a scheduler
has dispatched, which the file has all the same. A schedule that has changed or made an occurrence in between stays.
"""

from __future__ import annotations

import json
import os
import uuid
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any
from uuid import UUID

from celery_wheel.broker import queues
from celery_wheel.broker.envelope import HEADER, REDELIVERED, Envelope, encode
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.errors import FileUnusable, SettingError, WheelError
from celery_wheel.operations.drain.hold import DrainResult, Progress, ShardHold, total
from celery_wheel.store.model import STOPPED, Change, GroupLimit, Message, StoredMessage
from celery_wheel.store.schedule_model import RUN, SLOT, Schedule, revised
from celery_wheel.store.store_model import HandoverSchedule, ShardEpoch
from celery_wheel.values import parts
from celery_wheel.values.error_text import Malformed, error_text
from celery_wheel.values.text import check_group, check_text

VERSION = 1
KIND = "drain"

#: Outcomes of tasks that a file may have besides pending ones.
OUTCOMES = ("rejected",)

_TEXTS = ("headers", "properties")
_PLAIN = tuple(one.name for one in fields(Message) if one.name not in (*_TEXTS, "body"))

#: Fields that no message of the task has otherwise, unless it was rescheduled; claims end when it is due.
_NOT_COMPARED = ("envelope_id", "task_id", "watch", "unique", "on_conflict", "signed")
_COMPARED = tuple(name for name in _PLAIN if name not in _NOT_COMPARED)

#: Fields by the names that people read.
_SHOWN = {"task": "name", "eta_ms": "instant", "body": "arguments", "created_ms": "time of sending"}


@dataclass(frozen=True, slots=True)
class DrainHeader:
    drain: str
    store: str
    count: int  #: tasks
    created_ms: int
    schedules: int = 0
    limits: int = 0  #: groups with limits of their own

    @property
    def lines(self) -> int:
        return self.limits + self.count + self.schedules

    def line(self) -> bytes:
        return json.dumps({"celery_wheel": KIND, "version": VERSION, **asdict(self)}).encode() + b"\n"


def check_include(include: Collection[str]) -> None:
    if unknown := set(include) - set(OUTCOMES):
        raise SettingError(f"include must be among {OUTCOMES}, got {sorted(unknown)}")


def header_of(line: bytes, name: str) -> DrainHeader:
    """Return the header in a file's first line. Raises FileUnusable for any other line."""
    try:
        found = json.loads(line)
        if found["celery_wheel"] != KIND:
            raise Malformed(KIND)
        version = found["version"]
        drain, store = str(UUID(found["drain"])), str(UUID(found["store"]))
        schedules, limits = int(found.get("schedules", 0)), int(found.get("limits", 0))
        header = DrainHeader(drain, store, int(found["count"]), int(found["created_ms"]), schedules, limits)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
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


def line_of(kept: StoredMessage, shard: int) -> bytes:
    message = kept.message
    found: dict[str, Any] = {"shard": shard, "row": kept.id, "due_ms": kept.due_ms}
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
        return replace(self, envelope_id=envelope_id, wire=_wire(self.found, envelope_id, self.found["body"]))

    def wire_for(self, shard: int, seal: MessageSeal) -> bytes:
        """Return the bytes for the inbox of a shard, signed where the message was, if this process has keys."""
        if not (self.task and seal and self.found.get("signed")):
            return self.wire
        raw = json.loads(self.wire)
        properties = {name: value for name, value in raw["properties"].items() if name != "body_encoding"}
        content = {"content_type": raw["content-type"], "content_encoding": raw["content-encoding"]}
        publish = {**properties, **content, "exchange": queues.DEFAULT_EXCHANGE, "headers": raw["headers"]}
        sealed = seal.seal(b64decode(raw["body"]), publish, self.task, self.task_id, shard)
        return queues.encode_message(queues.build_message(*sealed))

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
        if type(task_id) is not str or not (key is None or type(key) is str):  # no envelope checks those of bytes
            raise Malformed("task_id and key must be texts")
        f"{task_id}{key}".encode()  # a half of a pair of surrogates is no text: UnicodeEncodeError, a ValueError
        wire = body if task == "" else _wire(found, envelope_id, found["body"])
        place = int(found["shard"]), int(found["row"])
    except KeyError as error:
        raise Malformed(f"the line must have {error}") from None
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed(f"the line must be one that a drain writes ({error_text(error)})") from None
    return DrainedTask(envelope_id, *place, task, task_id, key, found.get("outcome"), wire, found)


def _wire(found: dict[str, Any], envelope_id: str, body: str) -> bytes:
    headers, properties = json.loads(found["headers"]), json.loads(found["properties"])
    if type(headers) is not dict or type(properties) is not dict:
        raise Malformed("headers and properties must be objects")
    envelope = Envelope(id=envelope_id, **{name: found[name] for name in Envelope.__struct_fields__ if name != "id"})
    headers[HEADER] = encode(envelope, headers.get(HEADER))
    for name in (RUN, SLOT):  # its worker must not report to a store that never had its run
        headers.pop(name, None)
    if found.get("redelivered"):
        headers[REDELIVERED] = True
    kinds = {"content-type": properties.pop("content_type", None)}
    kinds["content-encoding"] = properties.pop("content_encoding", None)
    properties["body_encoding"] = "base64"
    return json.dumps({"body": body, **kinds, "headers": headers, "properties": properties}).encode()


@dataclass(frozen=True, slots=True)
class DrainedSchedule:
    shard: int
    schedule: Schedule  #: as it was in the store that was drained
    document: dict[str, Any]  #: for the command ``restore``


def is_limit(line: bytes) -> bool:
    return line.startswith(b'{"limit": ')


def limit_of(line: bytes) -> GroupLimit:
    """Return the own limits of a line's group. Raises ValueError."""
    try:
        found = GroupLimit(**json.loads(line)["limit"])
    except (KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"the line must be one that a drain writes ({error_text(error)})") from None
    check_group("group", found.group)
    return found


def schedule_line_of(kept: HandoverSchedule) -> bytes:
    revisions = [asdict(one) for one in kept.revisions[-60:]]  # as many as the store shows
    return json.dumps({"schedule": asdict(kept.schedule), "shard": kept.shard, "revisions": revisions}).encode() + b"\n"


def is_schedule(line: bytes) -> bool:
    return line.startswith(b'{"schedule": ')


def schedule_of(line: bytes, *, same_store: bool = False) -> DrainedSchedule:
    """Return the schedule of a line. Raises ValueError. ``same_store``: the store has its revisions already."""
    try:
        found = json.loads(line)
        schedule, shard = Schedule(**found["schedule"]), int(found["shard"])
        values = {name: value for name, value in found["schedule"].items() if name not in ("id", "name")}
        of_schedule = [{**one} for one in found["revisions"]]
        for one in of_schedule:
            del one["schedule"], one["name"]
        values["revision"] += same_store
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed(f"the line must be one that a drain writes ({error_text(error)})") from None
    check_text("name", schedule.name)
    return DrainedSchedule(shard, schedule, {"schedule": values, "revisions": [] if same_store else of_schedule})


ROWS_AT_ONCE, SCHEDULES_AT_ONCE = 1_000, 500


def drain_to_file(
    hold: ShardHold,
    file: Path,
    header: DrainHeader | None,
    include: Collection[str],
    done: DrainResult,
    progress: Progress,
) -> None:
    """Write the tasks, retire them, and add the counts to ``done``; ``header`` is that of ``earlier_header``."""
    for engine in hold.engines:
        done.accepted += hold.ingest(engine.shard)
        done.rejected += engine.stats.rejected
    held = [hold.end_engine(engine.shard) for engine in hold.engines]
    done.resumed = header is not None
    if header is None:
        header = _write(hold, file, include, progress)
    done.in_file, done.schedules, done.limits = header.count, header.schedules, header.limits
    _retire(hold, held, file, header, done, progress)
    _remove_schedules(hold, held, file, header)


def earlier_header(file: Path, store: str) -> DrainHeader | None:
    """Return the header of a file that a drain of this store has written; None without one. Raises FileUnusable."""
    if not file.exists():
        return None
    with file.open("rb") as lines:
        header = header_of(lines.readline(), str(file))
        if header.store != store:
            raise FileUnusable(
                f"{file} must be new, or of this store, got one of store {header.store}; nothing was done; name another"
            )
        count = sum(1 for _ in lines)
    if count != header.lines:
        raise FileUnusable(
            f"{file} must have the {header.lines:,} tasks, schedules and limits that its header names, got {count:,}; "
            "nothing was done; it was changed since: name another file"
        )
    return header


def _write(hold: ShardHold, file: Path, include: Collection[str], progress: Progress) -> DrainHeader:
    """Raises FileUnusable where the folder does not exist, may not be written to, or has no room."""
    store, handover = hold.store, hold.store.handover
    count = total(store, handover.count_pending) + total(store, handover.count_stopped, include)
    schedules = total(store, handover.count_schedules)
    limits = store.browse.own_limits()
    header = DrainHeader(str(uuid.uuid4()), store.uuid, count, hold.clock.now_ms(), schedules, len(limits))
    try:
        _write_lines(hold, file, header, _lines(hold, include, limits), progress)
    except WheelError:  # of the store; some are OSErrors too
        raise
    except OSError as error:
        raise FileUnusable(
            f"{file} must be in a folder that can be written to, got {error.strerror or error}; no task was moved; "
            "name another file, or make room"
        ) from error
    return header


def _write_lines(hold: ShardHold, file: Path, header: DrainHeader, lines: Iterator[bytes], progress: Progress) -> None:
    part = file.with_name(file.name + ".part")
    # Arguments of tasks are confidential: only the owner may read them.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(header.line())
        number = 0
        for number, line in enumerate(lines, start=1):
            out.write(line)
            if number % ROWS_AT_ONCE == 0:
                hold.check()
                progress("written", number, header.lines)
        if number != header.lines:
            raise FileUnusable(
                f"{part} must have {header.lines:,} tasks, schedules and limits, got {number:,}: another process wrote "
                "to the store; no task was moved; stop all schedulers and run this again"
            )
        out.flush()
        os.fsync(out.fileno())
    part.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    progress("written", header.lines, header.lines)


def _lines(hold: ShardHold, include: Collection[str], limits: Iterable[GroupLimit]) -> Iterator[bytes]:
    handover, shards = hold.store.handover, range(hold.store.shards)
    for limit in limits:  # first: the tasks of an import should find them in force
        yield json.dumps({"limit": asdict(limit)}).encode() + b"\n"
    for shard in shards:
        yield from (line_of(one, shard) for one in chain(handover.pending(shard), handover.stopped(shard, include)))
    for shard in shards:
        yield from map(schedule_line_of, handover.schedules(shard))


def _retire(
    hold: ShardHold, held: list[ShardEpoch], file: Path, header: DrainHeader, done: DrainResult, progress: Progress
) -> None:
    """Give the file's tasks the outcome "moved", and set the offsets of empty shards back to now."""
    store, reason = hold.store, f"written to {file.name}, drain {header.drain}"
    ids: dict[int, list[int]] = defaultdict(list)
    number = pending = 0

    def flush() -> None:
        for shard, rows in ids.items():
            hold.check()
            done.moved += store.handover.mark_moved(held[shard], rows, reason)
        ids.clear()
        progress("moved", number, header.count)

    for number, task in enumerate(_tasks(file, header), start=1):
        ids[task.shard].append(task.row)
        pending += task.outcome is None
        if number % ROWS_AT_ONCE == 0:
            flush()
    flush()
    if done.resumed and done.moved < pending:  # a row that was dispatched is in another lane than STOPPED
        done.dispatched_since = sum(
            any(row.lane != STOPPED for row in store.rows(task.shard, [task.row])) for task in _tasks(file, header)
        )
    for one in held:
        for lane, offset in store.handover.offsets_to_correct(one.shard, one.now_ms).items():
            if not store.handover.count_pending(one.shard):
                hold.set_back(one, lane, offset)


def _remove_schedules(hold: ShardHold, held: list[ShardEpoch], file: Path, header: DrainHeader) -> None:
    """Remove the file's schedules that are as the file has them."""
    reason, by_shard = f"written to {file.name}, drain {header.drain}", defaultdict[int, list[DrainedSchedule]](list)
    for one in _schedules(file, header):
        by_shard[one.shard].append(one)
    for shard in held:
        for part in parts(by_shard[shard.shard], SCHEDULES_AT_ONCE):
            hold.check()
            _remove(hold, shard, part, reason)


def _remove(hold: ShardHold, shard: ShardEpoch, written: Sequence[DrainedSchedule], reason: str) -> None:
    found = hold.store.schedules_named([one.schedule.name for one in written])
    stored = {one.id: one for where, one in found if where == shard.shard}
    same = [one.schedule for one in written if stored.get(one.schedule.id) == one.schedule]
    revisions = [revised(one, "deleted", "drain", reason, shard.now_ms)[1] for one in same]
    if same:
        change = Change(removed_schedules=[one.id for one in same], revisions=revisions)
        hold.store.apply(shard.shard, shard.epoch, change)


def _tasks(file: Path, header: DrainHeader) -> Iterator[DrainedTask]:
    with file.open("rb") as lines:
        yield from map(task_of, islice(lines, 1 + header.limits, 1 + header.limits + header.count))


def _schedules(file: Path, header: DrainHeader) -> Iterator[DrainedSchedule]:
    with file.open("rb") as lines:
        yield from map(schedule_of, islice(lines, 1 + header.limits + header.count, None))
