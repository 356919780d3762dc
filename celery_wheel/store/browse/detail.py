"""One message with all that the store knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, null, select

from celery_wheel.store.browse.rows import STOPPED_COLUMNS, TASK_COLUMNS
from celery_wheel.store.browse.when import with_times
from celery_wheel.store.database import Database
from celery_wheel.store.model import ORIGIN, REST, LaneState
from celery_wheel.store.ports.pages import Detail, Stopped, Task
from celery_wheel.store.schema import outcome, payload, timer

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore

#: Rows of one task id that are shown: a retried task has one row a try.
FOUND = 100

_MORE = (timer.c.exchange, timer.c.exchange_type, timer.c.routing_key, timer.c.queue, timer.c.envelope_id)
_BYTES = (payload.c.headers, payload.c.properties, payload.c.body)
_NO_BYTES = tuple(null().label(column.name) for column in _BYTES)


class Details:
    """A part of ``SqlBrowse``."""

    _store: SqlStore
    _database: Database

    def detail(self, timer_id: int) -> Detail | None:
        found = self._details(timer.c.id == timer_id)
        return found[0] if found else None

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        found = [
            one
            for shard in range(self._store.shards)
            for one in self._details((timer.c.shard == shard) & (timer.c.task_id == task_id), with_bytes)
        ]
        return sorted(found, key=lambda one: one.task.position, reverse=True)[:FOUND]

    def _details(self, where: ColumnElement[bool], with_bytes: bool = True) -> list[Detail]:
        source = timer.outerjoin(payload, payload.c.id == timer.c.id) if with_bytes else timer
        parts = _BYTES if with_bytes else _NO_BYTES
        wanted = select(*TASK_COLUMNS, *_MORE, *parts).select_from(source).where(where)
        in_order = wanted.order_by(timer.c.due_ms.desc(), timer.c.seq.desc()).limit(FOUND)
        with self._database.snapshot() as connection:
            rows = connection.execute(in_order).all()
            shards = {row.shard for row in rows}
            lanes = {
                (shard, one.lane): one
                for shard in shards
                for one in self._store.lanes_seen_by(connection, shard, closed=True)
            }
            return [_detail(connection, lanes, row) for row in rows]


def _detail(connection: Connection, lanes: dict[tuple[int, int], LaneState], row: Any) -> Detail:
    columns = len(TASK_COLUMNS)
    task = Task(*row[:columns])
    exchange, exchange_type, routing_key, queue, envelope_id, *parts = row[columns:]
    lane, stopped = lanes.get((task.shard, task.lane)), _outcomes(connection, task.id)
    state = _state(task, lane, stopped)
    if state == "dispatched":
        (task,) = with_times(connection, [task])
    return Detail(
        task=task,
        state=state,
        waits_for=lane.target if lane is not None and state in ("pending", "leaving") else None,
        exchange=exchange,
        exchange_type=exchange_type,
        routing_key=routing_key,
        queue=queue,
        envelope_id=str(envelope_id),
        headers=bytes(parts[0] or b""),
        properties=bytes(parts[1] or b""),
        body=bytes(parts[2] or b""),
        outcomes=stopped,
    )


def _outcomes(connection: Connection, timer_id: int) -> list[Stopped]:
    joined = outcome.join(timer, timer.c.id == outcome.c.timer_id)
    wanted = select(*STOPPED_COLUMNS).select_from(joined).where(outcome.c.timer_id == timer_id)
    return [Stopped(*row) for row in connection.execute(wanted.order_by(outcome.c.at_ms, outcome.c.id).limit(FOUND))]


def _state(task: Task, lane: LaneState | None, stopped: list[Stopped]) -> str:
    if task.lane == REST:
        return stopped[-1].kind if stopped else "parked"
    if task.position <= (ORIGIN if lane is None else lane.offset):
        return "dispatched"
    return "leaving" if lane is not None and task.position <= lane.watermark else "pending"
