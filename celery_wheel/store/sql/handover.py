"""A drain: every pending task as a whole message, and the mark of tasks that are elsewhere now.

Every write begins with the fence of the shard's epoch. A transaction has at most a thousand rows, and a later call does
not find them again: every method can be interrupted at any point and called again.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, select, tuple_, update

from celery_wheel.store import model
from celery_wheel.store.schedule_model import Revision
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.changes import ChangeStatements, recount
from celery_wheel.store.sql.control import ControlStatements
from celery_wheel.store.sql.groups import subtract_waiting
from celery_wheel.store.sql.holding import LeaseStatements, advance, fence, read_lanes
from celery_wheel.store.sql.intake import IntakeStatements
from celery_wheel.store.sql.loads import count_pending_in
from celery_wheel.store.sql.schedules import SCHEDULE, revision_of, schedule_of
from celery_wheel.store.sql.schema import inbox, lane, outcome, revision, route, schedule, settlement, timer, watch
from celery_wheel.store.sql.statement import IN_PLACES, columns_of, is_of_shard
from celery_wheel.store.store_model import MOVED, HandoverSchedule, ShardEpoch
from celery_wheel.values import parts, weighed_parts

#: The columns of the place of a message, as a ``StoredMessage`` has them.
PLACE = (timer.c.id, timer.c.lane, timer.c.due_ms, timer.c.seq, timer.c.accepted_ms)

#: The packing and the bytes of a message, and the other columns of a ``Message``, by their names.
MESSAGE = (
    *(timer.c.packing, timer.c.message, timer.c.envelope_id, timer.c.task_id, timer.c.eta_ms, timer.c.created_ms),
    *(timer.c.key, timer.c.group, timer.c.expires_ms, timer.c.misfire_ms),
    *[route.c[name] for name in model.Route.__slots__],
)

_TASKS = timer.join(route, route.c.id == timer.c.route)
_KEY = (timer.c.due_ms, timer.c.seq)
_PLACE = tuple_(*_KEY)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_SAME_LANE = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)
_IS_PENDING = and_(_SAME_LANE, _PLACE > _OFFSET)

_others = outcome.alias()
_LAST = select(func.max(_others.c.id)).where(_others.c.timer_id == timer.c.id).scalar_subquery()
_IS_LAST = and_(outcome.c.timer_id == timer.c.id, outcome.c.id == _LAST)

#: Rows and bytes read at a time; bodies may be large.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1_000, 16 * 2**20

#: Stopped messages, and schedules with their revisions, read at a time, whatever their size.
STOPPED_AT_ONCE, SCHEDULES_AT_ONCE = 50, 200


class SqlHandover(StorePart):
    def pending(self, shard: int) -> Iterator[model.StoredMessage]:
        """Iterate over the pending messages of all lanes, in order of position, with their bytes, a page at a time."""
        with self._database.reading() as connection:
            lanes = read_lanes(connection, self._statements, shard)
        for _, message in heapq.merge(*(self._lane(shard, state) for state in lanes), key=itemgetter(0)):
            yield message

    def _lane(self, shard: int, state: model.LaneState) -> Iterator[tuple[model.Position, model.StoredMessage]]:
        after = state.offset
        while count := self._page_length(shard, state.lane, after):
            page = select(*PLACE, timer.c.line, *MESSAGE).select_from(_TASKS).where(_is_after(shard, state.lane, after))
            with self._database.reading() as connection:
                messages = list[model.StoredMessage]()
                rows = connection.execute(page.order_by(*_KEY).limit(count)).all()
                claims = _claims(connection, shard, [row.id for row in rows])
                for row in rows:
                    one = self._stored(connection, row, claims.get(row.id, ()))
                    one.redelivered = state.redelivered or model.Position(row.due_ms, row.seq) <= state.watermark
                    one.redelivered |= row.line is not None and model.is_redelivered(row.line)
                    messages.append(one)
            for one in messages:
                after = model.Position(one.due_ms, one.seq)
                yield after, one

    def _page_length(self, shard: int, lane: int, after: model.Position) -> int:
        """Return how many of the next rows fit into one read; at least one if any exists."""
        page = select(timer.c.size).where(_is_after(shard, lane, after)).order_by(*_KEY).limit(ROWS_AT_ONCE)
        with self._database.reading() as connection:
            sizes = connection.execute(page).scalars().all()
        return len(next(weighed_parts(sizes, int, BYTES_AT_ONCE), []))

    def stopped(self, shard: int, kinds: Collection[str]) -> Iterator[model.StoredMessage]:
        """Iterate over the stopped messages whose last outcome is of these kinds, in the order of their ids."""
        after = -1
        found = select(*PLACE, outcome.c.kind, outcome.c.reason, *MESSAGE)
        found = found.select_from(_TASKS.join(outcome, _IS_LAST)).where(_is_stopped(shard), outcome.c.kind.in_(kinds))
        page = found.order_by(timer.c.id).limit(STOPPED_AT_ONCE)
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(page.where(timer.c.id > after)).all()
                messages = [self._stored(connection, row, outcome=row.kind, reason=row.reason) for row in rows]
            if not messages:
                return
            yield from messages
            after = messages[-1].id

    def find(self, shard: int, envelope_ids: Sequence[str]) -> list[model.StoredMessage]:
        """Return the messages with these ids that the shard has, pending or not, with their bytes."""
        found: list[model.StoredMessage] = []
        messages = (
            select(*PLACE, outcome.c.kind, outcome.c.reason, *MESSAGE)
            .select_from(_TASKS.outerjoin(outcome, _IS_LAST))
            .order_by(timer.c.id)
        )
        with self._database.reading() as connection:
            ids = self._statements.of(IntakeStatements).known_rows(connection, shard, envelope_ids)
            for some in parts(ids, STOPPED_AT_ONCE):
                for row in connection.execute(messages.where(timer.c.id.in_(some))).all():
                    why = {"outcome": row.kind, "reason": row.reason} if row.lane == model.STOPPED else {}
                    found.append(self._stored(connection, row, **why))
        return found

    def _stored(
        self, connection: Connection, row: Sequence[Any], claims: Iterable[model.Watch] = (), **more: Any
    ) -> model.StoredMessage:
        """Return the message of a row that begins with PLACE and ends with MESSAGE."""
        id_, lane, due_ms, seq, accepted_ms = row[: len(PLACE)]
        number, packed, *values = row[-len(MESSAGE) :]
        names = [column.name for column in MESSAGE[2:]]
        parts = self._catalogue.dictionaries.parts(connection, number, packed)
        message = model.Message(**dict(zip(names, values, strict=True)), **parts._asdict())
        message.watch = [one.key for one in claims if one.kind == model.WATCH] or None
        for one in claims:
            if one.kind == model.UNIQUE:
                message.unique, message.latest_ms, message.window_ms = one.key, one.latest_ms, one.window_ms
                follows = one.latest_ms is not None and one.window_ms is not None
                message.on_conflict = model.FOLLOW if follows else None
        return model.StoredMessage(id_, lane, due_ms, seq, accepted_ms, message, **more)

    def count_pending(self, shard: int) -> int:
        """Return how many rows are after their lane's offset, counted row by row."""
        rows = select(func.count()).select_from(timer.join(lane, _IS_PENDING))
        return self._count(rows.where(timer.c.shard == shard))

    def count_stopped(self, shard: int, kinds: Collection[str]) -> int:
        rows = select(func.count()).select_from(timer.join(outcome, _IS_LAST))
        return self._count(rows.where(_is_stopped(shard), outcome.c.kind.in_(kinds)))

    def schedules(self, shard: int) -> Iterator[HandoverSchedule]:
        """Iterate over the schedules of a shard in the order of their ids, a page at a time."""
        after = -1
        of_shard = select(*SCHEDULE).where(schedule.c.shard == shard).order_by(schedule.c.id).limit(SCHEDULES_AT_ONCE)
        changed = select(*columns_of(Revision, revision)).order_by(revision.c.schedule, revision.c.number)
        while True:
            with self._database.reading() as connection:
                found = connection.execute(of_shard.where(schedule.c.id > after))
                page = [schedule_of(row, self._catalogue.seal.open_text) for row in found]
                ids = [one.id for one in page]
                found = connection.execute(changed.where(revision.c.schedule.in_(ids)))
                revisions = [revision_of(row, self._catalogue.seal.open_text) for row in found]
            if not page:
                return
            changes = defaultdict(list)
            for change in revisions:
                changes[change.schedule].append(change)
            for one in page:
                yield HandoverSchedule(shard, one, changes[one.id])
            after = ids[-1]

    def count_schedules(self, shard: int) -> int:
        return self._count(select(func.count()).select_from(schedule).where(schedule.c.shard == shard))

    def count_inbox(self) -> int:
        """Return how many messages and commands the inboxes of all shards have, with those of committed loads."""
        with self._database.reading() as connection:
            items = select(func.coalesce(func.sum(func.coalesce(inbox.c.rows, 1)), 0))
            return int(connection.execute(items).scalar_one()) + count_pending_in(connection)

    def _count(self, query: Select[Any]) -> int:
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def mark_moved(self, hold: ShardEpoch, ids: Sequence[int], reason: str) -> int:
        """Give the pending and the stopped rows among ``ids`` the outcome "moved"; returns how many were pending."""
        done = 0
        for some in parts(ids, IN_PLACES):
            among = timer.c.id.in_(some)
            is_moved = exists().where(outcome.c.timer_id == timer.c.id, outcome.c.kind == MOVED)
            pending = select(timer.c.id, timer.c.due_ms, timer.c.line, route.c.target, route.c.task)
            pending = pending.select_from(_TASKS.join(lane, _IS_PENDING)).where(is_of_shard(hold.shard), among)
            with self._database.writing() as connection:
                fence(connection, self._statements, hold.shard, hold.epoch)
                rows = connection.execute(pending).all()
                is_stopped = and_(is_of_shard(hold.shard), timer.c.lane == model.STOPPED)
                others = select(timer.c.id).where(is_stopped, among, ~is_moved)
                stopped = connection.execute(others).scalars().all()
                self._move(connection, hold, [row.id for row in rows], stopped, reason)
                subtract_waiting(connection, hold.shard, [row.line for row in rows])
                counts = Counter(model.TallyKey(row.due_ms // model.HOUR_MS, row.target, row.task) for row in rows)
                less = {key: -count for key, count in counts.items()}
                recount(connection, self._statements, self._catalogue, hold.shard, less)
            done += len(rows)
        return done

    def mark_early_moved(self, hold: ShardEpoch, reason: str) -> int:
        """Give rows that were dispatched before they were due the outcome "moved"; returns their number."""
        done = 0
        is_ahead = settlement.c.to_due_ms > settlement.c.dispatched_ms
        ahead = select(settlement).where(settlement.c.shard == hold.shard, is_ahead)
        with self._database.reading() as connection:
            settlements = connection.execute(ahead.order_by(settlement.c.id)).all()
        for early in settlements:
            is_settled = exists().where(_SAME_LANE, _PLACE <= _OFFSET)
            rows = select(timer.c.id).where(_is_in(early), timer.c.due_ms > early.dispatched_ms, is_settled)
            page, more = rows.order_by(*_KEY).limit(ROWS_AT_ONCE), True
            while more:
                with self._database.writing() as connection:
                    fence(connection, self._statements, hold.shard, hold.epoch)
                    ids = connection.execute(page).scalars().all()
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
        seqs = (count << model.SHARD_BITS | hold.shard for count in itertools.count((number >> model.SHARD_BITS) + 1))
        moves = [model.Move(row_id, model.STOPPED, hold.now_ms, next(seqs)) for row_id in ids]
        moved = [model.Outcome(next(seqs), row_id, MOVED, reason, "drain", hold.now_ms) for row_id in (*ids, *stopped)]
        self._statements.of(ChangeStatements).move.many(connection, moves, hold.shard)
        self._statements.of(ControlStatements).unwatch.many(connection, [(row_id,) for row_id in ids])
        self._statements.of(ChangeStatements).add_outcome.many(connection, moved, hold.shard)
        advance(connection, self._statements, hold.shard, hold.epoch, moved[-1].id if moved else number)

    def _shrink(self, connection: Connection, hold: ShardEpoch, early: Any) -> None:
        """Correct a settlement to the rows that were due: later rows may get the positions of the moved ones."""
        figures = select(func.count(), func.coalesce(func.sum(timer.c.size), 0), func.max(timer.c.due_ms))
        count, weight, last_ms = connection.execute(figures.where(_is_in(early))).one()
        this = settlement.c.id == early.id
        if count:
            last = select(func.max(timer.c.seq)).where(_is_in(early), timer.c.due_ms == last_ms)
            new = {"count": count, "bytes": int(weight), "to_due_ms": last_ms, "to_seq": connection.scalar(last)}
            connection.execute(update(settlement).where(this).values(new))
        else:
            connection.execute(delete(settlement).where(this))
        advance(connection, self._statements, hold.shard, hold.epoch, weight=int(weight) - early.bytes)

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, model.Position]:
        """Return the new offsets of lanes that are in doubt, or have a watermark in the future, once nothing is pending
        in them: each is after every row in the lane and before every later row."""
        with self._database.reading() as connection:
            seq: int = self._statements.of(LeaseStatements).seq(connection, at_shard=shard).scalar_one()
            lanes = read_lanes(connection, self._statements, shard)
        now, found = model.Position(now_ms, seq), {}
        for state in lanes:
            if state.watermark > now:
                found[state.lane] = now
            elif state.watermark > state.offset:
                found[state.lane] = state.watermark
        return found


def _claims(connection: Connection, shard: int, ids: Sequence[int]) -> dict[int, list[model.Watch]]:
    """Return row → its claims."""
    found = defaultdict(list)
    for some in parts(ids, IN_PLACES):
        claims = select(*columns_of(model.Watch, watch)).where(watch.c.shard == shard, watch.c.timer_id.in_(some))
        for claim in connection.execute(claims):
            found[claim.timer_id].append(model.Watch(*claim))
    return found


def _is_after(shard: int, lane: int, after: model.Position) -> ColumnElement[bool]:
    return and_(timer.c.shard == shard, timer.c.lane == lane, tuple_(*after) < _PLACE)


def _is_stopped(shard: int) -> ColumnElement[bool]:
    return and_(timer.c.shard == shard, timer.c.lane == model.STOPPED)


def _is_in(one: Any) -> ColumnElement[bool]:
    """Match the rows of a settlement, given as its row."""
    first, last = tuple_(one.from_due_ms, one.from_seq), tuple_(one.to_due_ms, one.to_seq)
    return and_(timer.c.shard == one.shard, timer.c.lane == one.lane, first < _PLACE, last >= _PLACE)
