"""Erasure: the holder's look for what a request erases, and its part of ``apply``.

::

    task       the index of task ids          schedule   the index of its runs
    key, group no index: rows are read by their ids, LOOKED_AT a page, each of them once for an erasure

The audit log keeps its entries. One that names what an erasure covers loses its names, reason and arguments, in every
shard: a person may have typed anything into them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, null, select, update

from celery_wheel.store.erasure_model import AuditErasure, ErasureCriterion
from celery_wheel.store.model import Change
from celery_wheel.store.sql.browse.audit import SPREAD_MS
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.history import remove_rows
from celery_wheel.store.sql.schema import audit, revision, run, schedule_skip, task_id_to_bytes, timer
from celery_wheel.store.sql.statement import Statements, constant, is_of_shard
from celery_wheel.values import parts, weighed_parts

#: Rows of a page that are read by their ids: 20 ms. Entries of the audit log of a page; an entry has up to 500 names.
LOOKED_AT, ENTRIES_AT_ONCE = 20_000, 500
#: Bytes of the messages of a page: their holder reads them, to put them back where the request is withdrawn.
PAGE_BYTES = 8 * 2**20
#: Names of one statement.
NAMES_AT_ONCE = 500


class ErasureStatements:
    def __init__(self, statements: Statements) -> None:
        after: Any = bindparam("after")
        upto: Any = bindparam("upto")
        of_shard = is_of_shard()
        value: Any = bindparam("value")

        def page(number: ColumnElement[int], *which: Any) -> Any:
            found = select(timer.c.id, timer.c.size).where(number > after, number <= upto, *which)
            return found.order_by(number).limit(bindparam("limit"))

        ids = select(timer.c.id).where(timer.c.id > after, timer.c.id <= upto).order_by(timer.c.id)
        self.end = statements(ids.limit(constant(1)).offset(constant(LOOKED_AT)))
        task = (timer.c.shard == bindparam("shard"), timer.c.task_id == value)
        self.of = {
            "task_id": statements(page(timer.c.id, *task)),
            "key": statements(page(timer.c.id, of_shard, timer.c.key == value)),
            "group": statements(page(timer.c.id, of_shard, timer.c.group == value)),
        }
        its_run = select(timer.c.id, timer.c.size).join(run, run.c.timer_id == timer.c.id)
        its_run = its_run.where(run.c.schedule == bindparam("schedule"), of_shard)
        its_run = its_run.where(run.c.timer_id > after, run.c.timer_id <= upto)
        self.of_schedule = statements(its_run.order_by(run.c.timer_id).limit(bindparam("limit")))
        entries = select(audit.c.id, audit.c.request, audit.c.at_ms, audit.c.results)
        entries = entries.where(audit.c.chain == bindparam("shard"), audit.c.id > after).order_by(audit.c.id)
        self.entries = statements(entries.limit(constant(ENTRIES_AT_ONCE)))
        at_ms: Any = bindparam("at_ms")
        near = audit.c.at_ms.between(at_ms - constant(SPREAD_MS), at_ms + constant(SPREAD_MS))
        no_text: Any = {"reason": constant(""), "details": constant("{}"), "results": constant("{}"), "salt": null()}
        of_request = audit.c.request == bindparam("request"), near
        self.erase_request = statements(update(audit).where(*of_request).values(no_text))
        self.forget_revisions, self.forget_skips = (
            statements(delete(table).where(table.c.schedule == bindparam("schedule")))
            for table in (revision, schedule_skip)
        )


class SqlErasure(StorePart):
    @property
    def _erasure(self) -> ErasureStatements:
        return self._statements.of(ErasureStatements)

    def erasable(
        self, shard: int, which: ErasureCriterion, after: int, upto: int, limit: int
    ) -> tuple[list[int], int | None]:
        erasure, end = self._erasure, upto
        with self._database.reading() as connection:
            place: dict[str, Any] = {"shard": shard, "after": after, "limit": limit}
            if which.by == "schedule":
                found: list[Any] = []
                for number in which.schedules:
                    found += erasure.of_schedule(connection, **place, schedule=number, upto=upto).all()
                found = sorted(found)[:limit]
            else:
                if which.by != "task_id":
                    end = erasure.end(connection, after=after, upto=upto).scalar() or upto
                value = task_id_to_bytes(which.value) if which.by == "task_id" else which.value
                found = list(erasure.of[which.by](connection, **place, upto=end, value=value))
        ids = [number for number, _ in next(weighed_parts(found, itemgetter(1), PAGE_BYTES), [])]
        if len(ids) < len(found):
            return ids, ids[-1]
        end = ids[-1] if len(ids) >= limit else end
        return ids, None if end >= upto else end

    def audited(self, shard: int, which: ErasureCriterion, after: int) -> tuple[list[AuditErasure], int | None]:
        with self._database.reading() as connection:
            entries = self._erasure.entries(connection, shard=shard, after=after).all()
            named = {entry.id: set(json.loads(entry.results)) for entry in entries}
            matching = which.names
            if which.by != "task_id":
                matching |= _tasks_among(
                    connection, which, sorted({name for names in named.values() for name in names})
                )
        found = [
            AuditErasure(str(entry.request), entry.at_ms)
            for entry in entries
            if not matching.isdisjoint(named[entry.id])
        ]
        return found, entries[-1].id if len(entries) == ENTRIES_AT_ONCE else None

    def schedule_traces(self, schedule_ids: Sequence[int]) -> tuple[int, int]:
        with self._database.reading() as connection:
            revisions, skips = (
                connection.execute(
                    select(func.count()).select_from(table).where(table.c.schedule.in_(schedule_ids))
                ).scalar_one()
                for table in (revision, schedule_skip)
            )
        return revisions, skips

    def scrub(self) -> None:
        self._catalogue.dictionaries.replace()
        self._database.scrub()


def _tasks_among(connection: Connection, which: ErasureCriterion, names: Sequence[str]) -> set[str]:
    """Return those of the names that are ids of tasks that match."""
    found: set[str] = set()
    for some in parts(names, NAMES_AT_ONCE):
        ids = select(timer.c.task_id).where(timer.c.task_id.in_(some))
        if which.by == "schedule":
            ids = ids.join(run, run.c.timer_id == timer.c.id).where(run.c.schedule.in_(which.schedules))
        else:
            ids = ids.where(timer.c[which.by] == which.value)
        found.update(connection.execute(ids).scalars())
    return found


def write_erasure(connection: Connection, statements: Statements, shard: int, change: Change) -> None:
    """Write the part of a change that erases, behind the fence."""
    remove_rows(connection, statements, shard, change.erased)
    if change.erased_audits or change.erased_schedules:
        erasure = statements.of(ErasureStatements)
        schedules = [(one,) for one in change.erased_schedules]
        erasure.forget_revisions.many(connection, schedules)
        erasure.forget_skips.many(connection, schedules)
        for one in sorted(change.erased_audits):  # two holders that erase the same requests wait in turn
            erasure.erase_request(connection, request=one.request, at_ms=one.at_ms)
