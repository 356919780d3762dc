"""Files that come from outside: a drain's file, the manifest of an archive, and the results of a job.

::

    drain-file    a line of 64 is one message: it is put into the inbox, which the engine then reads, or is reported
                  with its number; a header that no drain has made refuses the file, and nothing is done
    archive       a manifest is read, or refused with FileUnusable
    results       a summary or a Parquet file is read, or refused with FileUnusable

A file that is refused stays as it is, so nothing has to keep its bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from celery_wheel.archive import reader as archive
from celery_wheel.errors import FileUnusable
from celery_wheel.operations.drain.file import (
    DrainHeader,
    header_of,
    is_limit,
    is_schedule,
    limit_of,
    line_of,
    schedule_line_of,
    schedule_of,
    task_of,
)
from celery_wheel.operations.drain.import_file import import_
from celery_wheel.results.reader import SUMMARY, JobResults
from celery_wheel.store import model
from celery_wheel.store.schedule_model import Revision, Schedule
from celery_wheel.store.store_model import HandoverSchedule
from tests.hostile import messages
from tests.hostile.engine_layers import EngineLayer
from tests.hostile.judge import Broken, Layer
from tests.hostile.messages import START_MS

HEADER = DrainHeader("a" * 8 + "-0000-4000-8000-000000000001", "b" * 8 + "-0000-4000-8000-000000000002", 2, START_MS)


class DrainFile(EngineLayer):
    name: ClassVar[str] = "drain-file"

    @property
    def seeds(self) -> list[bytes]:
        found = [self.plain(raw) for raw in messages.wheel_queue()]
        kept = [_kept(n, one) for n, one in enumerate(found)]
        kept[0].redelivered, kept[1].outcome, kept[1].reason = True, "rejected", "no queue"
        lines = [line_of(one, 0) for one in kept]
        for n, one in enumerate(messages.definitions()):
            schedule = Schedule(4_096 + n, f"s{n}", json.dumps(one), "api", 1, START_MS + 60_000)
            revision = Revision(4_096 + n, f"s{n}", 1, "created", schedule.definition, "admin", "", START_MS)
            lines.append(schedule_line_of(HandoverSchedule(0, schedule, [revision])))
        limit = asdict(model.GroupLimit("tenant:42", 3, 5, 1_000, 2, 60_000, "admin", START_MS))
        return [*lines, json.dumps({"limit": limit}).encode() + b"\n", HEADER.line()]

    def look(self, data: bytes) -> None:
        try:
            if _is_header(data):
                header_of(data, "the file")
            elif is_limit(data):
                limit_of(data)
            elif is_schedule(data):
                schedule_of(data)
            else:
                task_of(data)
        except (ValueError, FileUnusable):
            pass

    def prepared(self, data: bytes, number: int) -> bytes:
        line = data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
        own = messages.numbered_id(number).encode()
        return line if number % 8 == 7 else line.replace(messages.SEED_ID.encode(), own)

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        counts = Counter(self._header(data) for data in batch if _is_header(data))
        lines = [data for data in batch if not _is_header(data)]
        good = [self._good(n) for n in range(2)]
        path = self.folder / "drained.jsonl"
        path.write_bytes(HEADER.line() + good[0] + b"".join(lines) + good[1])
        with self.rig() as rig:
            done = import_(self.app, path, store=rig.store, include=("rejected",))
            taken = done.put + done.schedules + done.limits
            stays = done.known + done.schedules_known + done.limits_known + done.different + done.left + done.skipped
            if done.read != len(lines) + 2 or taken + stays + done.bad_count != done.read:
                raise Broken(f"each of {len(lines) + 2} lines must be counted once, got {done}")
            if len(done.lines) < done.bad_count:
                raise Broken("each bad line must be reported")
            rig.run_until_idle("ingest", most=50)
            if rig.store.handover.count_inbox():
                raise Broken("items of the import stay in the inbox")
            found = rig.store.handover.find(0, [messages.numbered_id(1_000 + n) for n in range(2)])
            if [one.message.body for one in found] != [messages.GOOD] * 2:
                raise Broken("two good tasks beside these were to be imported, and were not")
        return counts + Counter({"accepted": taken - 2, "known": stays, "rejected": done.bad_count})

    def _header(self, data: bytes) -> str:
        path = self.folder / "other.jsonl"
        path.write_bytes(data + self._good(0))
        with self.rig() as rig:
            try:
                import_(self.app, path, store=rig.store)
            except FileUnusable:
                return "rejected"
        return "accepted"

    def _good(self, number: int) -> bytes:
        good = self.plain(messages.wire(id=messages.numbered_id(1_000 + number), task_id=f"good-{number}"))
        return line_of(_kept(number, good), 0)


def _kept(number: int, message: model.Message | model.Unreadable) -> model.StoredMessage:
    assert isinstance(message, model.Message)
    return model.StoredMessage(number, 0, START_MS, number, START_MS, message)


def _is_header(data: bytes) -> bool:
    return data.startswith(b'{"celery_wheel"')


class Archive(Layer):
    name: ClassVar[str] = "archive"

    @property
    def seeds(self) -> list[bytes]:
        files = tuple(
            archive.DataFile(f"run=1/day=2026-11-{n}/part-0.parquet", f"2026-11-{n}", {"done": n}) for n in (20, 21)
        )
        columns = {"task": "string", "at": "timestamp", "shard": "int", "number": "bigint"}
        gaps = [{"shard": 0, "from": 1, "upto": 5}]
        full = archive.Manifest(
            3, "run1", HEADER.store, {0: 7, 1: 9}, 2, columns, files, {0: 7}, gaps, {"run=0": START_MS}
        )
        return [full.to_line().encode(), archive.Manifest(1, "run0", "", {}, 1, {}).to_line().encode()]

    def look(self, data: bytes) -> None:
        self.judge([data])

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        return Counter(self._fate(data) for data in batch)

    def _fate(self, data: bytes) -> str:
        path = self.folder / "archive" / archive.MANIFESTS / "00000000" / "1" / "part-0.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        root = str(self.folder / "archive")
        try:
            found = archive.manifest(root)
            archive.files(root, ("2026-11-20", "2026-11-21"))
            _ = found.days(), found.folder, [one.folder for one in found.files]
            archive.parse_manifest(found.to_line(), "a copy")
            if not found.files:  # which do not exist here
                archive.dataset(root)
        except FileUnusable:
            return "rejected"
        return "accepted"


class Results(Layer):
    name: ClassVar[str] = "results"

    @property
    def seeds(self) -> list[bytes]:
        self.folder.joinpath("results").mkdir(exist_ok=True)
        path = self.folder / "results" / "hours.parquet"
        pq.write_table(pa.table({"hour": [1, 2, 3], "task": ["a", "b", None], "late": [0.5, None, 1e9]}), path)
        summary = {
            "job": "lateness",
            "format": 1,
            "run": "20261120T101112Z-7",
            "tables": {"hours": path.name},
            "tasks": 3,
        }
        self._good, self._table = json.dumps(summary).encode(), path.read_bytes()
        return [self._good, self._table]

    def look(self, data: bytes) -> None:
        self.judge([data])

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        return Counter(self._fate(data) for data in batch)

    def _fate(self, data: bytes) -> str:
        is_table = data.startswith(b"PAR1")
        folder = self.folder / "results"
        (folder / SUMMARY).write_bytes(self._good if is_table else data)
        (folder / "hours.parquet").write_bytes(data if is_table else self._table)
        try:
            found = JobResults(folder)
            _ = found.job, found.at
            for name in found.tables:
                found.rows(name)
                found.read_rows(name, limit=1, last=True)
        except FileUnusable:
            return "rejected"
        return "accepted"
