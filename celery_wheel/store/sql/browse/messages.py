"""Messages by their ids: one with everything that the store knows of it, or many without their bytes.

The settlement around its position says when a task was dispatched, its row does not. After a replay ranges overlap;
then the earliest settlement counts. Where the settlement is forgotten, the time is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, case, cast, literal_column, null, select, tuple_

from celery_wheel.store.model import ORIGIN, PAUSED, STOPPED, WAITING, LaneState, Parts
from celery_wheel.store.ports.pages import ALL_BYTES, Detail, MessageHead, StoppedTask, Task
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.holding import lane_state
from celery_wheel.store.sql.schema import gate, lane, outcome, route, settlement, timer
from celery_wheel.store.sql.statement import Prepared, columns_of

#: Ids in one query; parts of a statement, of which SQLite allows 500; and its values, of which it allows 32,766.
IDS, PARTS, VALUES = 500, 400, 4_000

#: Most rows of one task id that are returned: a retried task has a row for each try.
MAX_DETAILS = 100

#: Settlements compared for one position, of those that end at or after it: a replay in smaller parts puts the original
#: settlement after all of its own.
NEAR = 32

Lanes = dict[tuple[int, int], LaneState]  #: by shard and lane

TASK = columns_of(Task, timer, route, without=["dispatched_ms"])
OUTCOME = columns_of(StoppedTask, outcome, timer, route)

#: Tasks with their names; outcomes with their tasks.
TASKS = timer.join(route, route.c.id == timer.c.route)
OUTCOMES = outcome.join(timer, timer.c.id == outcome.c.timer_id).join(route, route.c.id == timer.c.route)

_ADDRESS = (route.c.exchange, route.c.exchange_type, route.c.routing_key, route.c.queue, timer.c.envelope_id)
_BYTES = (timer.c.packing, timer.c.message)


def _dispatches() -> Select[Any]:
    """Select (timer, settlement, time) of a position's settlements."""
    place = tuple_(bindparam("due_ms"), bindparam("seq"))
    ends = (settlement.c.to_due_ms, settlement.c.to_seq)
    near = select(settlement).where(settlement.c.shard == bindparam("shard"), settlement.c.lane == bindparam("lane"))
    some: Any = near.where(tuple_(*ends) >= place).order_by(*ends).limit(literal_column(str(NEAR)))
    some = some.offset(literal_column("0")).subquery("near")
    found = select(cast(bindparam("timer"), BigInteger).label("timer"), some.c.id, some.c.dispatched_ms)
    return found.where(tuple_(some.c.from_due_ms, some.c.from_seq) < place)


