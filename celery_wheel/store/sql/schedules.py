"""Recurring schedules in a SQL store: the holder's reads, and their part of ``apply``.

::

    due, next_ms     a range of the index (shard, next_ms)
    named            the unique index of names
    runs             a range of the index (schedule, instant), from its end; a row of wheel_timer for each run

    write            remove ─► schedules ─► steps ─► revisions ─► runs ─► skips
                                            └ a step of no schedule: StoreError; the caller rolls back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Row, TaskRow
from celery_wheel.store.schedule_model import Revision, Run, Schedule, ScheduleChange, readable, whole
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.fields import in_order, names_of
from celery_wheel.store.sql.ids import bytes_to_task_id
from celery_wheel.store.sql.statements import Statements
from celery_wheel.store.sql.statements.clauses import in_parts
from celery_wheel.store.sql.statements.schedules import NAME_PLACES, ScheduleStatements

#: Columns of a run, and of its row.
RUN, ROW = len(names_of(Run)), len(names_of(Row))


class SqlSchedules:
    """A part of ``SqlStore``."""

    _database: Database
    _statements: Statements
    _catalogue: Catalogue

    def due_schedules(self, shard: int, upto_ms: int, limit: int) -> list[Schedule]:
        due = self._statements.schedules.due
        with self._database.reading() as connection:
            return [schedule_of(row) for row in due(connection, shard=shard, upto_ms=upto_ms, limit=limit)]

    def next_schedule_ms(self, shard: int, skip: int = 0) -> int | None:
        with self._database.reading() as connection:
            next_ms: int | None = self._statements.schedules.next(connection, shard=shard, skip=skip).scalar()
        return next_ms

    def schedules_named(self, shard: int, names: Sequence[str]) -> list[Schedule]:
        named = self._statements.schedules.named
        with self._database.reading() as connection:
            rows = [row for part in in_parts(names, NAME_PLACES) for row in named.at(connection, part)]
        return list({row.id: schedule_of(row[1:]) for row in rows if row.shard == shard}.values())

    def runs_of(
        self, shard: int, schedule_ids: Sequence[int], pending_only: bool, limit: int
    ) -> list[tuple[Run, TaskRow]]:
        statements = self._statements.schedules
        query = statements.pending_runs if pending_only else statements.runs
        with self._database.reading() as connection:
            rows = [row for one in schedule_ids for row in query(connection, schedule=one, limit=limit)]
            found = self._runs(connection, shard, rows)
        found.sort(key=lambda one: (one[0].instant_ms, one[0].timer_id), reverse=True)
        return found[:limit]

    def runs_at(self, shard: int, instants: Sequence[tuple[int, int]]) -> list[tuple[Run, TaskRow]]:
        query = self._statements.schedules.runs_at
        with self._database.reading() as connection:
            rows = [row for one, at_ms in instants for row in query(connection, schedule=one, instant_ms=at_ms)]
            return self._runs(connection, shard, rows)

    def _runs(self, connection: Connection, shard: int, rows: Iterable[Any]) -> list[tuple[Run, TaskRow]]:
        """Return the runs of a shard; a resharding leaves dispatched rows in their shard."""
        row_of = self._catalogue.row
        return [
            (run_of(one[:RUN]), TaskRow(bytes_to_task_id(one.task_id), row_of(connection, one[-ROW:])))
            for one in rows
            if one.shard == shard
        ]


def schedule_of(row: Sequence[Any]) -> Schedule:
    """Return the schedule of a row, whose columns are in the order of its fields."""
    return readable(Schedule(*row))


def revision_of(row: Sequence[Any]) -> Revision:
    """Return the revision of a row, as ``schedule_of`` does."""
    found = Revision(*row)
    found.number, found.at_ms = whole(found.number) or 0, whole(found.at_ms) or 0
    found.what, found.actor, found.reason = str(found.what), str(found.actor), str(found.reason)
    found.before = str(found.before)
    return found


def run_of(row: Sequence[Any]) -> Run:
    """Return the run of a row, as ``schedule_of`` does."""
    found = Run(*row)
    found.requested = bool(found.requested)
    return found


def write_schedules(connection: Connection, statements: ScheduleStatements, shard: int, change: ScheduleChange) -> None:
    """Write the part of a change that concerns schedules, behind the fence."""
    removed = [{"at_id": number, "at_shard": shard} for number in change.removed_schedules]
    statements.remove.many(connection, in_order(statements.remove, removed))
    statements.add.many(connection, change.added_schedules, shard)
    statements.set.many(connection, change.schedules, shard)
    if statements.step.many(connection, change.schedule_steps, shard) != len(change.schedule_steps):
        raise StoreError(
            f"a step of shard {shard} is of a schedule that the store does not have; nothing was written; the shard is "
            "adopted anew, which reads the stored schedules; if this repeats, please report it"
        )
    # Creations come first, in the order of a history. A row that was restored from a copy has an earlier revision, so
    # the number of its next one may be taken.
    statements.add_revision.many(connection, [one for one in change.revisions if not one.before])
    statements.set_revision.many(connection, [one for one in change.revisions if one.before])
    statements.add_run.many(connection, change.runs)
    statements.end_run.many(connection, change.run_ends)
    statements.set_skip.many(connection, change.skips, shard)
