"""``python -m tests.benchmarks.bloat --rows 2000000``: do the tables of PostgreSQL stay healthy while tasks pass?

::

    fill ─► settle ─► forget      in groups of ``--group``, at random due times of an hour, through the store's API;
                                  about ``--keep`` rows are in the store at any time

Printed for each table: live and dead rows, size of the table and of its indexes, how often it was vacuumed.
``--defaults`` takes back the storage parameters that the store sets.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from typing import Any

from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, LaneState, Position
from celery_wheel.store.postgresql_tables import PARAMETERS
from tests.postgres import PostgresServer
from tests.stores.samples import LEASE, NO_LIMIT, NOW, Holder, place

HOUR_MS = 3_600_000

#: Bytes of a message: as the other benchmarks have it, 600 of body and 620 beside it.
PARTS = {"body": b"b" * 600, "headers": b"h" * 310, "properties": b"p" * 310}

SIZES = """
    SELECT relname, n_live_tup, n_dead_tup, pg_table_size(relid), pg_indexes_size(relid), autovacuum_count
    FROM pg_stat_user_tables ORDER BY relname
"""


def passing(holder: Holder, rows: int, group: int, keep: int, rng: random.Random) -> None:
    """Every group is due after the one before, and in it in any order."""
    hand, settled = ORIGIN, deque[int]()
    for number in range(rows // group):
        base = NOW + number * HOUR_MS
        new = [holder.row(base + rng.randrange(HOUR_MS), **PARTS) for _ in range(group)]
        holder.apply(rows=new)
        to = max(place(row) for row in new)
        weight = sum(row.message.size for row in new)
        batch = holder.batch(hand, Position(*to), at_ms=base, weight=weight)
        holder.apply(batches=[batch], lanes=[LaneState(0, to, to)])
        holder.store.renew(0, holder.epoch, base, LEASE, {"snapshot": "s" * 2_000, "number": number})
        hand = to
        settled.append(base)
        if len(settled) * group > keep:
            while holder.store.forget(0, holder.epoch, settled[0] + 1, NO_LIMIT, group):
                pass
            settled.popleft()


def report(server: PostgresServer, database: str) -> None:
    print(f"{'table':16}{'live':>10}{'dead':>10}{'table MB':>10}{'index MB':>10}{'vacuumed':>10}")
    for name, live, dead, table, indexes, vacuumed in server.sql(SIZES, database=database):
        print(f"{name:16}{live:10,}{dead:10,}{table / 1e6:10.1f}{indexes / 1e6:10.1f}{vacuumed:10}")


def main(arguments: Any) -> None:
    options = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}
    with PostgresServer(**options, autovacuum_naptime=arguments.naptime) as server:
        url = server.new_database()
        store = open_store(url)
        database = url.rsplit("/", 1)[1]
        if arguments.defaults:
            for table, parameters in PARAMETERS.items():
                server.sql(f"ALTER TABLE {table} RESET ({', '.join(parameters)})", database=database)
        began = time.monotonic()
        passing(Holder(store), arguments.rows, arguments.group, arguments.keep, random.Random(1))
        took_s = time.monotonic() - began
        store.close()
        rate = arguments.rows / took_s
        print(f"{arguments.rows:,} rows in {took_s:.0f} s: {rate:,.0f} rows/s accepted, settled and forgotten")
        report(server, database)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="how many pass in all")
    parser.add_argument("--group", type=int, default=2_000, help="how many are accepted in one commit")
    parser.add_argument("--keep", type=int, default=50_000, help="how many are in the store at any time")
    parser.add_argument("--naptime", default="1min", help="of autovacuum; PostgreSQL's default is 1min")
    parser.add_argument("--defaults", action="store_true", help="with PostgreSQL's own settings for the tables")
    main(parser.parse_args())
