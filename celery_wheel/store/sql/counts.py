"""The pending counts: the tally of each hour, queue and task, and its sums, which change in the same statements' batch.

::

    {(hour, queue, task): n}  ──►  wheel_tally    shard, route, hour                    for filters, forecasts
                              ──►  wheel_total    shard, "hour", hour │ "day", day │ "name", route     for ``overview``

A count names its queue and task by a route that has nothing else (``Route.named``): a row of integers costs SQLite
12 µs where texts cost 23. The sums are few whatever is pending: 8,760 hours, 365 days and 100 names for a year of 100
tasks.

Every change of the tally goes through ``add_tally``, so the sums cannot differ from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from celery_wheel.store.model import DAY_MS, HOUR_MS, TallyKey
from celery_wheel.store.route import Route
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.statements import Statements


def routes_of(keys: Iterable[TallyKey]) -> dict[tuple[str, str], Route]:
    """Return (queue, task) → the route by which the two are counted."""
    return {name: Route.named(*name) for name in {(key.queue, key.task) for key in keys}}


def add_tally(
    connection: Connection,
    statements: Statements,
    shard: int,
    more: Mapping[TallyKey, int],
    named: Mapping[tuple[str, str], Route],
    ids: Mapping[Route, int],
) -> None:
    """Add to the pending counts and to their sums; negative numbers subtract."""
    numbers = {name: ids[route] for name, route in named.items()}
    counts = [(hour, numbers[queue, task], count) for (hour, queue, task), count in more.items() if count]
    hours, names = Counter[int](), Counter[int]()
    for hour, route, count in counts:
        hours[hour] += count
        names[route] += count
    days = Counter[int]()
    for hour, count in hours.items():
        days[hour // (DAY_MS // HOUR_MS)] += count
    sums = (("hour", hours), ("day", days), ("name", names))
    statements.add_tally.many(connection, [(shard, *count) for count in counts])
    statements.add_total.many(
        connection, [(shard, kind, number, n) for kind, sum_ in sums for number, n in sum_.items() if n]
    )


def recount(
    connection: Connection, statements: Statements, catalogue: Catalogue, shard: int, more: Mapping[TallyKey, int]
) -> None:
    """Add to the pending counts in a transaction that adds no rows."""
    named = routes_of(more)
    add_tally(connection, statements, shard, more, named, catalogue.route_ids(connection, named.values()))
