"""``python -m tests.benchmarks.bloat --rows 2000000``: the health of PostgreSQL's tables while tasks pass through.

::

    accept ─► cancel some ─► settle ─► forget     in groups of ``--group``, through the store's API
       due at random within the ``--keep`` / 2 rows that come next, so that rows leave the tables in another order than
       they came into them; as many settled rows are history: about ``--keep`` are in the store at any time

Every ``--every`` rows a line is printed: live and dead rows, sizes of tables and of their indexes; at the end, each
table by itself, and how often it was vacuumed. Healthy tables
no longer grow after the first ``--keep`` rows and the first run of autovacuum.

``--defaults`` resets the storage parameters that the store sets. ``--horizon`` keeps a transaction open elsewhere
for the whole run, as a forgotten psql or a long report does: no dead row may be removed then.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from contextlib import ExitStack
from typing import Any

import psycopg

from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, Position
from celery_wheel.store.ports import Retention
from celery_wheel.store.postgresql.server import PARAMETERS
from tests.benchmarks.filler import LEASE_MS, NOW, Filler
from tests.kit.servers.postgres import PostgresServer

#: Bytes of a message, as in the other benchmarks: 600 of body and 620 beside it.
PARTS: dict[str, Any] = {"body": b"b" * 600, "headers": b"h" * 310, "properties": b"p" * 310}

SIZES = """
    SELECT relname, n_live_tup, n_dead_tup, pg_table_size(relid), pg_indexes_size(relid), autovacuum_count
    FROM pg_stat_user_tables ORDER BY relname
"""

NO_LIMIT = 2**62

#: Tables with all their figures in each sample.
SHOWN = ("wheel_timer",)
_OF_EACH = ("live", "dead", "MB", "index MB")
COLUMNS = ("passed", "rows/s", *(f"{name[6:]} {what}" for name in SHOWN for what in _OF_EACH), "rest MB")


class Passing:
    """Tasks that pass through a store, ``group`` of them at each ``step``; a step is an hour of their time."""

    def __init__(self, holder: Filler, group: int, keep: int, cancelled: float) -> None:
        self._holder = holder
        self._group = group
        self._hours = max(1, keep // 2 // group)
        self._cancelled = int(group * cancelled)
        self._rng = random.Random(1)
        self._settled = deque[int]()
        self._number = 0

    def step(self) -> None:
        holder, now_ms = self._holder, NOW + self._number * HOUR_MS
        dues = (now_ms + self._rng.randrange(self._hours * HOUR_MS) for _ in range(self._group))
        new = [holder.row(due_ms, **PARTS) for due_ms in dues]
        holder.accept(new)
        holder.retire(new[: self._cancelled], "cancelled", now_ms)
        holder.settle(Position(now_ms, 0))
        self._settled.append(now_ms)
        holder.store.renew(0, holder.epoch, now_ms, LEASE_MS, {"snapshot": "s" * 2_000, "number": self._number})
        if len(self._settled) > self._hours:
            oldest = self._settled.popleft()
            while holder.store.forget(0, holder.epoch, Retention(oldest + 1, NO_LIMIT), self._group):
                pass
        self._number += 1


class Samples:
    """Prints the table of samples, and at the end the figures of each table."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self._database = database
        print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)

    def take(self, passed: int, rate: float) -> None:
        found = self._found()
        cells = [f"{passed:,}", f"{rate:,.0f}"]
        for name in SHOWN:
            live, dead, table, indexes, _ = found.pop(name)
            cells += [f"{live:,}", f"{dead:,}", f"{table / 1e6:,.0f}", f"{indexes / 1e6:,.0f}"]
        cells.append(f"{sum(table + indexes for _, _, table, indexes, _ in found.values()) / 1e6:,.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)

    def conclude(self) -> None:
        print(f"\n{'table':16}{'live':>10}{'dead':>10}{'table MB':>10}{'index MB':>10}{'vacuumed':>10}")
        for name, (live, dead, table, indexes, vacuumed) in self._found().items():
            print(f"{name:16}{live:10,}{dead:10,}{table / 1e6:10.1f}{indexes / 1e6:10.1f}{vacuumed:10}")

    def _found(self) -> dict[str, tuple[int, int, int, int, int]]:
        return {name: tuple(rest) for name, *rest in self._server.sql(SIZES, database=self._database)}


def run(server: PostgresServer, url: str, arguments: Any) -> None:
    samples = Samples(server, url.rsplit("/", 1)[1])
    store = open_store(url)
    passing = Passing(Filler(store), arguments.group, arguments.keep, arguments.cancelled)
    began = sampled = time.monotonic()
    for passed in range(arguments.group, arguments.rows + 1, arguments.group):
        passing.step()
        if passed % arguments.every < arguments.group:
            now = time.monotonic()
            samples.take(passed, arguments.every / (now - sampled))
            sampled = now
    took_s = time.monotonic() - began
    store.close()
    print(
        f"\n{arguments.rows:,} rows in {took_s:.0f} s: {arguments.rows / took_s:,.0f} rows/s through their whole life"
    )
    samples.conclude()


def main(arguments: Any) -> None:
    options = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(**options, autovacuum_naptime=arguments.naptime))
        url = server.new_database()
        open_store(url).close()
        if arguments.defaults:
            for table, parameters in PARAMETERS.items():
                server.sql(f"ALTER TABLE {table} RESET ({', '.join(parameters)})", database=url.rsplit("/", 1)[1])
        if arguments.horizon:
            elsewhere = stack.enter_context(psycopg.connect(url))
            elsewhere.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            elsewhere.execute("SELECT 1")
        run(server, url, arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="tasks in all")
    parser.add_argument("--group", type=int, default=2_000, help="tasks accepted in one commit")
    parser.add_argument("--keep", type=int, default=50_000, help="tasks in the store at any time")
    parser.add_argument("--cancelled", type=float, default=0.1, help="part of the tasks that is cancelled")
    parser.add_argument("--every", type=int, default=100_000, help="rows between two samples")
    parser.add_argument("--naptime", default="1min", help="of autovacuum; PostgreSQL's default is 1min")
    parser.add_argument("--defaults", action="store_true", help="with PostgreSQL's own settings for the tables")
    parser.add_argument("--horizon", action="store_true", help="beside a transaction that stays open elsewhere")
    main(parser.parse_args())
