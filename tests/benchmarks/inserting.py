"""The yardstick of bulk intake: the same rows into an empty store by nothing but INSERT or COPY, fsync on.

The rows are those that a scheduler accepted: executemany on SQLite and COPY on PostgreSQL write them again, with their
three indexes, as many in each commit as a scheduler writes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from celery_wheel.engine.round import Limits
from celery_wheel.operations.bench.rig import Pace, pace
from celery_wheel.store import open_store
from celery_wheel.store.sql.schema import timer


def insert_again(url: str, make: Callable[[], str], count: int) -> Pace:
    """Write ``count`` rows of the store at ``url`` into a new store."""
    at_once = Limits().bulk_count
    with closing(open_store(url, create=False)) as source, closing(open_store(make())) as target:
        insert = target.database.statements.add_timer
        with source.database.reading() as connection:
            # As bytes: the drivers' own values, which the columns' types would turn into text.
            found = connection.exec_driver_sql(f"SELECT {', '.join(insert.names)} FROM {timer.name} LIMIT {count}")
            rows = [tuple(row) for row in found]

        def work() -> None:
            for start in range(0, len(rows), at_once):
                with target.database.writing() as connection:
                    insert.many(connection, rows[start : start + at_once])

        return pace(work, len(rows))
