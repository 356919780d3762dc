"""Checks of a store's counts: the tally is that of its pending rows, and the sums are those of its tally."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import and_, event, func, select, tuple_

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.sql.schema import lane, route, tally, timer, total
from celery_wheel.store.sql.store import SqlStore


def check_sums(store: SqlStore) -> None:
    """Assert that each sum is that of its part of the tally, and that the rows of each route are counted."""
    with store.database.snapshot() as connection:
        counts = connection.execute(select(tally.c.shard, tally.c.hour, tally.c.route, tally.c.pending)).all()
        of_routes = select(timer.c.route, timer.c.shard, func.count()).group_by(timer.c.route, timer.c.shard)
        routes = connection.execute(of_routes).all()
        stored = connection.execute(select(total.c.kind, total.c.number, total.c.shard, total.c.pending)).all()
    expected = Counter[tuple[str, int, int]]({("route", number, shard): count for number, shard, count in routes})
    expected.update(("route", 0, shard) for shard in range(len(store.holders())))
    for shard, hour, name, pending in counts:
        for place in (("shard", 0, shard), ("hour", hour, shard), ("day", hour // 24, shard), ("name", name, shard)):
            expected[place] += pending
    found = {(kind, number, shard): pending for kind, number, shard, pending in stored if pending}
    assert found == {place: pending for place, pending in expected.items() if pending}


def check_tally(store: SqlStore) -> None:
    """Assert that the tally is that of the rows after the offsets, and that its sums are right."""
    check_sums(store)
    here = and_(timer.c.shard == lane.c.shard, timer.c.lane == lane.c.lane)
    after = tuple_(timer.c.due_ms, timer.c.seq) > tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
    rows = timer.join(route, route.c.id == timer.c.route).join(lane, here)
    columns = (timer.c.shard, timer.c.due_ms, route.c.target, route.c.task)
    named = select(tally.c.shard, tally.c.hour, route.c.target, route.c.task, func.sum(tally.c.pending))
    counts = named.join(route, route.c.id == tally.c.route).where(tally.c.pending != 0)
    with store.database.snapshot() as connection:
        pending = connection.execute(select(*columns).select_from(rows).where(after)).all()
        stored = connection.execute(counts.group_by(tally.c.shard, tally.c.hour, route.c.target, route.c.task)).all()
    expected = Counter((shard, due_ms // HOUR_MS, *names) for shard, due_ms, *names in pending)
    assert {tuple(place): int(count) for *place, count in stored} == expected


@contextmanager
def reads_of(store: SqlStore, given: list[Any] | None = None) -> Iterator[list[str]]:
    """Yield the statements that read the store, as they come; ``given`` gets the values of each."""
    engine: Any = getattr(store.database, "_reader", None) or store.database._engine  # type: ignore[attr-defined]
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        if statement.startswith(("SELECT", "WITH")):
            said.append(statement)
            if given is not None:
                given.append(values)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(engine, "before_cursor_execute", note)
