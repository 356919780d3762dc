"""Groups: rows that wait in lines, their counts, and the limits of single groups.

::

    wheel_timer    lane WAITING, line = number << 9 | rank    a range of ``wheel_timer_line`` is a line in its order
    wheel_line     number ─► group, queue, how many wait      changed in the commits that move rows in or out
    wheel_limit    group ─► its own limits                    read at adoption; changed by a command
    wheel_rate     group ─► when its rate is as unused        read at adoption; written with the rows that used it

One statement reads the first rows of many lines: the cost of a release follows the number of rows that it moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, delete, func, select, union_all, update

from celery_wheel.store.model import RANK_BITS, Change, GroupLimit, LineState, Row
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import limit, line, rate, timer
from celery_wheel.store.sql.statement import (
    IN_PLACES,
    ROW,
    ObjectInsert,
    Statements,
    columns_of,
    constant,
    names_of,
    places,
)
from celery_wheel.values import parts

#: Lines of one statement; spare places read no row. SQLite allows 500 parts of a UNION.
LINES_AT_ONCE = 40

#: A line's number that no line has.
NO_LINE = -1


class GroupStatements:
    def __init__(self, statements: Statements) -> None:
        of_shard = line.c.shard == bindparam("shard")
        # Counted, and not as they are stored: a holder would look for rows that are not there for ever.
        rows = select(func.count()).where(
            timer.c.shard == line.c.shard, timer.c.line.isnot(None), _is_of(line.c.number)
        )
        counted = columns_of(LineState, line, waiting=rows.scalar_subquery())
        self.lines = statements(select(*counted).where(of_shard).order_by(line.c.number))
        own = select(*columns_of(GroupLimit, limit)).where(limit.c.shard == bindparam("shard"))
        self.limits = statements(own.order_by(limit.c.group))
        self.first_rows = statements(union_all(*[self._first(number) for number in range(LINES_AT_ONCE)]))

        new = statements.insert_or(line).inline().values(places("shard", *names_of(LineState)))
        # A number that is used again gets its new group and queue.
        names = {column: new.excluded[column] for column in ("group", "queue")}
        more = {**names, "waiting": line.c.waiting + new.excluded.waiting}
        self.add_line = ObjectInsert(
            statements(new.on_conflict_do_update(index_elements=["shard", "number"], set_=more)), "shard"
        )
        ended = and_(line.c.shard == bindparam("at_shard"), line.c.number == bindparam("at_number"))
        self.end_line = statements(delete(line).where(ended, line.c.waiting == constant(0)))
        values = [name for name in names_of(GroupLimit) if name != "group"]
        self.set_limit = ObjectInsert(statements.put(limit, ["shard", "group"], values), "shard")
        named = and_(limit.c.shard == bindparam("at_shard"), limit.c.group == bindparam("at_group"))
        self.remove_limit = statements(delete(limit).where(named))
        used = select(rate.c.group, rate.c.empty_ms).where(rate.c.shard == bindparam("shard"))
        self.rates = statements(used)
        new = statements.insert_or(rate).inline().values(places("shard", "group", "empty_ms"))
        # The holder's threads may commit in another order than they read the clock.
        latest = case((new.excluded.empty_ms > rate.c.empty_ms, new.excluded.empty_ms), else_=rate.c.empty_ms)
        self.set_rate = statements(
            new.on_conflict_do_update(index_elements=["shard", "group"], set_={"empty_ms": latest})
        )
        over = and_(rate.c.shard == bindparam("at_shard"), rate.c.empty_ms < bindparam("now_ms"))
        self.forget_rates = statements(delete(rate).where(over))

    @staticmethod
    def _first(number: int) -> Select[Any]:
        """Select the first rows of one line."""
        range_ = timer.c.line.between(bindparam(f"from_{number}"), bindparam(f"to_{number}"))
        rows = select(*ROW).where(timer.c.shard == bindparam("shard"), timer.c.line.isnot(None), range_)
        ordered = rows.order_by(timer.c.line, timer.c.due_ms, timer.c.seq).limit(bindparam(f"limit_{number}"))
        return select(ordered.subquery(f"part_{number}"))


def _is_of(number: Any) -> ColumnElement[bool]:
    """Match the rows of a line."""
    first = number.op("<<")(constant(RANK_BITS))
    return timer.c.line.between(first, first + constant((1 << RANK_BITS) - 1))


class SqlGroups(StorePart):
    @property
    def _groups(self) -> GroupStatements:
        return self._statements.of(GroupStatements)

    def lines(self, shard: int) -> list[LineState]:
        with self._database.reading() as connection:
            return [LineState(*row) for row in self._groups.lines(connection, shard=shard)]

    def limits(self, shard: int, groups: Sequence[str] | None = None) -> list[GroupLimit]:
        found: list[GroupLimit] = []
        with self._database.reading() as connection:
            if groups is None:
                return [GroupLimit(*row) for row in self._groups.limits(connection, shard=shard)]
            for some in parts(groups, IN_PLACES):
                named = select(*columns_of(GroupLimit, limit)).where(limit.c.shard == shard, limit.c.group.in_(some))
                found += [GroupLimit(*row) for row in connection.execute(named.order_by(limit.c.group))]
        return found

    def rates(self, shard: int) -> dict[str, int]:
        with self._database.reading() as connection:
            return {row.group: row.empty_ms for row in self._groups.rates(connection, shard=shard)}

    def first_waiting(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[Row]:
        rows: list[Row] = []
        with self._database.reading() as connection:
            for some in parts(wanted, LINES_AT_ONCE):
                values = {"shard": shard}
                for place, (number, count) in enumerate([*some, *[(NO_LINE, 0)] * (LINES_AT_ONCE - len(some))]):
                    first = number << RANK_BITS
                    values |= {f"from_{place}": first, f"to_{place}": first | (1 << RANK_BITS) - 1}
                    values[f"limit_{place}"] = count
                rows += self._catalogue.rows(connection, self._groups.first_rows(connection, **values).all())
        rows.sort(key=lambda row: (row.line, row.due_ms, row.seq))
        return rows


def subtract_waiting(connection: Connection, shard: int, codes: Iterable[int | None]) -> None:
    """Subtract rows that no scheduler has moved from the lines of a shard; ``codes``: ``Row.line`` of each, or None."""
    counts = Counter(code >> RANK_BITS for code in codes if code is not None)
    if counts:
        at = and_(line.c.shard == shard, line.c.number == bindparam("at_number"))
        less = update(line).where(at).values(waiting=line.c.waiting - bindparam("count"))
        connection.execute(less, [{"at_number": number, "count": count} for number, count in counts.items()])
        connection.execute(delete(line).where(line.c.shard == shard, line.c.waiting <= 0))


def write_groups(connection: Connection, statements: Statements, shard: int, change: Change) -> None:
    """Write the part of a change that concerns groups, behind the fence."""
    if not (change.lines or change.limits or change.unlimited or change.rates):
        return
    groups = statements.of(GroupStatements)
    groups.add_line.many(connection, change.lines, shard)
    ended = [{"at_shard": shard, "at_number": number} for number in change.ended_lines]
    groups.end_line.many_named(connection, ended)
    groups.set_limit.many(connection, change.limits, shard)
    removed = [{"at_shard": shard, "at_group": name} for name in change.unlimited]
    groups.remove_limit.many_named(connection, removed)
    used = [{"shard": shard, "group": name, "empty_ms": at_ms} for name, at_ms in change.rates.items()]
    groups.set_rate.many_named(connection, used)
