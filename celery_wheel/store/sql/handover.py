"""A drain: every pending task as a whole message, and the mark of tasks that are elsewhere now.

::

    pending           rows after their lane's offset, in order, with their bytes; (offset, watermark] is in doubt
    stopped           rows of lane STOPPED with these outcomes
    find              rows of any lane, by their envelope ids
    schedules         by id, with their revisions; removed as every holder does it, by ``apply``
    mark_moved        rows ─► lane STOPPED, outcome "moved"; out of the pending counts
    mark_early_moved  rows dispatched before they were due ─► the same; their batches shrink to the other rows

Every write begins with the fence of the shard's epoch, like every write of a holder: it raises Fenced and writes
nothing where another holder has the shard. A transaction has at most a thousand rows, and a later call does not find
them again: every method can be interrupted at any point and called again.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    select,
    tuple_,
    update,
)

from celery_wheel.store.model import (
    HOUR_MS,
    SHARD_BITS,
    STOPPED,
    UNIQUE,
    WATCH,
    LaneState,
    Message,
    Move,
    Outcome,
    Position,
    Route,
    TallyKey,
)
from celery_wheel.store.schedule_model import Revision
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.changes import ChangeStatements, recount
from celery_wheel.store.sql.control import ControlStatements
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import LeaseStatements, advance, fence, read_lanes
from celery_wheel.store.sql.intake import ENVELOPES, IntakeStatements
from celery_wheel.store.sql.loads import count_pending_in
from celery_wheel.store.sql.queries.browse import TASKS
from celery_wheel.store.sql.schedules import SCHEDULE, revision_of, schedule_of
from celery_wheel.store.sql.schema import (
    batch,
    inbox,
    lane,
    outcome,
    revision,
    route,
    schedule,
    timer,
    uuids_to_bytes,
    watch,
)
from celery_wheel.store.sql.statement import IN_PLACES, columns_of, in_parts
from celery_wheel.store.store_model import MOVED, HandoverMessage, HandoverSchedule, ShardEpoch

#: The packing and the bytes of a message, and the other columns of a ``Message``, by their names.
MESSAGE = (
    *(timer.c.packing, timer.c.message, timer.c.envelope_id, timer.c.task_id, timer.c.eta_ms, timer.c.created_ms),
    *(timer.c.key, timer.c.expires_ms, timer.c.misfire_ms, *[route.c[name] for name in Route.__slots__]),
)

_KEY = (timer.c.due_ms, timer.c.seq)
_PLACE = tuple_(*_KEY)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_SAME_LANE = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)
_IS_PENDING = and_(_SAME_LANE, _PLACE > _OFFSET)
_OF_SHARD = timer.c.shard == bindparam("shard")
_AMONG_IDS = timer.c.id.in_(bindparam("ids", expanding=True))
_LIMIT: Any = bindparam("limit")

# -- pending rows -----------------------------------------------------------------------------------

_AFTER = and_(
    _OF_SHARD, timer.c.lane == bindparam("lane"), tuple_(bindparam("after_due_ms"), bindparam("after_seq")) < _PLACE
)
SIZES_AFTER = select(timer.c.size).where(_AFTER).order_by(*_KEY).limit(_LIMIT)
#: (id, due_ms, seq, message …) of a lane's next rows.
MESSAGES_AFTER = select(timer.c.id, *_KEY, *MESSAGE).select_from(TASKS).where(_AFTER).order_by(*_KEY).limit(_LIMIT)
CLAIMS = select(watch.c.timer_id, watch.c.kind, watch.c.key).where(
    watch.c.shard == bindparam("shard"), watch.c.timer_id.in_(bindparam("ids", expanding=True))
)
COUNT_PENDING = select(func.count()).select_from(timer.join(lane, _IS_PENDING)).where(_OF_SHARD)
#: The pending rows among ``ids``, with the columns of their tally keys.
PENDING_AMONG = (
    select(timer.c.id, timer.c.due_ms, route.c.target, route.c.task)
    .select_from(TASKS.join(lane, _IS_PENDING))
    .where(_OF_SHARD, _AMONG_IDS)
)
COUNT_INBOX = select(func.coalesce(func.sum(func.coalesce(inbox.c.rows, 1)), 0))

# -- stopped rows -----------------------------------------------------------------------------------

_others = outcome.alias()
_LAST = select(func.max(_others.c.id)).where(_others.c.timer_id == timer.c.id).scalar_subquery()
_WITH_OUTCOME = timer.join(outcome, and_(outcome.c.timer_id == timer.c.id, outcome.c.id == _LAST))
_IS_STOPPED = and_(_OF_SHARD, timer.c.lane == STOPPED)
_OF_KINDS = and_(_IS_STOPPED, outcome.c.kind.in_(bindparam("kinds", expanding=True)))
COUNT_STOPPED = select(func.count()).select_from(_WITH_OUTCOME).where(_OF_KINDS)
#: (id, due_ms, kind, reason, message …) of stopped rows with ids above ``after``.
STOPPED_MESSAGES = (
    select(timer.c.id, timer.c.due_ms, outcome.c.kind, outcome.c.reason, *MESSAGE)
    .select_from(_WITH_OUTCOME.join(route, route.c.id == timer.c.route))
    .where(_OF_KINDS, timer.c.id > bindparam("after"))
    .order_by(timer.c.id)
    .limit(_LIMIT)
)
#: (id, due_ms, lane, accepted_ms, kind, reason, message …) of rows, with their last outcome if they have one.
MESSAGES_OF = (
    select(timer.c.id, timer.c.due_ms, timer.c.lane, timer.c.accepted_ms, outcome.c.kind, outcome.c.reason, *MESSAGE)
    .select_from(TASKS.outerjoin(outcome, and_(outcome.c.timer_id == timer.c.id, outcome.c.id == _LAST)))
    .where(_AMONG_IDS)
    .order_by(timer.c.id)
)
_IS_MOVED = exists().where(outcome.c.timer_id == timer.c.id, outcome.c.kind == MOVED)
#: The ids of stopped rows among ``ids`` that were not moved.
STOPPED_AMONG = select(timer.c.id).where(_IS_STOPPED, _AMONG_IDS, ~_IS_MOVED)

# -- settlements of rows that were not due: the values are those of a batch ----------------------------

EARLY_BATCHES = (
    select(batch)
    .where(batch.c.shard == bindparam("shard"), batch.c.to_due_ms > batch.c.dispatched_ms)
    .order_by(batch.c.id)
)
_IN_BATCH: ColumnElement[bool] = and_(
    _OF_SHARD,
    timer.c.lane == bindparam("lane"),
    tuple_(bindparam("from_due_ms"), bindparam("from_seq")) < _PLACE,
    tuple_(bindparam("to_due_ms"), bindparam("to_seq")) >= _PLACE,
)
_IS_SETTLED = exists().where(_SAME_LANE, _PLACE <= _OFFSET)
#: The ids of a batch's settled rows that were due after its dispatch.
EARLY_ROWS = (
    select(timer.c.id)
    .where(_IN_BATCH, timer.c.due_ms > bindparam("dispatched_ms"), _IS_SETTLED)
    .order_by(*_KEY)
    .limit(_LIMIT)
)
#: (count, bytes, last due_ms) of a batch's rows.
BATCH_FIGURES = select(func.count(), func.coalesce(func.sum(timer.c.size), 0), func.max(timer.c.due_ms)).where(
    _IN_BATCH
)
LAST_SEQ = select(func.max(timer.c.seq)).where(_IN_BATCH, timer.c.due_ms == bindparam("last_ms"))
DELETE_BATCH = delete(batch).where(batch.c.id == bindparam("id"))
SHRINK_BATCH = (
    update(batch)
    .where(batch.c.id == bindparam("batch"))
    .values({name: bindparam(f"new_{name}") for name in ("count", "bytes", "to_due_ms", "to_seq")})
)

# -- schedules ------------------------------------------------------------------------------------------

COUNT_SCHEDULES = select(func.count()).select_from(schedule).where(schedule.c.shard == bindparam("shard"))
#: The schedules of a shard with ids above ``after``.
SCHEDULES = (
    select(*SCHEDULE)
    .where(schedule.c.shard == bindparam("shard"), schedule.c.id > bindparam("after"))
    .order_by(schedule.c.id)
    .limit(_LIMIT)
)
REVISIONS = (
    select(*columns_of(Revision, revision))
    .where(revision.c.schedule.in_(bindparam("ids", expanding=True)))
    .order_by(revision.c.schedule, revision.c.number)
)


#: Rows and bytes read at a time; bodies may be large.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1_000, 16 * 2**20

#: Stopped messages, and schedules with their revisions, read at a time, whatever their size.
STOPPED_AT_ONCE, SCHEDULES_AT_ONCE = 50, 200


class SqlHandover:
    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue
        self._statements = database.statements

    def pending(self, shard: int) -> Iterator[HandoverMessage]:
        """Iterate over the pending messages of all lanes, in order of position, with their bytes, a page at a time."""
        lanes = [self._lane(shard, state) for state in self._lanes(shard)]
        for _, message in heapq.merge(*lanes, key=itemgetter(0)):
            yield message

    def _lanes(self, shard: int) -> list[LaneState]:
        with self._database.reading() as connection:
            return read_lanes(connection, self._statements, shard)

    def _lane(self, shard: int, state: LaneState) -> Iterator[tuple[Position, HandoverMessage]]:
        after = state.offset
        while count := self._page_length(shard, state.lane, after):
            values = {"shard": shard, "lane": state.lane, **_after(after), "limit": count}
            with self._database.reading() as connection:
                rows = connection.execute(MESSAGES_AFTER, values).all()
                claims = _claims(connection, shard, [row.id for row in rows])
                messages = [self._message(connection, row[3:], claims.get(row.id, ())) for row in rows]
            for (id_, due_ms, seq, *_), message in zip(rows, messages, strict=True):
                after = Position(due_ms, seq)
                yield after, HandoverMessage(id_, shard, due_ms, message, state.redelivered or after <= state.watermark)

    def _page_length(self, shard: int, lane: int, after: Position) -> int:
        """Return how many of the next rows fit into one read; at least one if any exists."""
        values = {"shard": shard, "lane": lane, **_after(after), "limit": ROWS_AT_ONCE}
        with self._database.reading() as connection:
            sizes = connection.execute(SIZES_AFTER, values).scalars().all()
        weight = 0
        for number, size in enumerate(sizes):
            weight += size
            if number and weight > BYTES_AT_ONCE:
                return number
        return len(sizes)

    def stopped(self, shard: int, kinds: Collection[str]) -> Iterator[HandoverMessage]:
        """Iterate over the stopped messages whose last outcome is of these kinds, in the order of their ids."""
        after, values = -1, {"shard": shard, "kinds": list(kinds), "limit": STOPPED_AT_ONCE}
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(STOPPED_MESSAGES, values | {"after": after}).all()
                messages = [self._message(connection, row[4:]) for row in rows]
            if not rows:
                return
            for (after, due_ms, kind, reason, *_), message in zip(rows, messages, strict=True):
                yield HandoverMessage(after, shard, due_ms, message, outcome=kind, reason=reason)

    def find(self, shard: int, envelope_ids: Sequence[str]) -> list[HandoverMessage]:
        """Return the messages with these ids that the shard has, pending or not, with their bytes."""
        found: list[HandoverMessage] = []
        with self._database.reading() as connection:
            for part in in_parts(uuids_to_bytes(envelope_ids), IN_PLACES):
                known = self._statements.of(IntakeStatements).known(
                    connection, shard=shard, **dict(zip(ENVELOPES, part, strict=True))
                )
                ids = sorted({row_id for _, _, row_id in known})
                for start in range(0, len(ids), STOPPED_AT_ONCE):
                    rows = connection.execute(MESSAGES_OF, {"ids": ids[start : start + STOPPED_AT_ONCE]}).all()
                    for id_, due_ms, lane, accepted_ms, kind, reason, *message in rows:
                        why = {"outcome": kind, "reason": reason} if lane == STOPPED else {}
                        one = HandoverMessage(id_, shard, due_ms, self._message(connection, message), **why)
                        one.accepted_ms = accepted_ms
                        found.append(one)
        return found

    def _message(
        self, connection: Connection, columns: Sequence[Any], claims: Iterable[tuple[str, str]] = ()
    ) -> Message:
        number, packed, *values = columns
        names = [column.name for column in MESSAGE[2:]]
        parts = self._catalogue.parts(connection, number, packed)
        message = Message(**dict(zip(names, values, strict=True)), **parts._asdict())
        message.watch = [key for kind, key in claims if kind == WATCH] or None
        message.unique = next((key for kind, key in claims if kind == UNIQUE), None)
        return message

    def count_pending(self, shard: int) -> int:
        """Return how many rows are after their lane's offset, counted row by row."""
        return self._count(COUNT_PENDING, shard=shard)

    def count_stopped(self, shard: int, kinds: Collection[str]) -> int:
        return self._count(COUNT_STOPPED, shard=shard, kinds=list(kinds))

    def schedules(self, shard: int) -> Iterator[HandoverSchedule]:
        """Iterate over the schedules of a shard in the order of their ids, a page at a time."""
        values = {"shard": shard, "after": -1, "limit": SCHEDULES_AT_ONCE}
        while True:
            with self._database.reading() as connection:
                page = [schedule_of(row) for row in connection.execute(SCHEDULES, values)]
                ids = [one.id for one in page]
                revisions = [revision_of(row) for row in connection.execute(REVISIONS, {"ids": ids})]
            if not page:
                return
            changes = defaultdict(list)
            for change in revisions:
                changes[change.schedule].append(change)
            for one in page:
                yield HandoverSchedule(shard, one, changes[one.id])
            values["after"] = ids[-1]

    def count_schedules(self, shard: int) -> int:
        return self._count(COUNT_SCHEDULES, shard=shard)

    def count_inbox(self) -> int:
        """Return how many messages and commands the inboxes of all shards have, with those of committed loads."""
        with self._database.reading() as connection:
            count: int = connection.execute(COUNT_INBOX).scalar_one()
            return count + count_pending_in(connection)

    def _count(self, query: Select[Any], **values: Any) -> int:
        with self._database.reading() as connection:
            count: int = connection.execute(query, values).scalar_one()
        return count

    def mark_moved(self, hold: ShardEpoch, ids: Sequence[int], reason: str) -> int:
        """Give the pending and the stopped rows among ``ids`` the outcome "moved"; returns how many were pending."""
        done = 0
        for start in range(0, len(ids), IN_PLACES):
            part = {"shard": hold.shard, "ids": list(ids[start : start + IN_PLACES])}
            with self._database.writing() as connection:
                fence(connection, self._statements, hold.shard, hold.epoch)
                rows = connection.execute(PENDING_AMONG, part).all()
                stopped = connection.execute(STOPPED_AMONG, part).scalars().all()
                self._move(connection, hold, [row.id for row in rows], stopped, reason)
                counts = Counter(TallyKey(row.due_ms // HOUR_MS, row.target, row.task) for row in rows)
                less = {key: -count for key, count in counts.items()}
                recount(connection, self._statements, self._catalogue, hold.shard, less)
            done += len(rows)
        return done

    def mark_early_moved(self, hold: ShardEpoch, reason: str) -> int:
        """Give rows that were dispatched before they were due the outcome "moved"; returns their number."""
        done = 0
        with self._database.reading() as connection:
            batches = connection.execute(EARLY_BATCHES, {"shard": hold.shard}).mappings().all()
        for early in batches:
            more = True
            while more:
                with self._database.writing() as connection:
                    fence(connection, self._statements, hold.shard, hold.epoch)
                    ids = connection.execute(EARLY_ROWS, {**early, "limit": ROWS_AT_ONCE}).scalars().all()
                    self._move(connection, hold, ids, (), reason)
                    more = len(ids) == ROWS_AT_ONCE
                    if not more:
                        self._shrink(connection, hold, early)
                done += len(ids)
        return done

    def _move(
        self, connection: Connection, hold: ShardEpoch, ids: Sequence[int], stopped: Sequence[int], reason: str
    ) -> None:
        """Move ``ids`` to lane STOPPED, and give them and the rows ``stopped`` the outcome."""
        number: int = self._statements.of(LeaseStatements).seq(connection, at_shard=hold.shard).scalar_one()
        count = number >> SHARD_BITS

        def next_seq() -> int:
            nonlocal count
            count += 1
            return count << SHARD_BITS | hold.shard

        moves = [Move(row_id, STOPPED, hold.now_ms, next_seq()) for row_id in ids]
        moved = [Outcome(next_seq(), row_id, MOVED, reason, "drain", hold.now_ms) for row_id in (*ids, *stopped)]
        self._statements.of(ChangeStatements).move.many(connection, moves, hold.shard)
        self._statements.of(ControlStatements).unwatch.many(connection, [(row_id,) for row_id in ids])
        self._statements.of(ChangeStatements).add_outcome.many(connection, moved, hold.shard)
        advance(connection, self._statements, hold.shard, hold.epoch, count << SHARD_BITS | hold.shard)

    def _shrink(self, connection: Connection, hold: ShardEpoch, batch: RowMapping) -> None:
        """Correct a batch to the rows that were due: later rows may get the positions of the moved ones."""
        values = {**batch}
        count, weight, last_ms = connection.execute(BATCH_FIGURES, values).one()
        if count:
            seq = connection.execute(LAST_SEQ, values | {"last_ms": last_ms}).scalar_one()
            new = {"new_count": count, "new_bytes": int(weight), "new_to_due_ms": last_ms, "new_to_seq": seq}
            connection.execute(SHRINK_BATCH, {"batch": batch["id"], **new})
        else:
            connection.execute(DELETE_BATCH, {"id": batch["id"]})
        more = int(weight) - batch["bytes"]
        advance(connection, self._statements, hold.shard, hold.epoch, weight=more)

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, Position]:
        """Return lanes with another offset that they may have once nothing is pending in them: lanes whose watermark is
        in the future, or that are in doubt. The new offset is after every row in the lane and before every later row.
        """
        with self._database.reading() as connection:
            seq: int = self._statements.of(LeaseStatements).seq(connection, at_shard=shard).scalar_one()
            lanes = read_lanes(connection, self._statements, shard)
        now, found = Position(now_ms, seq), {}
        for state in lanes:
            if state.watermark > now:
                found[state.lane] = now
            elif state.watermark > state.offset:
                found[state.lane] = state.watermark
        return found


def _claims(connection: Connection, shard: int, ids: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """Return row → the kinds and keys of its claims."""
    found = defaultdict(list)
    for start in range(0, len(ids), IN_PLACES):
        values = {"shard": shard, "ids": ids[start : start + IN_PLACES]}
        for id_, kind, key in connection.execute(CLAIMS, values):
            found[id_].append((kind, key))
    return found


def _after(position: Position) -> dict[str, int]:
    return {"after_due_ms": position.due_ms, "after_seq": position.seq}
