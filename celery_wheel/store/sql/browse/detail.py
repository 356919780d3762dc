"""One message with everything that the store knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection

from celery_wheel.store.model import LaneState, Parts
from celery_wheel.store.ports.pages import ALL_BYTES, Detail, StoppedTask, Task
from celery_wheel.store.sql.browse.dispatch_times import dispatches_of
from celery_wheel.store.sql.browse.states import state_of
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.queries import browse as queries

#: Most rows of one task id that are returned: a retried task has a row for each try.
MAX_DETAILS = 100


class Details:
    """A part of ``SqlBrowse``."""

    _database: Database
    _catalogue: Catalogue
    _shards: int

    def detail(self, timer_id: int, most_bytes: int = ALL_BYTES) -> Detail | None:
        found = self._details(queries.with_id(timer_id), most_bytes)
        return found[0] if found else None

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        found = [
            one
            for shard in range(self._shards)
            for one in self._details(queries.with_task_id(shard, task_id), ALL_BYTES if with_bytes else 0)
        ]
        return sorted(found, key=lambda one: one.task.position, reverse=True)[:MAX_DETAILS]

    def _details(self, where: ColumnElement[bool], most_bytes: int) -> list[Detail]:
        with self._database.snapshot() as connection:
            rows = connection.execute(queries.details(where, MAX_DETAILS, most_bytes)).all()
            lanes = {
                (shard, one.lane): one
                for shard in {row.shard for row in rows}
                for one in read_lanes(connection, self._database.statements, shard, closed=True)
            }
            return [_detail(connection, self._catalogue, lanes, row) for row in rows]


def _detail(connection: Connection, catalogue: Catalogue, lanes: dict[tuple[int, int], LaneState], row: Any) -> Detail:
    columns = len(queries.TASK)
    task = Task(*row[:columns])
    exchange, exchange_type, routing_key, queue, envelope_id, number, packed = row[columns:]
    parts = Parts(b"", b"", b"") if packed is None else catalogue.parts(connection, number, packed)
    lane = lanes.get((task.shard, task.lane))
    outcomes = [StoppedTask(*row) for row in connection.execute(queries.outcomes_of(task.id, MAX_DETAILS))]
    state = state_of(task, lane, outcomes[-1].kind if outcomes else None)
    dispatches_ms = dispatches_of(connection, task) if state == "dispatched" else []
    if dispatches_ms:
        task = replace(task, dispatched_ms=dispatches_ms[0])
    return Detail(
        task=task,
        state=state,
        blocked_by=lane.target if lane is not None and state in ("pending", "in doubt") else None,
        exchange=exchange,
        exchange_type=exchange_type,
        routing_key=routing_key,
        queue=queue,
        envelope_id=envelope_id,
        headers=parts.headers,
        properties=parts.properties,
        body=parts.body,
        outcomes=outcomes,
        lane=lane,
        dispatches_ms=dispatches_ms,
    )
