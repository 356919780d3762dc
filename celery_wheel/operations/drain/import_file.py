"""``import_``: put the tasks and schedules of a drain's file into the inbox of a wheel; a scheduler accepts them.

::

    line ─► task_of ─► wire ─► inbox of the shard of its key, or task id, in groups
       ├─► schedule_of ─► command "restore" ─► inbox of the shard of its name
       └─ cannot be read: its number and the reason are reported; the others go on

A second import schedules nothing twice: an envelope's id that the store knows, or meets a second time in the inbox, is
not accepted again. The store that was drained knows all ids, so there each task gets another id, made of the drain's id
and its own: a second import into that store schedules nothing twice either.

A schedule goes on where the file has it: with its next instant, which is after every instant that became a task of the
file. A name that exists in the store stays as it is there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_wheel.broker import check_transport
from celery_wheel.broker.names import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import FileUnusable
from celery_wheel.operations.drain.record import (
    DrainedSchedule,
    DrainedTask,
    check_include,
    header_of,
    is_schedule,
    schedule_of,
    task_of,
)
from celery_wheel.operations.drain.result import Progress, silent
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE

#: Lines and bytes of one commit; schedules of one command.
LINES_AT_ONCE, BYTES_AT_ONCE, SCHEDULES_AT_ONCE = 500, 4 * 2**20, 100

#: Bad lines that are reported one by one; further ones are counted.
REPORTED = 1_000


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int  #: from 1, which is the header
    reason: str


@dataclass(slots=True)
class ImportResult:
    expected: int = 0  #: tasks and schedules, as the header says
    read: int = 0  #: lines
    put: int = 0  #: tasks in the inbox now
    known: int = 0  #: tasks that the store knew already
    skipped: int = 0  #: tasks with an outcome that was not included
    schedules: int = 0  #: schedules in the inbox now
    schedules_known: int = 0  #: schedules whose name the store had already
    bad_count: int = 0
    bad: list[BadLine] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """The number of lines that the header promises and the file lacks: it was truncated."""
        return max(0, self.expected - self.read)


def import_(
    app: Any,
    file: str | Path,
    *,
    store: FullStore | None = None,
    include: Collection[str] = (),
    progress: Progress = silent,
) -> ImportResult:
    """Schedule the pending tasks of a file. Schedulers may run. An import may be killed, and called again.

    Args:
        store: by default the app's own, which is made if it does not exist.
        include: "rejected" and "parked" tasks of the file are scheduled as well. Bytes that never were a message are
            rejected again.

    Raises FileUnusable for a file that no drain has made; StoreError, and the tasks committed so far are in the inbox.
    """
    conf = Conf(app)
    conf.check()
    check_transport(app)
    check_include(include)
    path = Path(file)
    if not path.is_file():
        raise FileUnusable(f"{path} must be a file that a drain has made, got none; nothing was done")
    opened = store or open_store(conf.store, durability=conf.durability, shards=conf.shards, lease_ms=conf.lease_ms)
    try:
        return _Import(opened, include, progress).run(path)
    finally:
        if store is None:
            opened.close()


class _Import:
    def __init__(self, store: FullStore, include: Collection[str], progress: Progress) -> None:
        self._store = store
        self._include = (None, *include)
        self._progress = progress
        self._done = ImportResult()
        self._group: list[DrainedTask] = []
        self._group_bytes = 0
        self._schedules: list[DrainedSchedule] = []
        self._file = ""

    def run(self, path: Path) -> ImportResult:
        done = self._done
        with path.open("rb") as lines:
            header = header_of(lines.readline(), str(path))
            done.expected = header.lines
            same_store = header.store == self._store.uuid
            drain = header.drain if same_store else None
            self._file = f"{path.name}, drain {header.drain}"
            for number, line in enumerate(lines, start=2):
                done.read += 1
                try:
                    if is_schedule(line):
                        self._add_schedule(schedule_of(line, same_store=same_store))
                    else:
                        self._add(task_of(line, drain))
                except ValueError as error:
                    done.bad_count += 1
                    if len(done.bad) < REPORTED:
                        done.bad.append(BadLine(number, str(error)))
        self._flush()
        self._flush_schedules()
        return done

    def _add(self, task: DrainedTask) -> None:
        if task.outcome not in self._include:
            self._done.skipped += 1
            return
        self._group.append(task)
        self._group_bytes += len(task.wire)
        if len(self._group) == LINES_AT_ONCE or self._group_bytes > BYTES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Put the group into the inboxes, in the order of the file."""
        by_shard: dict[int, list[DrainedTask]] = defaultdict(list)
        for task in self._group:
            by_shard[shard_of(task.key, task.task_id, self._store.shards)].append(task)
        for shard, group in by_shard.items():
            known = self._store.known(shard, [task.envelope_id for task in group])
            fresh = [task for task in group if task.envelope_id not in known]
            if fresh:
                self._store.put_inbox(shard, [("message", task.wire) for task in fresh])
            self._done.put += len(fresh)
            self._done.known += len(group) - len(fresh)
        self._group, self._group_bytes = [], 0
        self._progress("imported", self._done.put + self._done.known, self._done.expected)

    def _add_schedule(self, one: DrainedSchedule) -> None:
        self._schedules.append(one)
        if len(self._schedules) == SCHEDULES_AT_ONCE:
            self._flush_schedules()

    def _flush_schedules(self) -> None:
        """Put the schedules into the inboxes of their names, except those whose name exists."""
        by_shard: dict[int, list[DrainedSchedule]] = defaultdict(list)
        for one in self._schedules:
            by_shard[shard_of(None, one.schedule.name, self._store.shards)].append(one)
        for shard, group in by_shard.items():
            known = {one.name for one in self._store.schedules_named(shard, [one.schedule.name for one in group])}
            fresh = {one.schedule.name: one.document for one in group if one.schedule.name not in known}
            if fresh:
                command = {"do": "restore", "definitions": fresh, "actor": "import", "reason": f"from {self._file}"}
                self._store.put_inbox(shard, [(SCHEDULE, json.dumps(command).encode())])
            self._done.schedules += len(fresh)
            self._done.schedules_known += len(group) - len(fresh)
        self._schedules = []
