"""Very many schedules: creating them and reading the next ones is fast, with statistics of the tables and without.

A busy machine delays some of the calls, so the fastest of several counts.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import postgresql, sqlite
from tests.kit.holder import NOW, Holder
from tests.kit.patience import factor, patience
from tests.kit.schedules import MINUTE, create, materialise

#: A read that passes over so many rows takes more than SLOW_MS, on a quiet machine.
MANY = 200_000
SLOW_MS = 5
AT_ONCE = 50_000
HOUR = 60 * MINUTE
DEFINITION = (
    '{"recurrence": {"crontab": "*/5 * * * *", "zone": "Europe/Berlin"}, "task": "app.remind", "kwargs": {"n": 1}}'
)


@pytest.fixture(params=[pytest.param(sqlite, id="sqlite"), pytest.param(postgresql, id="postgresql")])
def store(request: pytest.FixtureRequest) -> Iterator[SqlStore]:
    with closing(request.param(request)()) as opened:
        yield opened


def fill(store: SqlStore) -> None:
    """Add schedules that are spread over an hour, in another order than that of their ids."""
    is_postgresql = store.database.server() is not None
    false = "false" if is_postgresql else "0"
    next_ms = f"{NOW} + n * 7919 - n * 7919 / {HOUR} * {HOUR}"
    values = f"n * 256, 0, 'schedule-' || n, '{DEFINITION}', 'api', 1, {next_ms}, 0, NULL, {false}, '', {false}, NULL"
    for first in range(1, MANY, AT_ONCE):
        last = first + AT_ONCE - 1
        counted = (
            f"WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT * FROM s"
        )
        numbers = f"generate_series({first}::bigint, {last}) AS s(n)" if is_postgresql else f"({counted})"
        with store.database.writing(durable=False) as connection:
            if is_postgresql:  # statistics come when the test wants them
                connection.exec_driver_sql("ALTER TABLE wheel_schedule SET (autovacuum_enabled = false)")
            connection.exec_driver_sql(f"INSERT INTO wheel_schedule SELECT {values} FROM {numbers}")


def fastest_ms(call: Callable[[], object], times: int = 20) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken) * 1_000


@pytest.mark.slow
def test_the_next_of_many_schedules_are_read_in_milliseconds(store: SqlStore) -> None:
    fill(store)
    holder = Holder(store)
    reads: dict[str, Callable[[], object]] = {
        "a few are due": lambda: store.due_schedules(0, NOW + 20, 500),
        "all are due": lambda: store.due_schedules(0, NOW + HOUR, 500),
        "none is due": lambda: store.due_schedules(0, NOW - 1, 500),
        "another shard": lambda: store.due_schedules(1, NOW + HOUR, 500),
        "the next": lambda: store.next_schedule_ms(0),
        "after a thousand": lambda: store.next_schedule_ms(0, 1_000),
        "the next of another shard": lambda: store.next_schedule_ms(1),
        "by name": lambda: store.schedules_named(["schedule-77", "none"]),
    }
    for state in ("new", "after steps", "with statistics"):
        if state == "after steps":
            assert materialise(holder, NOW + HOUR) == 1_000
        elif state == "with statistics":
            with store.database.writing() as connection:
                connection.exec_driver_sql("ANALYZE")
        slow = {name: ms for name, read in reads.items() if (ms := fastest_ms(read)) > SLOW_MS * factor()}
        assert not slow, state
    due = store.due_schedules(0, NOW + HOUR, 500)
    assert [one.next_ms for one in due] == sorted(one.next_ms or 0 for one in due)
    assert due[0].next_ms == store.next_schedule_ms(0)


def test_ten_thousand_schedules_are_created_a_second(store: SqlStore) -> None:
    holder, taken = Holder(store), []
    for group in range(4):
        names = [f"group-{group}/schedule-{n}" for n in range(5_000)]
        began = time.perf_counter()
        create(holder, *names, definition=DEFINITION, next_ms=NOW + group)
        taken.append(time.perf_counter() - began)
    assert min(taken) < patience(0.5)
    assert len(store.due_schedules(0, NOW + HOUR, 100_000)) == 20_000
