"""``import_``: put the tasks, schedules and limits of a drain's file into the inbox of a wheel, for its scheduler.

::

    the store has the envelope's id      the task of the file
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    no                                   is put into the inbox
    for a task that a drain took away    is back: it is put into the inbox under an id made of this drain's and its own
    the same, and it came after the file was left, where a later drain has put it; it is reported
    for the same task                    known, whether it is pending, dispatched or cancelled; a difference is reported
    for another task                     is put into the inbox under an id made of the envelope's and the task's

So a second import schedules nothing twice, and what is not in the store afterwards is reported. The scheduler compares
by the same rule (``engine.ingest``). A line that cannot be read is reported with its number; the others go on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from celery_wheel.broker import shard_of
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.broker.transport import check_transport
from celery_wheel.conf import Conf
from celery_wheel.engine.intake.inbox import LIMITS
from celery_wheel.errors import FileUnusable
from celery_wheel.operations.drain import file as drained
from celery_wheel.operations.drain.hold import Progress, silent
from celery_wheel.operations.stores import recorded
from celery_wheel.scheduler.service import open_store_of
from celery_wheel.store.audit_model import Operator
from celery_wheel.store.model import LIMIT, GroupLimit, StoredMessage
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE, is_same_definition
from celery_wheel.store.store_model import MOVED
from celery_wheel.values.error_text import error_text
from celery_wheel.values.ids import id_beside

#: Lines and bytes of one commit; schedules of one command.
LINES_AT_ONCE, BYTES_AT_ONCE, SCHEDULES_AT_ONCE = 500, 4 * 2**20, 100

#: Envelope id → the messages that have it, each in another shard.
_Stored = dict[str, list[tuple[int, StoredMessage]]]


@dataclass(frozen=True, slots=True)
class ReportedLine:
    number: int  #: from 1, which is the header
    reason: str  #: without values of arguments


@dataclass(slots=True)
class ImportResult:
    expected: int = 0  #: tasks, schedules and limits, as the header says
    read: int = 0  #: lines
    put: int = 0  #: tasks in the inbox now
    known: int = 0  #: tasks that the store had already, as the file has them
    renamed: int = 0  #: of the tasks in the inbox, those whose envelope id another task has
    different: int = 0  #: tasks, schedules and limits that the store has otherwise than the file; they stay so
    left: int = 0  #: tasks that came into the store after the file was written, and left it by a later drain
    skipped: int = 0  #: tasks with an outcome that was not included
    schedules: int = 0  #: schedules in the inbox now
    schedules_known: int = 0  #: schedules that the store had already, with the same definition
    limits: int = 0  #: groups whose own limits are in the inbox now
    limits_known: int = 0  #: groups that had the same limits already
    bad_count: int = 0  #: lines that could not be read
    lines: list[ReportedLine] = field(default_factory=list)  #: the first that are bad, different or left

    @property
    def missing(self) -> int:
        """The number of lines that the header promises and the file lacks: it was truncated."""
        return max(0, self.expected - self.read)

    @property
    def absent(self) -> int:
        """The number of lines that the store does not have afterwards as the drain wrote them."""
        return self.different + self.left + self.skipped + self.bad_count + self.missing


def import_(
    app: Any,
    file: str | Path,
    *,
    store: FullStore | None = None,
    include: Collection[str] = (),
    progress: Progress = silent,
    by: Operator | None = None,
) -> ImportResult:
    """Schedule the pending tasks of a file. Schedulers may run. An import may be killed, and called again.

    ``include`` "rejected": these tasks are scheduled as well; bytes that never were a message are rejected again.
    ``by``: the person for the audit log; None: this process.
    Raises FileUnusable for a file that no drain has made; StoreError, and the tasks committed so far are in the inbox.
    """
    conf = Conf(app)
    conf.check()
    check_transport(app)
    drained.check_include(include)
    path = Path(file)
    if not path.is_file():
        raise FileUnusable(f"{path} must be a file that a drain has made, got none; nothing was done")
    opened = store or open_store_of(conf)
    try:
        with recorded(opened, "import", by, file=path.name) as counts:
            done = _Import(
                opened, include, progress, by or Operator.of_process(), MessageSeal.of(conf, encrypts=False)
            ).run(path)
            counts |= {"tasks": done.put, "schedules": done.schedules, "limits": done.limits}
        return done
    finally:
        if store is None:
            opened.close()


class _Import:
    def __init__(
        self, store: FullStore, include: Collection[str], progress: Progress, by: Operator, seal: MessageSeal
    ) -> None:
        self._store = store
        self._include = (None, *include)
        self._progress = progress
        self._by = by
        self._seal = seal
        self._done = ImportResult()
        self._group: list[tuple[int, drained.DrainedTask]] = []  #: with the numbers of their lines
        self._group_bytes = 0
        self._schedules: list[tuple[int, drained.DrainedSchedule]] = []
        self._file = ""

    def run(self, path: Path) -> ImportResult:
        done = self._done
        with path.open("rb") as lines:
            header = drained.header_of(lines.readline(), str(path))
            done.expected = header.lines
            self._drain, self._created_ms = UUID(header.drain), header.created_ms
            self._file = f"{path.name}, drain {header.drain}"
            same_store = header.store == self._store.uuid
            for number, line in enumerate(lines, start=2):
                done.read += 1
                try:
                    if drained.is_limit(line):
                        self._add_limit(number, drained.limit_of(line))
                    elif drained.is_schedule(line):
                        self._add_schedule(number, drained.schedule_of(line, same_store=same_store))
                    else:
                        self._add(number, drained.task_of(line))
                except ValueError as error:
                    done.bad_count += 1
                    self._report(number, error_text(error))
        self._flush()
        self._flush_schedules()
        return done

    @property
    def _about(self) -> dict[str, Any]:
        """Return the fields that every command has."""
        return {"actor": self._by.actor, "reason": f"from {self._file}", "audit": {"origin": self._by.origin}}

    def _report(self, number: int, reason: str) -> None:
        if len(self._done.lines) < 1_000:  # further ones are counted
            self._done.lines.append(ReportedLine(number, reason))

    def _add(self, number: int, task: drained.DrainedTask) -> None:
        if task.outcome not in self._include:
            self._done.skipped += 1
            return
        self._group.append((number, task))
        self._group_bytes += len(task.wire)
        if len(self._group) == LINES_AT_ONCE or self._group_bytes > BYTES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Put the group into the inboxes, in the order of the file."""
        items: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        group, self._group, self._group_bytes = self._group, [], 0
        own_ids = True
        while group:
            stored = self._stored([id_ for _, task in group for id_ in self._ids(task)])
            renamed = []
            for number, task in group:
                shard = shard_of(task.key, task.task_id, self._store.shards)
                found = self._place(number, task, shard, stored)
                if found is not None and found.envelope_id == id_beside(task.envelope_id, task.task_id):
                    renamed.append((number, found))
                elif found is not None:
                    items[shard].append(("message", found.wire_for(shard, self._seal)))
                    self._done.renamed += not own_ids
            group, own_ids = renamed, False
        if items:
            self._store.put_inboxes(items)
        done = self._done
        done.put += sum(map(len, items.values()))
        self._progress("imported", done.put + done.known + done.different + done.left, done.expected)

    def _ids(self, task: drained.DrainedTask) -> tuple[str, str]:
        """Return the task's envelope id, and its id where this drain took it away from the store."""
        return task.envelope_id, str(uuid5(self._drain, task.envelope_id))

    def _stored(self, ids: list[str]) -> _Stored:
        """Find ids in all shards: tasks of an older number of shards, and occurrences, may be in any."""
        stored: _Stored = defaultdict(list)
        for shard in range(self._store.shards):
            known = self._store.known(shard, ids)
            for one in self._store.handover.find(shard, list(known)) if known else ():
                stored[one.message.envelope_id].append((shard, one))
        return stored

    def _place(self, number: int, task: drained.DrainedTask, shard: int, stored: _Stored) -> drained.DrainedTask | None:
        """Return the task, with another id where it needs one; None where it is counted and put nowhere."""
        own, back = self._ids(task)
        for id_ in (back, own):
            same = [one for _, one in stored.get(id_, ()) if one.message.task_id == task.task_id]
            if here := next((one for one in same if one.outcome != MOVED), None):
                self._compare(number, task, here)
                return None
            if same and id_ == own and task.task:
                last = same[-1]
                # The file is younger than the stay of a task that was drained: the task comes back by it.
                if last.accepted_ms <= self._created_ms or (last.reason or "").endswith(str(self._drain)):
                    return task.with_id(back)
            if same:
                self._done.left += 1
                self._report(number, f"task {task.task_id!r} is not in the store, which it left: {same[-1].reason}")
                return None
        if all(where != shard for where, _ in stored.get(own, ())):
            return task
        return task.with_id(id_beside(own, task.task_id))

    def _compare(self, number: int, task: drained.DrainedTask, here: StoredMessage) -> None:
        if differing := task.differing(here.message):
            self._done.different += 1
            what = ", ".join(differing)
            self._report(number, f"task {task.task_id!r} stays as it is in the store, which has another {what}")
        else:
            self._done.known += 1

    def _add_limit(self, number: int, one: GroupLimit) -> None:
        """Put the limits of a group into the inbox of its shard, unless it has others here."""
        shard = shard_of(one.group, "", self._store.shards)
        here, limits = self._store.limits(shard, [one.group]), {name: getattr(one, name) for name in LIMITS}
        if not here:
            payload = json.dumps({"groups": [one.group], "limits": limits, **self._about}).encode()
            self._store.put_inbox(shard, [(LIMIT, payload)])
            self._done.limits += 1
        elif limits == {name: getattr(here[0], name) for name in LIMITS}:
            self._done.limits_known += 1
        else:
            self._done.different += 1
            self._report(number, f"group {one.group!r} keeps its own limits of the store, which are others")

    def _add_schedule(self, number: int, one: drained.DrainedSchedule) -> None:
        self._schedules.append((number, one))
        if len(self._schedules) == SCHEDULES_AT_ONCE:
            self._flush_schedules()

    def _flush_schedules(self) -> None:
        """Put the schedules into the inboxes of their names, except those whose name exists."""
        by_shard: dict[int, list[tuple[int, drained.DrainedSchedule]]] = defaultdict(list)
        for number, one in self._schedules:
            by_shard[shard_of(None, one.schedule.name, self._store.shards)].append((number, one))
        for shard, group in by_shard.items():
            found = self._store.schedules_named([one.schedule.name for _, one in group])
            stored, fresh = {one.name: one for _, one in found}, dict[str, Any]()
            for number, one in group:
                if one.schedule.name in fresh:
                    self._done.different += 1
                    self._report(number, f"schedule {one.schedule.name!r} is in the file twice; the first one counts")
                elif (here := stored.get(one.schedule.name)) is None:
                    fresh[one.schedule.name] = one.document
                elif is_same_definition(here.definition, one.schedule.definition):
                    self._done.schedules_known += 1
                else:
                    self._done.different += 1
                    name = one.schedule.name
                    self._report(number, f"schedule {name!r} stays as it is in the store, which has another definition")
            if fresh:
                command = {"do": "restore", "definitions": fresh, **self._about}
                self._store.put_inbox(shard, [(SCHEDULE, json.dumps(command).encode())])
            self._done.schedules += len(fresh)
        self._schedules = []
