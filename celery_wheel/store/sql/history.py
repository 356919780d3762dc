"""``forget``: remove history, oldest settlement first, in small transactions; of archived history only where asked.

::

    settlements                                 lane 0      lane STOPPED   ├── stopped before before_ms ──┤
    ├────1────┼────2────┼───3────┤     offset
    └ too old, or too many bytes       │        never a row after the offset, whatever a settlement says:
      rows first, then the settlement           a rollback moves the offset back over settlements that stay

A timer goes with its outcomes, claims and run. A run that has a slot of its group stays until its end is reported, or
its time is over. Skips of schedules go by their age. Transactions are short, since every other writer waits for them,
and need not be durable: history that comes back is forgotten again.

A shorter retention of a queue or a task (``forget_named``) walks over the settlements in the order of their ids, once,
and removes the rows with that name; the settlements stay. It costs nothing where no name has one.

With ``wheel_history_archive`` a settlement that must stay keeps all younger ones, and a row is forgotten only when each
event of it is archived: its settlement and each later one of the same positions (after a rollback of the broker), and
its outcomes, by the mark of their shard, which is not the row's where the store was resharded in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from sqlalchemy import BigInteger, Connection, ScalarSelect, Table, and_, bindparam, case, delete, func, select, update

from celery_wheel.store.model import DAY_MS, HOUR_MS, MAX_SEQ, ORIGIN, STOPPED, Position
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.changes import count_routes
from celery_wheel.store.sql.control import ControlStatements
from celery_wheel.store.sql.holding import advance, fence, read_lanes
from celery_wheel.store.sql.schedules import ScheduleStatements
from celery_wheel.store.sql.schema import lane, outcome, route, settlement, shard, tally, timer, total
from celery_wheel.store.sql.statement import IN_PLACES, Prepared, Statements, constant, held, in_range, numbered, span
from celery_wheel.store.store_model import ForgetPlace, Retention

#: Rows of one transaction. From 250 to 5,000 a row costs the same (8,000 rows/s out of 2,000,000 at random due times,
#: warm; a quarter of that from a cold disk), since hardly two of them share a page. The number limits how long other
#: writers wait.
ROWS_AT_ONCE = 500
SETTLEMENTS_AT_ONCE = 200
#: The most of one removal: a million settlements may have lost their rows to a shorter retention or an erasure.
TRANSACTIONS = 10


class HistoryStatements:
    def __init__(self, statements: Statements) -> None:
        of_shard = settlement.c.shard == bindparam("shard")
        oldest = select(settlement).where(of_shard).order_by(settlement.c.id)
        self.oldest_settlements = statements(oldest.limit(bindparam("limit")))
        later = oldest.where(settlement.c.id > bindparam("after"))
        self.next_settlements = statements(later.limit(bindparam("limit")))
        self.ids_in_range = statements(_ids_in_range())
        gone: Any = bindparam("gone")
        self.routes = statements(select(timer.c.route).where(timer.c.id.in_(numbered("gone", IN_PLACES))))
        self.forget_timer = statements(delete(timer).where(timer.c.id == gone))
        self.forget_outcome = statements(delete(outcome).where(outcome.c.timer_id == gone))
        self.forget_settlement = statements(delete(settlement).where(settlement.c.id == gone))
        self.forget_tally = statements(delete(tally).where(tally.c.shard == bindparam("shard"), tally.c.pending == 0))
        place = (total.c.kind == bindparam("kind"), total.c.number < bindparam("before"))
        empty_sums = delete(total).where(*place, total.c.shard == bindparam("shard"), total.c.pending == 0)
        self.forget_total = statements(empty_sums)
        empty = [_first(timer, "due_ms", "seq").is_(None), _first(settlement, "to_due_ms", "to_seq").is_(None)]
        self.forget_lanes = statements(delete(lane).where(lane.c.shard == bindparam("shard"), lane.c.closed, *empty))
        #: Scope → ``ids_in_range`` and ``archived_in_range`` of one name.
        self.of_scope: dict[str, tuple[Prepared, ...]] = {}
        self._prepare_archive(statements)

    def _prepare_archive(self, statements: Statements) -> None:
        self.marks = statements(select(shard.c.history_bytes, shard.c.archived, shard.c.seq).where(held()))
        beyond = outcome.join(shard, and_(shard.c.shard == outcome.c.shard, outcome.c.id > shard.c.archived))
        # For EXISTS, PostgreSQL may make a table of all outcomes beyond the marks, anew for each removed settlement.
        one = select(outcome.c.id).select_from(beyond).where(outcome.c.timer_id == timer.c.id).limit(constant(1))
        waits = one.scalar_subquery().is_not(None).label("waits")
        self.archived_in_range = statements(_ids_in_range(waits))
        for scope, column in (("queue", route.c.target), ("task", route.c.task)):
            of_name = timer.c.route.in_(select(route.c.id).where(column == bindparam("name")))
            self.of_scope[scope] = tuple([statements(_ids_in_range(*more).where(of_name)) for more in ((), (waits,))])
        order = (settlement.c.from_due_ms, settlement.c.from_seq)
        nth = func.row_number().over(partition_by=settlement.c.lane, order_by=order).label("nth")
        of_shard = settlement.c.shard == bindparam("shard")
        is_later = settlement.c.id > bindparam("after")
        beyond_mark = select(settlement.c.lane, *order, nth).where(of_shard, is_later).subquery()
        columns = (beyond_mark.c.lane, beyond_mark.c.from_due_ms, beyond_mark.c.from_seq)
        self.floors = statements(select(*columns).where(beyond_mark.c.nth == 1))
        # With the shard as a condition, SQLite reads all outcomes of the shard by the index that begins with it, and
        # PostgreSQL reads all outcomes from the highest id down.
        of_it = case((outcome.c.shard == bindparam("shard"), outcome.c.id))
        timers = numbered("gone", IN_PLACES)
        self.last_outcome = statements(select(func.max(of_it)).where(outcome.c.timer_id.in_(timers)))
        number: Any = bindparam("number", type_=BigInteger)
        higher = case((shard.c.forgotten < number, number), else_=shard.c.forgotten)
        self.forgotten = statements(update(shard).where(held()).values(forgotten=higher))


def _ids_in_range(*more: Any) -> Any:
    found = select(timer.c.id, *more).where(in_range()).order_by(timer.c.due_ms, timer.c.seq)
    return found.limit(bindparam("limit"))


def _first(table: Table, *position: str) -> ScalarSelect[int]:
    """Return the first row's position in the lane of the outer statement.

    An ``EXISTS`` may read any index: once PostgreSQL knows that all rows are in another lane of the shard, it looks for
    the rows of an empty lane by the shard alone, among two million. The order leaves it the index of positions.
    """
    of_lane = and_(table.c.shard == lane.c.shard, table.c.lane == lane.c.lane)
    order = [table.c[name] for name in position]
    return select(order[0]).where(of_lane).order_by(*order).limit(1).scalar_subquery()


@dataclass(slots=True)
class _ArchiveMark:
    mark: int
    upto: int
    lowest: dict[int, Position] = field(default_factory=dict)


class ArchiveFloors:
    """For each lane, the lowest position of a settlement that is not archived.

    Every transaction of ``forget`` needs the floors, and a million settlements may follow the archive's mark, so each
    settlement is read once. One reading is enough, since numbers are in the order of commits.
    """

    def __init__(self) -> None:
        self._marks: dict[int, _ArchiveMark] = {}
        self.swept: dict[int, tuple[int, int]] = {}  #: shard → (until_ms, timer_id) of the last slot that was looked at

    def of(
        self, connection: Connection, statements: HistoryStatements, shard: int, mark: int, last: int
    ) -> dict[int, Position]:
        """Return lane → floor. ``last`` is the highest number, read under the shard's lock."""
        known = self._marks.get(shard)
        if known is None or known.mark != mark:
            known = _ArchiveMark(mark, mark)
        lowest = dict(known.lowest)
        for number, *place in statements.floors(connection, shard=shard, after=known.upto):
            lowest[number] = min(Position(*place), lowest.get(number, Position(*place)))
        self._marks[shard] = _ArchiveMark(mark, last, lowest)
        return lowest


