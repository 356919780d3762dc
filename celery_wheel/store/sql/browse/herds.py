"""The hours with pending tasks, and the fullest second of some of them: what a search for coming herds reads.

The hours are sums that the commits keep. A second is counted from the rows: at most ``HOUR_ROWS`` of an hour, by the
index alone. The names come from the first ``NAMED`` rows of a second.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, literal_column, select

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports.pages import HOUR_ROWS, FullSecond
from celery_wheel.store.sql.browse.messages import of_each
from celery_wheel.store.sql.browse.overview import PENDING
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import lane, route, timer, total

#: Most rows of a second whose names are read: 4 ms on SQLite.
NAMED = 2_000

HOURS = (
    select(total.c.number, func.sum(total.c.pending))
    .where(total.c.kind == "hour", total.c.number >= bindparam("hour"), total.c.pending > 0)
    .group_by(total.c.number)
)


def _rows(*columns: Any) -> Select[Any]:
    within = and_(timer.c.due_ms >= bindparam("from_ms"), timer.c.due_ms < bindparam("to_ms"), ~lane.c.closed)
    return select(*columns).select_from(PENDING).where(within)


def _first(rows: Select[Any], limit: int) -> Select[Any]:
    return rows.limit(literal_column(f"{limit:d}")).offset(literal_column("0"))


def _fullest() -> Select[Any]:
    second = timer.c.due_ms.op("/")(literal_column("1000")).label("second")
    rows = _first(_rows(second), HOUR_ROWS).subquery()
    count = func.count().label("pending")
    found = select(rows.c.second, count).group_by(rows.c.second)
    return _first(found.order_by(count.desc(), rows.c.second), 1)


def _names() -> Select[Any]:
    rows = _first(_rows(timer.c.route, timer.c.due_ms), NAMED).subquery()
    named = rows.join(route, route.c.id == rows.c.route)
    first_ms, count = func.min(rows.c.due_ms).label("first_ms"), func.count().label("pending")
    found = select(first_ms, route.c.task, count).select_from(named)
    return _first(found.group_by(route.c.task).order_by(count.desc(), route.c.task), 2)


FULLEST, NAMES = _fullest(), _names()


class HerdCounts(StorePart):
    def hours_ahead(self, now_ms: int) -> dict[int, int]:
        """Return the begin of each hour from the present one → its pending tasks."""
        with self._database.reading() as connection:
            found = connection.execute(HOURS, {"hour": now_ms // HOUR_MS}).all()
        return {hour * HOUR_MS: int(pending) for hour, pending in found}

    def fullest_seconds(self, hours: Collection[int], now_ms: int) -> list[FullSecond]:
        """Return the fullest second of each of these hours, from the present on, with its most frequent tasks.

        Args:
            hours: their begins, as instants. At most ``HOUR_ROWS`` rows of each are counted.
        """
        of_hours = [{"from_ms": max(now_ms, hour), "to_ms": hour + HOUR_MS} for hour in hours]
        with self._database.snapshot() as connection:
            fullest = {
                second * 1_000: int(pending)
                for second, pending in of_each(connection, self._database.statements(FULLEST), of_hours)
            }
            of_seconds = [{"from_ms": from_ms, "to_ms": from_ms + 1_000} for from_ms in fullest]
            named = of_each(connection, self._database.statements(NAMES), of_seconds)
        tasks: dict[int, list[tuple[int, str]]] = {from_ms: [] for from_ms in fullest}
        for first_ms, task, pending in named:
            tasks[first_ms - first_ms % 1_000].append((-pending, task))
        return [
            FullSecond(from_ms, pending, [task for _, task in sorted(tasks[from_ms])])
            for from_ms, pending in fullest.items()
        ]
