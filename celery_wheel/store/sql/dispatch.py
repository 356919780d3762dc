"""The holder's reads for dispatching: ranges of a lane by position, rows of tasks, and the pending counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from sqlalchemy import and_, bindparam, func, select

from celery_wheel.store.model import HOUR_MS, STOPPED, Position, RangeSummary, Row, TallyKey
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import bytes_to_task_id, outcome, route, settlement, tally, task_id_to_bytes, timer
from celery_wheel.store.sql.statement import ROW, Statements, constant, in_range, is_of_shard, numbered, span

#: The position of a row, as a plain tuple.
_POSITION = attrgetter("due_ms", "seq")


class DispatchStatements:
    def __init__(self, statements: Statements) -> None:
        in_order = (timer.c.due_ms, timer.c.seq)
        self.slice = statements(statements.rows_in(ROW, in_range()))
        self.count = statements(select(func.count()).select_from(timer).where(in_range()))
        sizes = select(*in_order, timer.c.size).where(in_range()).order_by(*in_order)
        self.sizes = statements(sizes.limit(bindparam("limit")))
        hour = timer.c.due_ms.op("/")(bindparam("hour_ms"))
        sums = (func.count().label("count"), func.sum(timer.c.size).label("bytes"))
        groups = select(hour.label("hour"), timer.c.route, *sums)
        of_range = groups.where(in_range()).group_by("hour", timer.c.route).subquery()
        named = select(of_range.c.hour, route.c.target, route.c.task, of_range.c.count, of_range.c.bytes)
        self.summary = statements(named.join(route, route.c.id == of_range.c.route))

        of_shard = timer.c.shard == bindparam("shard")
        of_task = and_(of_shard, timer.c.task_id.in_(numbered("task")))
        is_stopped = timer.c.lane == constant(STOPPED)
        self.find = statements(select(timer.c.task_id, *ROW).where(of_task, ~is_stopped).order_by(*in_order))
        self.rows = statements(select(*ROW).where(is_of_shard(), timer.c.id.in_(numbered("row"))))
        with_outcomes = timer.join(outcome, outcome.c.timer_id == timer.c.id)
        self.last_outcomes, self.stopped_rows = (
            statements(
                select(timer.c.task_id, outcome.c.kind, *more)
                .select_from(with_outcomes)
                .where(of_task, is_stopped)
                .order_by(outcome.c.at_ms, outcome.c.id)
            )
            for more in ((), ROW)
        )
        # The caller compares the ends of the settlements: with the ends as a condition, SQLite uses their index, which
        # covers the whole history, and not that of the time, which covers the last minutes.
        of_lane = and_(settlement.c.shard == bindparam("shard"), settlement.c.lane == bindparam("lane"))
        since = select(settlement.c.from_due_ms, settlement.c.from_seq).where(of_lane)
        self.settlements_since = statements(since.where(settlement.c.dispatched_ms >= bindparam("since_ms")))
        counts = select(tally.c.hour, route.c.target, route.c.task, tally.c.pending)
        by_route = counts.join(route, route.c.id == tally.c.route)
        self.pending = statements(by_route.where(tally.c.shard == bindparam("shard"), tally.c.pending > 0))


class SqlDispatch(StorePart):
    @property
    def _dispatch(self) -> DispatchStatements:
        return self._statements.of(DispatchStatements)

    def slice_end(
        self, shard: int, lane: int, after: Position, upto: Position, max_count: int, max_bytes: int
    ) -> Position:
        limit, weight, last = max(1, max_count) + 1, 0, (0, 0)
        with self._database.reading() as connection:
            rows = self._dispatch.sizes(connection, **span(shard, lane, after, upto), limit=limit)
            for n, (due_ms, seq, size) in enumerate(rows):
                weight += size
                if n and (n >= max_count or weight > max_bytes):
                    rows.close()
                    return Position(*last)
                last = due_ms, seq
        return upto

    def slice(self, shard: int, lane: int, after: Position, upto: Position) -> list[Row]:
        with self._database.reading() as connection:
            # One by one: 25,000 rows of the database at a time would be as much work for the garbage collector.
            found = self._dispatch.slice(connection, **span(shard, lane, after, upto))
            rows = self._catalogue.rows(connection, found)
        rows.sort(key=_POSITION)
        return rows

    def count(self, shard: int, lane: int, after: Position, upto: Position) -> int:
        with self._database.reading() as connection:
            count: int = self._dispatch.count(connection, **span(shard, lane, after, upto)).scalar_one()
        return count

    def count_chunks(self, chunks: Sequence[tuple[int, int, Position, Position]]) -> list[int]:
        count = self._dispatch.count
        return [self._database.number(count, **span(*one)) or 0 for one in chunks]

    def summary(self, shard: int, lane: int, after: Position, upto: Position) -> RangeSummary:
        with self._database.reading() as connection:
            range_ = span(shard, lane, after, upto)
            groups = self._dispatch.summary(connection, **range_, hour_ms=HOUR_MS).all()
        tally = Counter[TallyKey]()
        for hour, queue, task, count, _ in groups:  # several routes may have the same names
            tally[TallyKey(hour, queue, task)] += count
        return RangeSummary(sum(tally.values()), sum(int(weight) for *_, weight in groups), tally)

    def find(self, shard: int, task_ids: Sequence[str]) -> list[Row]:
        with self._database.reading() as connection:
            found = self._dispatch.find.each(connection, "task", _bytes(task_ids), shard=shard)
            return self._catalogue.task_rows(connection, found)

    def last_outcomes(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        with self._database.reading() as connection:
            found = self._dispatch.last_outcomes.each(connection, "task", _bytes(task_ids), shard=shard)
        return {bytes_to_task_id(id_): kind for id_, kind in found}

    def stopped_rows(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, Row]]:
        with self._database.reading() as connection:
            found = self._dispatch.stopped_rows.each(connection, "task", _bytes(task_ids), shard=shard)
            row_of = self._catalogue.row
            last = {row[0]: (kind, row_of(connection, row, id_)) for id_, kind, *row in found}
        return sorted(last.values(), key=lambda one: one[1].position)

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[Row]:
        with self._database.reading() as connection:
            found = self._dispatch.rows.each(connection, "row", row_ids, shard=shard)
            return self._catalogue.rows(connection, found)

    def settlement_start(self, shard: int, lane: int, upto: Position, since_ms: int) -> Position | None:
        with self._database.reading() as connection:
            settlements = self._dispatch.settlements_since(connection, shard=shard, lane=lane, since_ms=since_ms).all()
        return min((start for start in (Position(*one) for one in settlements) if start < upto), default=None)

    def pending(self, shard: int) -> dict[TallyKey, int]:
        with self._database.reading() as connection:
            rows = self._dispatch.pending(connection, shard=shard).all()
        return {TallyKey(hour, queue, task): count for hour, queue, task, count in rows}


def _bytes(task_ids: Sequence[str]) -> list[bytes]:
    return list(map(task_id_to_bytes, task_ids))