class ForgetTransaction:
    def __init__(
        self, connection: Connection, statements: Statements, floors: ArchiveFloors, shard: int, epoch: int, limit: int
    ) -> None:
        self._connection, self._statements = connection, statements
        self._history, self._floors = statements.of(HistoryStatements), floors
        self._in_range: tuple[Prepared, ...] = (self._history.ids_in_range, self._history.archived_in_range)
        self._name: dict[str, str] = {}  #: the name that both of them take
        self._shard, self._epoch, self._limit = shard, epoch, limit
        self._ids: set[int] = set()
        self._settlements: list[tuple[int]] = []
        self._now_ms = 0
        self._highest = 0  #: of the numbers of forgotten events
        self._mark: int | None = None  #: events after it stay
        self._lowest: dict[int, Position] | None = None
        self.more = False  #: whether it may have left history to forget

    @property
    def removed(self) -> int:
        """The number of removed rows."""
        return len(self._ids)

    def run(self, retention: Retention) -> int:
        """Remove history; returns the number of removed rows."""
        fence(self._connection, self._statements, self._shard, self._epoch)
        self._now_ms = retention.now_ms
        self._collect_settlements(retention)
        if not self.more:
            self._collect(STOPPED, ORIGIN, Position(retention.before_ms, 0))
        self._remove(retention.before_ms)
        self._remove_skips(retention.before_ms)
        self._sweep_slots()
        return len(self._ids)

    def _collect_settlements(self, retention: Retention) -> None:
        """Collect whole settlements while they are to be removed, up to one that does not fit or is not archived."""
        connection, statements = self._connection, self._history
        offsets, shard = self._offsets(retention)
        freed = 0
        settlements = statements.oldest_settlements(connection, shard=self._shard, limit=SETTLEMENTS_AT_ONCE).all()
        for one in settlements:
            if one.dispatched_ms >= retention.before_ms and shard.history_bytes - freed <= retention.max_bytes:
                break
            end = self._end(one, retention, offsets, shard)
            if end is None:
                break
            before = len(self._ids)
            whole = self._collect(one.lane, Position(one.from_due_ms, one.from_seq), end)
            if whole or len(self._ids) > before:
                self._highest = max(self._highest, one.id)
            if not whole:
                break
            self._settlements.append((one.id,))
            freed += one.bytes
        self.more |= len(self._settlements) == SETTLEMENTS_AT_ONCE
        if freed:
            advance(connection, self._statements, self._shard, self._epoch, weight=-freed)

    def _is_archived(self, settlement: Any, last: int) -> bool:
        """Whether an archive has the settlement, and every later one of the same positions."""
        mark: Any = self._mark
        if settlement.id > mark:
            return False
        if self._lowest is None:
            self._lowest = self._floors.of(self._connection, self._history, self._shard, mark, last)
        to = Position(settlement.to_due_ms, settlement.to_seq)
        return to <= self._lowest.get(settlement.lane, to)

    def _collect(self, lane: int, after: Position, upto: Position) -> bool:
        """Collect the rows of a range, up to the limit or one that is not archived; returns whether that was all."""
        room = self._limit - len(self._ids)
        values = {**span(self._shard, lane, after, upto), "limit": room + 1, **self._name}
        ids, archived = self._in_range
        if self._mark is None:
            found = free = ids(self._connection, **values).scalars().all()
        else:
            rows = archived(self._connection, **values).all()
            found, free = [row.id for row in rows], [row.id for row in takewhile(lambda row: not row.waits, rows)]
        self._ids.update(free[:room])
        self.more |= len(free) > room
        return len(found) == len(free) <= room

    def run_named(self, name: str, retention: Retention, after: ForgetPlace) -> ForgetPlace:
        """Remove history of a queue or a task; returns the place after which the next transaction looks."""
        fence(self._connection, self._statements, self._shard, self._epoch)
        self._now_ms = retention.now_ms
        scope, _, of = name.partition(":")
        self._in_range, self._name = self._history.of_scope[scope], {"name": of}
        connection, statements, last = self._connection, self._history, after.settlement
        offsets, mark = self._offsets(retention)
        settlements = statements.next_settlements(connection, shard=self._shard, after=last, limit=SETTLEMENTS_AT_ONCE)
        found = settlements.all()
        for one in found:
            end = self._end(one, retention, offsets, mark)
            if one.dispatched_ms >= retention.before_ms or end is None:
                break
            if not self._collect(one.lane, Position(one.from_due_ms, one.from_seq), end):
                break
            last = one.id
        self.more |= len(found) == SETTLEMENTS_AT_ONCE and last == found[-1].id
        stopped, before = after.stopped, Position(retention.before_ms, 0)
        if not self.more and stopped < before and self._collect(STOPPED, stopped, before):
            stopped = before
        self._remove_rows()
        return ForgetPlace(last, stopped)

    def _offsets(self, retention: Retention) -> tuple[dict[int, Position], Any]:
        """Return the lanes' offsets, and the shard's marks."""
        connection = self._connection
        lanes = read_lanes(connection, self._statements, self._shard, closed=True)
        shard = self._history.marks(connection, at_shard=self._shard, at_epoch=self._epoch).one()
        self._mark = shard.archived if retention.archived_only else None
        return {one.lane: one.offset for one in lanes}, shard

    def _end(self, one: Any, retention: Retention, offsets: dict[int, Position], shard: Any) -> Position | None:
        """Return the position up to which rows of a settlement may be removed; None where it has to stay."""
        if self._mark is not None and not self._is_archived(one, shard.seq):
            return None
        end = min(Position(one.to_due_ms, one.to_seq), offsets.get(one.lane, ORIGIN))
        return None if end > retention.upto.get(one.lane, end) else end

    def _remove_rows(self) -> None:
        connection, statements = self._connection, self._history
        last = statements.last_outcome.each(connection, "gone", sorted(self._ids), shard=self._shard)
        if highest := max([self._highest, *(number or 0 for (number,) in last)]):
            statements.forgotten(connection, at_shard=self._shard, at_epoch=self._epoch, number=highest)
        remove_rows(connection, self._statements, self._shard, self._ids, self._now_ms)

    def _remove(self, before_ms: int) -> None:
        self._remove_rows()
        connection, statements = self._connection, self._history
        statements.forget_settlement.many(connection, self._settlements)
        if not self.more:
            statements.forget_tally(connection, shard=self._shard)
            # Sums of hours and days go once they are over: to find others, each shard would read those of all shards.
            over = {"hour": before_ms // HOUR_MS, "day": before_ms // DAY_MS, "name": MAX_SEQ, "route": MAX_SEQ}
            for kind, before in over.items():
                statements.forget_total(connection, shard=self._shard, kind=kind, before=before)
            statements.forget_lanes(connection, shard=self._shard)

    def _sweep_slots(self) -> None:
        """Remove the runs without a row among the next whose time is over.

        Most have their rows, and no report ever came.
        """
        statements, after = self._statements.of(ScheduleStatements), self._floors.swept.get(self._shard, (0, 0))
        values = {"shard": self._shard, "after_ms": after[0], "after": after[1], "now_ms": self._now_ms}
        if over := statements.over_slots(self._connection, **values, limit=ROWS_AT_ONCE).all():
            statements.forget_slot.many(self._connection, [(one.timer_id,) for one in over if not one.has_row])
        if len(over) == ROWS_AT_ONCE:
            self._floors.swept[self._shard] = over[-1].until_ms, over[-1].timer_id
        else:  # again from the first: this transaction may be lost, and clocks go back
            self._floors.swept.pop(self._shard, None)

    def _remove_skips(self, before_ms: int) -> None:
        """Remove the oldest skips of schedules; no archive has them."""
        statements = self._statements.of(ScheduleStatements)
        values = {"shard": self._shard, "before_ms": before_ms, "limit": ROWS_AT_ONCE}
        gone = statements.old_skips(self._connection, **values).scalars().all()
        statements.forget_skip.many(self._connection, [(skip,) for skip in sorted(gone)])
        self.more |= len(gone) == ROWS_AT_ONCE


def remove_rows(
    connection: Connection, statements: Statements, shard: int, row_ids: Collection[int], now_ms: int | None = None
) -> None:
    """Remove rows of a shard with their outcomes, claims and runs, behind the fence.

    ``now_ms``: runs stay that have a slot of their group then.
    """
    if not row_ids:
        return
    history, ids = statements.of(HistoryStatements), sorted(row_ids)
    routes = Counter(history.routes.each(connection, "gone", ids))
    count_routes(connection, statements, shard, {route: -n for (route,), n in routes.items()})
    unwatch, runs = statements.of(ControlStatements).unwatch, statements.of(ScheduleStatements)
    for statement in (history.forget_timer, history.forget_outcome, unwatch):
        statement.many(connection, [(one,) for one in ids])
    if now_ms is None:
        runs.erase_run.many(connection, [(one,) for one in ids])
    else:
        runs.forget_run.many_named(connection, [{"gone": one, "now_ms": now_ms} for one in ids])


class SqlHistory(StorePart):
    """Removes history, in small transactions."""

    _floors: ArchiveFloors

    def forget(self, shard: int, epoch: int, retention: Retention, limit: int) -> int:
        removed = 0
        for _ in range(TRANSACTIONS):
            with self._database.writing(durable=False) as connection:
                at_once = min(ROWS_AT_ONCE, limit - removed)
                part = ForgetTransaction(connection, self._statements, self._floors, shard, epoch, at_once)
                removed += part.run(retention)
            if not part.more or removed >= limit:
                break
        return removed

    def forget_named(
        self, shard: int, epoch: int, name: str, retention: Retention, after: ForgetPlace
    ) -> tuple[int, ForgetPlace]:
        with self._database.writing(durable=False) as connection:
            part = ForgetTransaction(connection, self._statements, self._floors, shard, epoch, ROWS_AT_ONCE)
            place = part.run_named(name, retention, after)
            return part.removed, place