class Messages(StorePart):
    @cached_property
    def _prepared(self) -> dict[Any, Prepared]:
        return {}

    def detail(self, timer_id: int, most_bytes: int = ALL_BYTES) -> Detail | None:
        """Return the message with this id; None where the store has none. The parts of a message of more than
        ``most_bytes`` are not read, and stay empty; 0 reads the parts of no message."""
        return next(iter(self._details(timer.c.id == timer_id, most_bytes)), None)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Return the messages of a task id, the latest due first, at most a hundred: each try of a task has one.
        Without ``with_bytes``, headers, properties and body are empty."""
        of_task = timer.c.shard.in_(range(self.shards)) & (timer.c.task_id == task_id)
        return self._details(of_task, ALL_BYTES if with_bytes else 0)

    def heads(self, ids: Iterable[int]) -> dict[int, MessageHead]:
        """Return headers and destinations by the id of the row; a missing row is left out."""
        columns, found = (timer.c.id, *_BYTES, route.c.exchange, route.c.routing_key), dict[int, MessageHead]()
        with self._database.reading() as connection:
            for row_id, number, packed, *place in rows_of(connection, select(*columns).select_from(TASKS), list(ids)):
                found[row_id] = MessageHead(
                    self._catalogue.dictionaries.parts(connection, number, packed).headers, *place
                )
        return found

    def tasks(self, ids: Iterable[int]) -> list[Task]:
        """Return the rows of these ids, the first due first; a missing row is left out."""
        with self._database.reading() as connection:
            rows = rows_of(connection, select(*TASK).select_from(TASKS), list(ids))
            return sorted((Task(*row) for row in rows), key=lambda one: one.position)

    def find_pending(self, shard: int, task_ids: Sequence[str]) -> list[Task]:
        """Return the rows of those tasks after the watermarks of the shard: pending, and certainly not published."""
        of_shard = select(*TASK).select_from(TASKS).where(timer.c.shard == shard)
        with self._database.snapshot() as connection:
            lanes = lanes_of(connection, [shard], closed=False)
            found = [Task(*row) for row in rows_of(connection, of_shard, task_ids, timer.c.task_id)]
        watermarks = {number: one.watermark for (_, number), one in lanes.items()}
        return [task for task in found if task.lane in watermarks and task.position > watermarks[task.lane]]

    def dispatches(self, connection: Connection, tasks: Iterable[Task]) -> dict[int, list[int]]:
        """Return id → times of the dispatches, the first one first: several where the broker lost writes."""
        names = ("shard", "lane", "due_ms", "seq")
        parts = [{"timer": one.id, **{name: getattr(one, name) for name in names}} for one in tasks]
        found: dict[int, list[int]] = defaultdict(list)
        for timer_id, _, dispatched_ms in sorted(of_each(connection, self.prepared("dispatches", _dispatches), parts)):
            found[timer_id].append(dispatched_ms)
        return found

    def prepared(self, name: Any, make: Any) -> Prepared:
        if name not in self._prepared:
            self._prepared[name] = self._database.statements(make())
        return self._prepared[name]

    def _details(self, where: Any, most_bytes: int) -> list[Detail]:
        parts: Sequence[Any] = _BYTES
        if most_bytes <= 0:
            parts = [null().label(column.name) for column in _BYTES]
        elif most_bytes < ALL_BYTES:  # a row in which the condition is false costs no read of its bytes
            parts = [case((timer.c.size <= most_bytes, column)).label(column.name) for column in _BYTES]
        latest_first = timer.c.due_ms.desc(), timer.c.seq.desc()
        found = select(*TASK, *_ADDRESS, *parts).select_from(TASKS).where(where)
        outcomes: dict[int, list[StoppedTask]] = defaultdict(list)
        in_order = select(*OUTCOME).select_from(OUTCOMES).order_by(outcome.c.at_ms, outcome.c.id)
        with self._database.snapshot() as connection:
            rows = connection.execute(found.order_by(*latest_first).limit(MAX_DETAILS)).all()
            tasks = [Task(*row[: len(TASK)]) for row in rows]
            lanes = lanes_of(connection, {one.shard for one in tasks}) if tasks else {}
            for row in rows_of(connection, in_order, [one.id for one in tasks], outcome.c.timer_id):
                outcomes[row.timer_id].append(StoppedTask(*row))
            states = [state_of(one, lanes, outcomes[one.id][-1].kind if outcomes[one.id] else None) for one in tasks]
            gone = [one for one, state in zip(tasks, states, strict=True) if state == "dispatched"]
            times = self.dispatches(connection, gone)
            return [
                self._detail(connection, row, state, lanes, outcomes[row.id][:MAX_DETAILS], times.get(row.id, []))
                for row, state in zip(rows, states, strict=True)
            ]

    def _detail(
        self,
        connection: Connection,
        row: Any,
        state: str,
        lanes: Lanes,
        outcomes: list[StoppedTask],
        dispatches_ms: list[int],
    ) -> Detail:
        task = replace(Task(*row[: len(TASK)]), dispatched_ms=next(iter(dispatches_ms), None))
        exchange, exchange_type, routing_key, queue, envelope_id, number, packed = row[len(TASK) :]
        parts = (
            Parts(b"", b"", b"") if packed is None else self._catalogue.dictionaries.parts(connection, number, packed)
        )
        own = lanes.get((task.shard, task.lane))
        return Detail(
            task=task,
            state=state,
            blocked_by=_blocked_by(connection, task, own) if own and state in ("pending", "in doubt") else None,
            exchange=exchange,
            exchange_type=exchange_type,
            routing_key=routing_key,
            queue=queue,
            envelope_id=envelope_id,
            headers=parts.headers,
            properties=parts.properties,
            body=parts.body,
            outcomes=outcomes,
            lane=own,
            dispatches_ms=dispatches_ms,
        )


def _blocked_by(connection: Connection, task: Task, own: LaneState) -> str | None:
    if own.lane != WAITING:
        return own.target
    if task.group is None:
        return f"queue {task.target}"
    of_group = select(gate.c.state).where(
        gate.c.shard == task.shard, gate.c.scope == "group", gate.c.name == task.group
    )
    paused = " (paused)" if connection.scalar(of_group) == PAUSED else ""
    return f"group {task.group}{paused}, queue {task.target}"


def state_of(task: Task, lanes: Lanes, last_outcome: str | None) -> str:
    """Return the state of a message, from its position, its lane and its last outcome; see ``Detail``."""
    if task.lane == STOPPED:
        return last_outcome or "rejected"
    own = lanes.get((task.shard, task.lane))
    if task.position <= (ORIGIN if own is None else own.offset):
        return "dispatched"
    return "in doubt" if own is not None and task.position <= own.watermark else "pending"


def lanes_of(connection: Connection, shards: Iterable[int], *, closed: bool = True) -> Lanes:
    """Return the lanes of the shards, in order; without ``closed``, the open ones."""
    found = select(lane).where(lane.c.shard.in_(list(shards))).order_by(lane.c.shard, lane.c.lane)
    rows = connection.execute(found if closed else found.where(~lane.c.closed))
    return {(row.shard, row.lane): lane_state(row) for row in rows}


def rows_of(
    connection: Connection, query: Select[Any], wanted: Sequence[Any], column: Any = timer.c.id
) -> Iterator[Any]:
    """Yield the rows with these values of a column; ``IDS`` of them in one statement."""
    for start in range(0, len(wanted), IDS):
        yield from connection.execute(query.where(column.in_(wanted[start : start + IDS]))).all()


def of_each(
    connection: Connection, query: Prepared, parts: Sequence[Mapping[str, Any]], order: str = ""
) -> list[tuple[Any, ...]]:
    """Return the rows of a query for each of the parts, which are its values: ``PARTS`` of them in one statement.

    The planner of each dialect sees each part by itself, with its own LIMIT: a range of the index. For ``shard IN``
    with one LIMIT for all it would read all rows of the shards, and sort them.
    """
    found, at_once = list[tuple[Any, ...]](), min(PARTS, VALUES // len(query.names))
    for start in range(0, len(parts), at_once):
        some = parts[start : start + at_once]
        union = " UNION ALL ".join([f"SELECT * FROM ({query.sql}) AS part"] * len(some))  # noqa: S608 - no value is in it
        places = tuple([part[name] for part in some for name in query.names])
        found += [tuple(row) for row in connection.exec_driver_sql(union + order, places)]
    return found
