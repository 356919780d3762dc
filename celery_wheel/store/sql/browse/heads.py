"""Many tasks at once: rows by their ids, pending rows by their task ids, and the headers of tasks without bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_wheel.store.ports.pages import MessageHead, Task
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.queries import browse as queries

#: Ids in one query; SQLite may allow no more than 999 values.
AT_ONCE = 500


class Heads:
    """A part of ``SqlBrowse``."""

    _database: Database
    _catalogue: Catalogue

    def heads(self, ids: Iterable[int]) -> dict[int, MessageHead]:
        wanted, found = list(ids), dict[int, MessageHead]()
        with self._database.reading() as connection:
            for start in range(0, len(wanted), AT_ONCE):
                rows = connection.execute(queries.heads(wanted[start : start + AT_ONCE]))
                for row_id, number, packed, *place in rows.all():
                    parts = self._catalogue.parts(connection, number, packed)
                    found[row_id] = MessageHead(parts.headers, *place)
        return found

    def tasks(self, ids: Iterable[int]) -> list[Task]:
        wanted, found = list(ids), list[Task]()
        with self._database.reading() as connection:
            for start in range(0, len(wanted), AT_ONCE):
                rows = connection.execute(queries.tasks(wanted[start : start + AT_ONCE]))
                found += [Task(*row) for row in rows]
        return sorted(found, key=lambda one: one.position)

    def find_pending(self, shard: int, task_ids: Sequence[str]) -> list[Task]:
        found: list[Task] = []
        with self._database.snapshot() as connection:
            lanes = read_lanes(connection, self._database.statements, shard)
            for start in range(0, len(task_ids), AT_ONCE):
                rows = connection.execute(queries.tasks_of(shard, task_ids[start : start + AT_ONCE]))
                found += [Task(*row) for row in rows]
        watermarks = {lane.lane: lane.watermark for lane in lanes}
        return [task for task in found if task.lane in watermarks and task.position > watermarks[task.lane]]
