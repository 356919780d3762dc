"""Groups with waiting tasks or open runs: a page of them, with the oldest task and the own limits of each.

::

    page      sums of wheel_line and open runs of wheel_run, by name      1 statement, of all shards
    oldest    the lines of the page's groups                              1; it reads two entries of wheel_timer_line
                                                                          for each priority that waits in a line
    limits    of the page's groups                                        1

Promises: a page shows one moment. Non-promises: a group whose number changes between two pages that are sorted by it
comes twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, literal_column, or_, select, union_all

from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import RANK_BITS, GroupLimit
from celery_wheel.store.ports.pages import GroupPage, GroupSort, GroupState, WaitingGroups
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import limit as own_limit
from celery_wheel.store.sql.schema import line, run, timer
from celery_wheel.store.sql.statement import columns_of

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
        query = _groups(self.shards, now_ms, search, sort, after)
        with self._database.snapshot() as connection:
            found = connection.execute(query.limit(limit + 1)).all()
            rows, more = found[:limit], len(found) > limit
            names = [row.name for row in rows]
            oldest, limits = _oldest(connection, names), _limits(connection, names)
        items = [
            GroupState(row.name, int(row.waiting), int(row.in_flight), oldest.get(row.name), limits.get(row.name))
            for row in rows
        ]
        return GroupPage(items, _cursor(items[-1]) if more else None)

    def waiting_groups(self, most: int) -> WaitingGroups:
        """Return the ``most`` groups with the most waiting tasks, and the sum of the others, in one statement."""
        waiting = func.sum(line.c.waiting)
        columns = (line.c.group, waiting.label("waiting"), func.sum(waiting).over().label("of_all"))
        query = select(*columns).where(line.c.waiting > 0).group_by(line.c.group)
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(waiting.desc(), line.c.group).limit(most)).all()
        largest = {row.group: int(row.waiting) for row in found}
        return WaitingGroups(largest, int(found[0].of_all) - sum(largest.values()) if found else 0)


def _groups(shards: int, now_ms: int, search: str | None, sort: GroupSort, after: str | None) -> Select[Any]:
    waiting = _counts(line, func.sum(line.c.waiting), _NONE, search).where(line.c.waiting > 0)
    is_open = and_(run.c.ended_ms.is_(None), run.c.group.is_not(None), run.c.until_ms > now_ms)
    flying = _counts(run, _NONE, func.count(), search).where(run.c.shard.in_(range(shards)), is_open)
    both = union_all(waiting, flying).subquery("both")
    sums = (func.sum(both.c.waiting).label("waiting"), func.sum(both.c.in_flight).label("in_flight"))
    group = select(both.c.name, *sums).group_by(both.c.name).subquery("found")
    most_first = sort == "waiting"
    order = [group.c.waiting.desc(), group.c.name] if most_first else [group.c.name]
    query = select(group).order_by(*order)
    if after is None:
        return query
    count, name = _place(after)
    later = group.c.name > name
    same = and_(group.c.waiting == count, later)
    return query.where(or_(group.c.waiting < count, same) if most_first else later)


def _counts(of: Any, waiting: Any, in_flight: Any, search: str | None) -> Select[Any]:
    name = of.c.group
    query = select(name.label("name"), waiting.label("waiting"), in_flight.label("in_flight")).group_by(name)
    return query if search is None else query.where(name.icontains(search, autoescape=True))


def _oldest(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return the earliest due time of the waiting rows, by group.

    A line is in the order of its ranks. So the first row of each rank is looked up, and no other row is read.
    """
    if not names:
        return {}
    of_group = select(line.c.shard, line.c.number, line.c.group.label("name")).where(
        line.c.group.in_(names), line.c.waiting > 0
    )
    lines = of_group.subquery("lines")
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


def _limits(connection: Connection, names: Sequence[str]) -> dict[str, GroupLimit]:
    if not names:
        return {}
    query = select(*columns_of(GroupLimit, own_limit)).where(own_limit.c.group.in_(names)).order_by(own_limit.c.at_ms)
    return {row.group: GroupLimit(*row) for row in connection.execute(query)}


def _cursor(last: GroupState) -> str:
    return f"{last.waiting}:{last.name}"


def _place(cursor: str) -> tuple[int, str]:
    count, colon, name = cursor.partition(":")
    if not (colon and count.isascii() and count.isdigit() and len(count) < 19):
        raise ArgumentError(f"after must be the next of a page of groups, got {cursor!r:.60}")
    return int(count), name
