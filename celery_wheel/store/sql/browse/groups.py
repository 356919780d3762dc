"""Groups with waiting tasks or open runs: a page of them, with the oldest task and the own limits of each.

::

    page      sums of wheel_line and open runs of wheel_run, by name      1 statement, of all shards
    oldest    the lines of the page's groups                              1; it reads two entries of wheel_timer_line
                                                                          for each priority that waits in a line
    limits    of the page's groups                                        1
    due       pending rows by hour, of the groups with the most of them   1; it reads each pending row of these hours,
                                                                          since the tally has no groups: their number
                                                                          has no bound, and each would cost a write

The first statement reads all lines. Where groups are very many, ``largest_groups`` makes a page of the largest without
it, from the memory of the holders. An index by name would make each change of a line three times as dear on SQLite.

Promises: a page shows one moment. Non-promises: a group whose number changes between two pages that are sorted by it
comes twice, or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, literal_column, or_, select, union_all

from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import HOUR_MS, RANK_BITS, GroupLimit
from celery_wheel.store.ports.pages import Criteria, GroupPage, GroupSort, GroupState, LargeGroup, NamedHourCount
from celery_wheel.store.sql.browse.overview import PENDING
from celery_wheel.store.sql.browse.pages import routes_of, shards_of
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schedules import has_slot
from celery_wheel.store.sql.schema import lane, line, run, timer
from celery_wheel.store.sql.schema import limit as own_limit
from celery_wheel.store.sql.statement import columns_of

#: Groups of a forecast, and the name of all others together.
FORECAST, OTHER = 20, "_other"

_NONE: ColumnElement[int] = literal_column("0")


class GroupViews(StorePart):
    def groups(
        self,
        now_ms: int,
        search: str | None = None,
        sort: GroupSort = "waiting",
        after: str | None = None,
        limit: int = 100,
    ) -> GroupPage:
        """Return groups, by default the one with the most waiting tasks first.

        Args:
            now_ms: runs whose ``max_runtime`` is over then are not in flight.
            search: a part of the name, in upper or lower case.
            sort: "waiting" or "name".
            after: ``next`` of the page before; None: the first page.
        """
        query = _groups(self.shards, now_ms, search, sort, after, limit + 1)
        with self._database.snapshot() as connection:
            found = connection.execute(query).all()
            rows, more = found[:limit], len(found) > limit
            names = [row.name for row in rows]
            oldest = _oldest(connection, line.c.group.in_(names)) if names else {}
            limits = _limits(connection, self.shards, names)
        items = [
            GroupState(row.name, int(row.waiting), int(row.in_flight), oldest.get(row.name), limits.get(row.name))
            for row in rows
        ]
        return GroupPage(items, _cursor(items[-1]) if more else None)

    def largest_groups(self, largest: Sequence[LargeGroup], others: int) -> GroupPage:
        """Return a page of groups as their holders have counted them; ``others`` are on no page."""
        numbers = defaultdict[int, list[int]](list)
        for shard, number in chain.from_iterable(one.lines for one in largest):
            numbers[shard].append(number)
        own = [and_(line.c.shard == shard, line.c.number.in_(some)) for shard, some in numbers.items()]
        with self._database.snapshot() as connection:
            oldest = _oldest(connection, or_(*own)) if own else {}
            limits = _limits(connection, self.shards, [one.name for one in largest])
        items = [
            GroupState(one.name, one.waiting, one.in_flight, oldest.get(one.name), limits.get(one.name))
            for one in largest
        ]
        return GroupPage(items, None, others)

    def own_limits(self, groups: Sequence[str] | None = None, limit: int | None = None) -> list[GroupLimit]:
        """Return the limits of single groups, sorted by their names: of these groups, or else of the first so many."""
        query = _own_limits(self.shards, groups).order_by(own_limit.c.group).limit(limit)
        with self._database.reading() as connection:
            return [GroupLimit(*row) for row in connection.execute(query)]

    def due_by_group(self, criteria: Criteria) -> list[NamedHourCount]:
        """Return pending tasks by hour and group: the groups with the most of them, and the sum of the others as OTHER.

        An hour is included where it ends after ``from_ms`` and begins before ``to_ms``. Tasks without a group have the
        empty name.
        """
        name, hour = func.coalesce(timer.c.group, ""), timer.c.due_ms.op("/")(literal_column(str(HOUR_MS)))
        wanted = [~lane.c.closed, lane.c.shard.in_(shards_of(self.shards, criteria))]
        wanted += routes_of(criteria, timer.c.route)
        wanted += [] if criteria.group is None else [timer.c.group == criteria.group]
        wanted += [] if criteria.from_ms is None else [timer.c.due_ms >= criteria.from_ms // HOUR_MS * HOUR_MS]
        wanted += [] if criteria.to_ms is None else [timer.c.due_ms < -(-criteria.to_ms // HOUR_MS) * HOUR_MS]
        columns = (hour.label("hour"), name.label("name"), func.count().label("pending"))
        due = select(*columns).select_from(PENDING).where(*wanted).group_by(hour, name).cte("due")
        pending = func.sum(due.c.pending)
        most = select(due.c.name).group_by(due.c.name).order_by(pending.desc(), due.c.name).limit(FORECAST).cte("most")
        shown = case((most.c.name.is_not(None), due.c.name), else_=literal_column(f"'{OTHER}'")).label("shown")
        query = select(due.c.hour, shown, pending).select_from(due.outerjoin(most, most.c.name == due.c.name))
        with self._database.reading() as connection:
            found = connection.execute(query.group_by(due.c.hour, shown).order_by(due.c.hour, shown)).all()
        return [NamedHourCount(hour * HOUR_MS, str(one), int(count)) for hour, one, count in found]


def _groups(
    shards: int, now_ms: int, search: str | None, sort: GroupSort, after: str | None, limit: int
) -> Select[Any]:
    by_name = sort == "name"
    count, name = (0, "") if after is None else _place(after)
    parts = []
    for of, waiting, in_flight, where in (
        (line, func.sum(line.c.waiting), _NONE, line.c.waiting > 0),
        (run, _NONE, func.count(), and_(run.c.shard.in_(range(shards)), *has_slot(now_ms))),
    ):
        part = select(of.c.group.label("name"), waiting.label("waiting"), in_flight.label("in_flight")).where(where)
        part = part.group_by(of.c.group)
        if search is not None:
            part = part.where(of.c.group.icontains(search, autoescape=True))
        if by_name:  # the page has none of the later groups of either part
            part = part if after is None else part.where(of.c.group > name)
            part = select(part.order_by(of.c.group).limit(limit).subquery())
        parts.append(part)
    both = union_all(*parts).subquery("both")
    sums = (func.sum(both.c.waiting).label("waiting"), func.sum(both.c.in_flight).label("in_flight"))
    group = select(both.c.name, *sums).group_by(both.c.name).subquery("found")
    if by_name:
        return select(group).order_by(group.c.name).limit(limit)
    query = select(group).order_by(group.c.waiting.desc(), group.c.name).limit(limit)
    if after is None:
        return query
    return query.where(or_(group.c.waiting < count, and_(group.c.waiting == count, group.c.name > name)))


def _oldest(connection: Connection, own: ColumnElement[bool]) -> dict[str, int]:
    """Return the earliest due time of the rows that wait in lines, by group.

    A line is in the order of its ranks. So the first row of each rank is looked up, and no other row is read.
    """
    found = select(line.c.shard, line.c.number, line.c.group.label("name")).where(own, line.c.waiting > 0)
    lines = found.subquery("lines")
    first = lines.c.number * literal_column(str(1 << RANK_BITS))
    here = (lines.c.shard, lines.c.number, lines.c.name)
    code = select(*here, _next_code(lines, first - 1).label("line")).cte("code", recursive=True)
    code = code.union_all(
        select(code.c.shard, code.c.number, code.c.name, _next_code(code, code.c.line)).where(code.c.line.is_not(None))
    )
    rows = select(timer.c.due_ms).where(
        timer.c.shard == code.c.shard, timer.c.line.is_not(None), timer.c.line == code.c.line
    )
    due = rows.order_by(timer.c.due_ms).limit(literal_column("1")).correlate(code).scalar_subquery()
    query = select(code.c.name, func.min(due)).where(code.c.line.is_not(None)).group_by(code.c.name)
    return {name: due_ms for name, due_ms in connection.execute(query) if due_ms is not None}


def _next_code(of: Any, after: Any) -> ColumnElement[Any]:
    """Select the first ``timer.line`` of a line of a group that is greater than another one; null after the last."""
    end = (of.c.number + literal_column("1")) * literal_column(str(1 << RANK_BITS))
    own = (timer.c.shard == of.c.shard, timer.c.line.is_not(None), timer.c.line > after, timer.c.line < end)
    first = select(timer.c.line).where(*own).order_by(timer.c.line).limit(literal_column("1"))
    return first.correlate(of).scalar_subquery()


def _limits(connection: Connection, shards: int, names: Sequence[str]) -> dict[str, GroupLimit]:
    if not names:
        return {}
    query = _own_limits(shards, names).order_by(own_limit.c.at_ms)
    return {row.group: GroupLimit(*row) for row in connection.execute(query)}


def _own_limits(shards: int, names: Sequence[str] | None) -> Select[Any]:
    query = select(*columns_of(GroupLimit, own_limit))
    if names is None:
        return query
    return query.where(own_limit.c.shard.in_(range(shards)), own_limit.c.group.in_(names))  # the columns of an index


def _cursor(last: GroupState) -> str:
    return f"{last.waiting}:{last.name}"


def _place(cursor: str) -> tuple[int, str]:
    count, colon, name = cursor.partition(":")
    if not (colon and count.isascii() and count.isdigit() and len(count) < 19):
        raise ArgumentError(f"after must be the next of a page of groups, got {cursor!r:.60}")
    return int(count), name
