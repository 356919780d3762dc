"""Counts and times of a whole store. Every commit keeps the tally and its sums, so no pending row is counted.

``overview`` takes four statements, however many shards and lanes the store has: shards, open lanes, gates, and one list
of counts (kind, number, queue, task, value)::

    shard      shard → pending          name      queue, task → pending
    hour       hour → pending           day       day → pending           both of all shards
    second     second → pending         of 61 minutes from the present one, from the rows: only where it is asked for
    seen       scheduler → its last sign of life
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    null,
    select,
    tuple_,
    union,
)

from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import HOUR_MS, Gate
from celery_wheel.store.ports import pages
from celery_wheel.store.sql.browse.pages import LAST_HOUR, routes_of, shards_of
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.holding import lane_state, shard_record
from celery_wheel.store.sql.schema import (
    dictionary,
    gate,
    inbox,
    lane,
    load_chunk,
    route,
    scheduler,
    shard,
    snapshot,
    tally,
    timer,
    total,
)
from celery_wheel.store.sql.statement import SHOWN, columns_of
from celery_wheel.store.store_model import ServerState
from celery_wheel.values.keyring import HEAD_BYTES, OVERHEAD, key_of

#: Most names of the list of a filter; a longer list is of no use to people.
NAMES = 1_000

MINUTE_MS = 60_000

_NOTHING: ColumnElement[str] = literal_column("''")


def _shards(levels: ColumnElement[Any]) -> Select[Any]:
    items = select(inbox.c.rows).where(inbox.c.shard == shard.c.shard).limit(pages.COUNTED).correlate(shard).subquery()
    depth = select(func.coalesce(func.sum(func.coalesce(items.c.rows, 1)), 0)).scalar_subquery().label("inbox")
    found = select(shard, *SHOWN, levels.label("levels"), depth)
    return found.outerjoin(snapshot, snapshot.c.shard == shard.c.shard).order_by(shard.c.shard)


_OFFSET = [column + literal_column("0") for column in (lane.c.offset_due_ms, lane.c.offset_seq)]
_IS_AFTER = tuple_(timer.c.due_ms, timer.c.seq) > tuple_(*_OFFSET)

#: The pending rows of a lane. SQLite compares a pair with columns of another table by its first half alone: it
#: would read every dispatched row of a herd whose tasks have one due time.
_IS_PENDING = and_(timer.c.shard == lane.c.shard, timer.c.lane == lane.c.lane, _IS_AFTER)

#: Lanes with their pending rows.
PENDING = lane.join(timer, _IS_PENDING)


def _lanes() -> Select[Any]:
    first = select(timer.c.due_ms).where(_IS_PENDING).order_by(timer.c.due_ms, timer.c.seq).limit(1)
    due = select(timer.c.size).where(_IS_PENDING, timer.c.due_ms <= bindparam("now_ms")).limit(pages.COUNTED)
    overdue = select(func.count()).select_from(due.correlate(lane).subquery()).scalar_subquery().label("overdue")
    next_due = first.correlate(lane).scalar_subquery().label("next_due_ms")
    return select(lane, next_due, overdue).where(~lane.c.closed).order_by(lane.c.shard, lane.c.lane)


def _line(kind: str, number: Any, value: Any, queue: Any = _NOTHING, task: Any = _NOTHING) -> Select[Any]:
    of_kind: ColumnElement[str] = literal_column(f"'{kind}'")
    columns = {"kind": of_kind, "number": number, "queue": queue, "task": task, "value": value}
    return select(*[column.label(name) for name, column in columns.items()])


def _sums(kind: str, number: ColumnElement[Any], *more: ColumnElement[bool]) -> Select[Any]:
    """Select the sums of the tally of a kind by a number."""
    sums = _line(kind, number, func.sum(total.c.pending))
    return sums.where(total.c.kind == kind, total.c.pending > 0, *more).group_by(number)


def _names() -> Select[Any]:
    sums = _sums("name", total.c.number).order_by(func.sum(total.c.pending).desc()).limit(pages.PAIRS).subquery("sums")
    named = _line("name", literal_column("0"), sums.c.value, route.c.target, route.c.task)
    return named.select_from(sums.join(route, route.c.id == sums.c.number))


def _seconds() -> Select[Any]:
    within = and_(timer.c.due_ms >= bindparam("minute_ms"), timer.c.due_ms < bindparam("until_ms"), ~lane.c.closed)
    second = timer.c.due_ms.op("/")(literal_column("1000"))
    return _line("second", second, func.count()).select_from(PENDING).where(within).group_by(second)


@cache
def counts(*, with_seconds: bool, with_names: bool) -> Any:
    return _sums("shard", total.c.shard).union_all(
        _sums("hour", total.c.number, total.c.number < bindparam("before_hour")),
        _sums("day", total.c.number),
        _line("seen", literal_column("0"), scheduler.c.seen_ms, scheduler.c.name),
        *([_names()] if with_names else []),
        *([_seconds()] if with_seconds else []),
    )


SHARDS, SHARDS_WITH_LEVELS = (_shards(levels) for levels in (null(), snapshot.c.levels))
LANES = _lanes()
GATES = select(gate.c.shard, *columns_of(Gate, gate)).order_by(gate.c.id)


class StoreCounts(StorePart):
    def overview(
        self,
        now_ms: int,
        before_ms: int,
        *,
        with_seconds: bool = False,
        with_levels: bool = False,
        with_names: bool = True,
    ) -> pages.OverviewRows:
        """Return the state of all shards at one moment.

        Args:
            now_ms: rows that are due then are overdue.
            before_ms: the end of the hours that are counted one by one.
            with_seconds, with_names: count the rows of 61 minutes by the second; and the most by queue and task.
            with_levels: include the levels of each holder in its snapshot.
        """
        minute_ms = now_ms - now_ms % MINUTE_MS
        times = {"now_ms": now_ms, "minute_ms": minute_ms, "until_ms": minute_ms + MINUTE_MS + HOUR_MS}
        times["before_hour"] = before_ms // HOUR_MS
        found = defaultdict[str, dict[Any, int]](dict)
        with self._database.snapshot() as connection:
            shards = connection.execute(SHARDS_WITH_LEVELS if with_levels else SHARDS).all()
            lanes = connection.execute(LANES, times).all()
            gates = connection.execute(GATES).all()
            query = counts(with_seconds=with_seconds, with_names=with_names)
            for kind, number, queue, task, value in connection.execute(query, times):
                found[kind][{"name": (queue, task), "seen": queue}.get(kind, number)] = int(value)
        return pages.OverviewRows(
            shards=[pages.ShardHead(shard_record(row), int(row.inbox)) for row in shards],
            lanes=[pages.LaneHead(row.shard, lane_state(row), row.next_due_ms, row.overdue) for row in lanes],
            gates=[(number, Gate(*one)) for number, *one in gates],
            pending=found["shard"],
            names=found["name"] if with_names else None,
            hours=found["hour"],
            days=found["day"],
            seconds=found["second"] if with_seconds else None,
            schedulers=found["seen"],
        )

    def size(self) -> pages.StoreSize:
        return self._database.size()

    def server(self) -> ServerState | None:
        """Return what the store's server promises, and what costs it; None where the store is a file."""
        return self._database.server()

    def keys(self) -> list[str | None]:
        """Return the ids of the keys that messages need, the present one last; None: some are not encrypted.

        Items of inboxes and loads count where they are encrypted: a load may be open for weeks.
        """
        payloads = [table.c.payload for table in (inbox, load_chunk)]
        heads = union(
            *[select(func.substr(one, 1, HEAD_BYTES)).where(func.length(one) >= OVERHEAD) for one in payloads]
        )
        with self._database.reading() as connection:
            arriving = [key_of(bytes(head).ljust(OVERHEAD)) for head in connection.execute(heads).scalars()]
            found = connection.execute(select(dictionary.c.content).order_by(dictionary.c.id)).scalars()
            ids = [*filter(None, arriving), *[key_of(bytes(content)) for content in found]]
        last = dict.fromkeys(reversed([None if one is None else one.hex() for one in ids]))
        return list(reversed(last))

    def levels(self, number: int) -> list[dict[str, Any]]:
        """Return the levels of the last snapshot of a shard's holder; empty where there is none."""
        with self._database.reading() as connection:
            found = connection.scalar(select(snapshot.c.levels).where(snapshot.c.shard == number))
        return [] if found is None else list(json.loads(found))

    def lanes(self, number: int) -> pages.ShardLanes:
        """Return a shard's open lanes and their next due times."""
        with self._database.reading() as connection:
            rows = connection.execute(LANES.where(lane.c.shard == number), {"now_ms": 0}).all()
        next_due_ms = {row.lane: row.next_due_ms for row in rows if row.next_due_ms is not None}
        return pages.ShardLanes([lane_state(row) for row in rows], next_due_ms)

    def due_by_name(self, criteria: pages.Criteria, by: str | None = None) -> list[pages.NamedHourCount]:
        """Return pending tasks by hour, and by ``"queue"`` or ``"task"``; without ``by`` the name is empty.

        An hour is included where it ends after ``from_ms`` and begins before ``to_ms``.
        """
        if criteria.key is not None or criteria.group is not None:
            raise ArgumentError("forecast must have no key and no group: its counts are by shard, queue and task")
        name = literal("") if by is None else {"queue": route.c.target, "task": route.c.task}[by]
        wanted = [tally.c.pending > 0, tally.c.shard.in_(shards_of(self.shards, criteria)), *routes_of(criteria)]
        wanted += [] if criteria.from_ms is None else [tally.c.hour >= min(criteria.from_ms // HOUR_MS, LAST_HOUR)]
        wanted += [] if criteria.to_ms is None else [tally.c.hour < min(-(-criteria.to_ms // HOUR_MS), LAST_HOUR)]
        groups = (tally.c.hour,) if by is None else (tally.c.hour, name)
        rows = tally if by is None else tally.join(route, route.c.id == tally.c.route)
        query = select(tally.c.hour, name, func.sum(tally.c.pending)).select_from(rows).where(*wanted)
        with self._database.reading() as connection:
            found = connection.execute(query.group_by(*groups).order_by(*groups)).all()
        return [pages.NamedHourCount(hour * HOUR_MS, str(one), int(pending)) for hour, one, pending in found]

    def count_pending(self, number: int) -> int:
        """Return how many tasks of a shard are pending."""
        pending = select(func.sum(total.c.pending)).where(total.c.shard == number, total.c.kind == "shard")
        with self._database.reading() as connection:
            return int(connection.scalar(pending) or 0)

    def names(self) -> pages.Names:
        """Return the queues and the tasks with the most pending tasks, at most a thousand of each."""
        queues, tasks = Counter[str](), Counter[str]()
        with self._database.reading() as connection:
            for _, _, queue, task, count in connection.execute(_names()):
                queues[queue] += int(count)
                tasks[task] += int(count)
        return pages.Names(*(dict(sorted(found.most_common(NAMES))) for found in (queues, tasks)))
