"""``Handover`` of a SQL store.

::

    waiting     rows behind their lane's offset, in order, with all their bytes; (offset, watermark] may have left
    set_aside   rows that rest because they were rejected or parked
    rest        rows ─► lane REST with the outcome "moved"; out of the pending counts
    rest_early  rows that left before they were due ─► the same, and the batches say only what is left in them
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, and_, delete, exists, func, select, tuple_, update

from celery_wheel.store.changes import add_tally, fence
from celery_wheel.store.loads import count_waiting_in
from celery_wheel.store.model import (
    HOUR_MS,
    REST,
    SHARD_BITS,
    UNIQUE,
    WATCH,
    LaneState,
    Message,
    Move,
    Outcome,
    Position,
    TallyKey,
)
from celery_wheel.store.ports.handover import Hold, Kept
from celery_wheel.store.schema import batch, inbox, lane, outcome, payload, timer, watch
from celery_wheel.store.schema import shard as shards
from celery_wheel.store.statements.parts import IN_PLACES

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore

#: Rows and bytes read at a time; bodies may be large.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1_000, 16 * 2**20

MOVED = "moved"

_MESSAGE = (
    *(timer.c.envelope_id, timer.c.task_id, timer.c.task, timer.c.eta_ms, timer.c.created_ms, timer.c.exchange),
    *(timer.c.exchange_type, timer.c.routing_key, timer.c.queue, timer.c.priority, timer.c.key, timer.c.expires_ms),
    *(timer.c.queue_expires_ms, timer.c.misfire_ms, payload.c.headers, payload.c.properties, payload.c.body),
)
_place = tuple_(timer.c.due_ms, timer.c.seq)
_hand = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_waits = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane, _place > _hand)


class SqlHandover:
    """Implements ``celery_wheel.store.ports.Handover``."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._database = store.database

    def waiting(self, shard: int) -> Iterator[Kept]:
        lanes = [self._lane(shard, state) for state in self._store.lanes(shard)]
        for _, kept in heapq.merge(*lanes, key=itemgetter(0)):
            yield kept

    def _lane(self, shard: int, state: LaneState) -> Iterator[tuple[Position, Kept]]:
        after, own = state.offset, and_(timer.c.shard == shard, timer.c.lane == state.lane)
        columns = (timer.c.id, timer.c.due_ms, timer.c.seq, *_MESSAGE)
        joined = timer.join(payload, payload.c.id == timer.c.id)
        while count := self._count_that_fits(own, after):
            query = select(*columns).select_from(joined).where(own, _place > tuple_(*after))
            with self._database.reading() as connection:
                rows = connection.execute(query.order_by(timer.c.due_ms, timer.c.seq).limit(count)).all()
                claims = _claims(connection, shard, [row.id for row in rows])
            for id_, due_ms, seq, *parts in rows:
                after = Position(due_ms, seq)
                message = _message(parts, claims.get(id_, ()))
                yield after, Kept(id_, shard, due_ms, message, state.redelivered or after <= state.watermark)

    def _count_that_fits(self, own: Any, after: Position) -> int:
        """How many of the next rows are read at once; at least one, if there is one."""
        query = select(timer.c.size).where(own, _place > tuple_(*after)).order_by(timer.c.due_ms, timer.c.seq)
        with self._database.reading() as connection:
            sizes = connection.execute(query.limit(ROWS_AT_ONCE)).scalars().all()
        weight = 0
        for number, size in enumerate(sizes):
            weight += size
            if number and weight > BYTES_AT_ONCE:
                return number
        return len(sizes)

    def count_waiting(self, shard: int) -> int:
        query = select(func.count()).select_from(timer.join(lane, _waits)).where(timer.c.shard == shard)
        with self._database.reading() as connection:
            count: int = connection.execute(query).scalar_one()
        return count

    def count_inbox(self) -> int:
        with self._database.reading() as connection:
            count: int = connection.execute(select(func.count()).select_from(inbox)).scalar_one()
            return count + count_waiting_in(connection)

    def count_set_aside(self, shard: int, kinds: Collection[str]) -> int:
        joined, where = _set_aside(shard, kinds)
        with self._database.reading() as connection:
            count: int = connection.execute(select(func.count()).select_from(joined).where(where)).scalar_one()
        return count

    def set_aside(self, shard: int, kinds: Collection[str]) -> Iterator[Kept]:
        joined, where = _set_aside(shard, kinds)
        columns = (timer.c.id, timer.c.due_ms, outcome.c.kind, outcome.c.reason, *_MESSAGE)
        source, after = joined.join(payload, payload.c.id == timer.c.id), -1
        while True:
            query = select(*columns).select_from(source).where(where, timer.c.id > after)
            with self._database.reading() as connection:
                rows = connection.execute(query.order_by(timer.c.id).limit(50)).all()
            if not rows:
                return
            for after, due_ms, kind, reason, *parts in rows:
                yield Kept(after, shard, due_ms, _message(parts), set_aside=kind, reason=reason)

    def rest(self, hold: Hold, ids: Sequence[int], reason: str) -> int:
        waits = select(timer.c.id, timer.c.due_ms, timer.c.queue, timer.c.routing_key, timer.c.task).join(lane, _waits)
        done = 0
        for start in range(0, len(ids), 500):
            part = list(ids[start : start + 500])
            with self._database.writing() as connection:
                fence(connection, self._database.statements, hold.shard, hold.epoch)
                rows = connection.execute(waits.where(timer.c.shard == hold.shard, timer.c.id.in_(part))).all()
                gone = exists().where(outcome.c.timer_id == timer.c.id, outcome.c.kind == MOVED)
                here = and_(timer.c.shard == hold.shard, timer.c.lane == REST, timer.c.id.in_(part))
                resting = connection.execute(select(timer.c.id).where(here, ~gone)).scalars().all()
                self._lay(connection, hold, [row.id for row in rows], resting, reason)
                gone_from = Counter(TallyKey(r.due_ms // HOUR_MS, r.queue or r.routing_key, r.task) for r in rows)
                less = {key: -count for key, count in gone_from.items()}
                add_tally(connection, self._database.statements, hold.shard, less)
            done += len(rows)
        return done

    def rest_early(self, hold: Hold, reason: str) -> int:
        early = and_(batch.c.shard == hold.shard, batch.c.to_due_ms > batch.c.dispatched_ms)
        done = 0
        with self._database.reading() as connection:
            found = connection.execute(select(batch).where(early).order_by(batch.c.id)).all()
        for one in found:
            more = True
            while more:
                with self._database.writing() as connection:
                    fence(connection, self._database.statements, hold.shard, hold.epoch)
                    moved = self._rest_of(connection, hold, one, reason)
                    more = moved == ROWS_AT_ONCE
                    if not more:
                        _correct(connection, one)
                done += moved
        return done

    def _rest_of(self, connection: Connection, hold: Hold, one: Any, reason: str) -> int:
        settled = exists().where(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane, _place <= _hand)
        query = select(timer.c.id).where(_of(one), timer.c.due_ms > one.dispatched_ms, settled)
        in_order = query.order_by(timer.c.due_ms, timer.c.seq).limit(ROWS_AT_ONCE)
        ids = connection.execute(in_order).scalars().all()
        self._lay(connection, hold, ids, (), reason)
        return len(ids)

    def _lay(self, connection: Connection, hold: Hold, ids: Sequence[int], resting: Sequence[int], reason: str) -> None:
        """``ids`` come to rest, and these and those ``resting`` already have the outcome."""
        number: int = connection.execute(select(shards.c.seq).where(shards.c.shard == hold.shard)).scalar_one()
        count = number >> SHARD_BITS

        def next_seq() -> int:
            nonlocal count
            count += 1
            return count << SHARD_BITS | hold.shard

        statements = self._database.statements
        statements.move.many(connection, [Move(row_id, REST, hold.now_ms, next_seq()) for row_id in ids], hold.shard)
        statements.commanding.unwatch.many(connection, [(row_id,) for row_id in ids])
        moved = [Outcome(next_seq(), row_id, MOVED, reason, "drain", hold.now_ms) for row_id in (*ids, *resting)]
        statements.add_outcome.many(connection, moved, hold.shard)
        connection.execute(
            update(shards).where(shards.c.shard == hold.shard).values(seq=count << SHARD_BITS | hold.shard)
        )

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, Position]:
        now, found = Position(now_ms, self._store.state(shard).seq), {}
        for state in self._store.lanes(shard):
            if state.watermark > now:
                found[state.lane] = now
            elif state.watermark > state.offset:
                found[state.lane] = state.watermark
        return found


def _claims(connection: Connection, shard: int, ids: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """By row: the kinds and keys that it watches, or of which it is the only one."""
    found = defaultdict(list)
    for start in range(0, len(ids), IN_PLACES):
        here = and_(watch.c.shard == shard, watch.c.timer_id.in_(ids[start : start + IN_PLACES]))
        for id_, kind, key in connection.execute(select(watch.c.timer_id, watch.c.kind, watch.c.key).where(here)):
            found[id_].append((kind, key))
    return found


def _set_aside(shard: int, kinds: Collection[str]) -> Any:
    """Resting rows whose last outcome is of these kinds."""
    others = outcome.alias()
    last = select(func.max(others.c.id)).where(others.c.timer_id == timer.c.id).scalar_subquery()
    joined = timer.join(outcome, and_(outcome.c.timer_id == timer.c.id, outcome.c.id == last))
    where = and_(timer.c.shard == shard, timer.c.lane == REST, outcome.c.kind.in_(list(kinds)))
    return joined, where


def _of(one: Any) -> Any:
    """The rows of a batch."""
    start, end = tuple_(one.from_due_ms, one.from_seq), tuple_(one.to_due_ms, one.to_seq)
    return and_(timer.c.shard == one.shard, timer.c.lane == one.lane, start < _place, end >= _place)


def _correct(connection: Connection, one: Any) -> None:
    """Of the batch remains what was due when it left: or it would claim what comes to these positions later."""
    figures = select(func.count(), func.coalesce(func.sum(timer.c.size), 0), func.max(timer.c.due_ms)).where(_of(one))
    count, weight, last_ms = connection.execute(figures).one()
    if count:
        last = select(func.max(timer.c.seq)).where(_of(one), timer.c.due_ms == last_ms)
        seq = connection.execute(last).scalar_one()
        values = {"count": count, "bytes": int(weight), "to_due_ms": last_ms, "to_seq": seq}
        connection.execute(update(batch).where(batch.c.id == one.id).values(**values))
    else:
        connection.execute(delete(batch).where(batch.c.id == one.id))
    less = one.bytes - int(weight)
    connection.execute(
        update(shards).where(shards.c.shard == one.shard).values(history_bytes=shards.c.history_bytes - less)
    )


def _message(parts: Sequence[Any], claims: Iterable[tuple[str, str]] = ()) -> Message:
    values = dict(zip((column.name for column in _MESSAGE), parts, strict=True))
    values["envelope_id"] = str(UUID(str(values["envelope_id"])))  # a database that knows UUIDs has dashes, one not
    for name in ("headers", "properties", "body"):
        values[name] = bytes(values[name])
    message = Message(**values)
    message.watch = [key for kind, key in claims if kind == WATCH] or None
    message.unique = next((key for kind, key in claims if kind == UNIQUE), None)
    return message
