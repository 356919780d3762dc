"""Of many tasks at once: rows by their ids, tasks that wait, the headers of a page's tasks; without their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select

from celery_wheel.store.browse.rows import TASK_COLUMNS
from celery_wheel.store.database import Database
from celery_wheel.store.ports.pages import Head, Task
from celery_wheel.store.schema import payload, timer

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore

#: Ids in one question; SQLite may take no more than 999 values.
AT_ONCE = 500


class Heads:
    """A part of ``SqlBrowse``."""

    _store: SqlStore
    _database: Database

    def heads(self, ids: Iterable[int]) -> dict[int, Head]:
        wanted, found = list(ids), dict[int, Head]()
        columns = (timer.c.id, payload.c.headers, timer.c.exchange, timer.c.routing_key)
        query = select(*columns).join_from(timer, payload, payload.c.id == timer.c.id)
        with self._database.reading() as connection:
            for start in range(0, len(wanted), AT_ONCE):
                rows = connection.execute(query.where(timer.c.id.in_(wanted[start : start + AT_ONCE])))
                found.update({row_id: Head(bytes(headers), *place) for row_id, headers, *place in rows})
        return found

    def tasks(self, ids: Iterable[int]) -> list[Task]:
        wanted, found = list(ids), list[Task]()
        with self._database.reading() as connection:
            for start in range(0, len(wanted), AT_ONCE):
                here = timer.c.id.in_(wanted[start : start + AT_ONCE])
                found += [Task(*row) for row in connection.execute(select(*TASK_COLUMNS).where(here))]
        return sorted(found, key=lambda one: one.position)

    def waiting_of(self, shard: int, task_ids: Sequence[str]) -> list[Task]:
        found: list[Task] = []
        with self._database.snapshot() as connection:
            watermarks = {lane.lane: lane.watermark for lane in self._store.lanes_seen_by(connection, shard)}
            for start in range(0, len(task_ids), AT_ONCE):
                here = (timer.c.shard == shard) & timer.c.task_id.in_(task_ids[start : start + AT_ONCE])
                found += [Task(*row) for row in connection.execute(select(*TASK_COLUMNS).where(here))]
        return [task for task in found if task.lane in watermarks and task.position > watermarks[task.lane]]
