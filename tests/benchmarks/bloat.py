"""``python -m tests.benchmarks.bloat --rows 2000000``: the health of PostgreSQL's tables while tasks pass through.

::

    accept ─► cancel a tenth ─► settle ─► forget     in groups of 2,000, through the store's API
       due at random within the ``--keep`` / 2 rows that come next, so that rows leave the tables in another order than
       they came into them; as many settled rows are history: about ``--keep`` are in the store at any time

Every 100,000 rows a line of live and dead rows and sizes. Healthy tables do not grow after ``--keep`` rows.
"""

import argparse
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, Position
from celery_wheel.store.ports import Retention
from celery_wheel.store.postgresql.server import PARAMETERS
from tests.benchmarks.databases import DURABLE, open_transaction
from tests.benchmarks.filler import Filler
from tests.kit.holder import LEASE, NO_LIMIT, NOW
from tests.kit.servers.postgres import PostgresServer

#: Bytes of a message, as in the other benchmarks: 600 of body and 620 beside it.
PARTS: dict[str, Any] = {"body": b"b" * 600, "headers": b"h" * 310, "properties": b"p" * 310}
GROUP, CANCELLED, EVERY = 2_000, 200, 100_000

SIZES = """
    SELECT relname, n_live_tup, n_dead_tup, pg_table_size(relid) / 1e6, pg_indexes_size(relid) / 1e6, autovacuum_count
    FROM pg_stat_user_tables ORDER BY relname
"""
COLUMNS = ("passed", "rows/s", "timer live", "timer dead", "timer MB", "timer index MB", "rest MB")


def passing(holder: Filler, keep: int) -> Iterator[int]:
    """Let a group of tasks pass through a store at each step, which is an hour of their time."""
    rng, settled, hours = random.Random(1), deque[int](), max(1, keep // 2 // GROUP)
    for number in itertools.count():
        now_ms = NOW + number * HOUR_MS
        new = [holder.row(now_ms + rng.randrange(hours * HOUR_MS), **PARTS) for _ in range(GROUP)]
        holder.add(new)
        holder.retire(new[:CANCELLED], "cancelled", now_ms)
        holder.settle_upto(Position(now_ms, 0))
        settled.append(now_ms)
        holder.store.renew(0, holder.epoch, now_ms, LEASE, {"snapshot": "s" * 2_000, "number": number})
        if len(settled) > hours:
            oldest = settled.popleft()
            while holder.store.forget(0, holder.epoch, Retention(oldest + 1, NO_LIMIT), GROUP):
                pass
        yield number


def run(server: PostgresServer, url: str, rows: int, keep: int) -> None:
    def sizes() -> dict[str, list[Any]]:
        return {name: rest for name, *rest in server.sql(SIZES, database=url.rsplit("/", 1)[1])}

    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    with closing(open_store(url)) as store:
        began = sampled = time.monotonic()
        for passed, _ in zip(range(GROUP, rows + 1, GROUP), passing(Filler(store), keep), strict=False):
            if passed % EVERY == 0:
                now, found = time.monotonic(), sizes()
                live, dead, table, indexes, _ = found.pop("wheel_timer")
                rest = sum(table + indexes for _, _, table, indexes, _ in found.values())
                cells = passed, EVERY / (now - sampled), live, dead, table, indexes, rest
                print("| " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |", flush=True)
                sampled = now
        took_s = time.monotonic() - began
    print(f"\n{rows:,} rows in {took_s:.0f} s: {rows / took_s:,.0f} rows/s through their whole life")
    print(f"\n{'table':16}{'live':>10}{'dead':>10}{'table MB':>10}{'index MB':>10}{'vacuumed':>10}")
    for name, (live, dead, table, indexes, vacuumed) in sizes().items():
        print(f"{name:16}{live:10,}{dead:10,}{table:10.1f}{indexes:10.1f}{vacuumed:10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="tasks in all")
    parser.add_argument("--keep", type=int, default=50_000, help="tasks in the store at any time")
    parser.add_argument("--defaults", action="store_true", help="with PostgreSQL's own settings for the tables")
    parser.add_argument("--horizon", action="store_true", help="beside a transaction that stays open elsewhere")
    options = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(**DURABLE))
        url = server.new_database()
        open_store(url).close()
        if options.defaults:
            for table, parameters in PARAMETERS.items():
                server.sql(f"ALTER TABLE {table} RESET ({', '.join(parameters)})", database=url.rsplit("/", 1)[1])
        if options.horizon:  # as a forgotten psql or a long report: no dead row may be removed then
            stack.enter_context(open_transaction(url))
        run(server, url, options.rows, options.keep)


if __name__ == "__main__":
    main()
