"""``python -m tests.benchmarks.minutes --minutes 60 --rate 6000``: a stream in and out, and the cost of each minute.

::

    --rows N       so many pending tasks fill the store first, due over the thirty days from tomorrow
    --store NAME   SQLite, or PostgreSQL, of which each minute also shows dead rows and new row versions by table
    --size BYTES   of arguments of each message of the stream; 0: a message without arguments
    --pinned       REPEATABLE READ, open all the time: no dead row may be removed, each version of a row stays

A row that is rewritten again and again costs each reader all of its versions, so lateness grows with the minutes; so
would whatever else a scheduler leaves behind.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import KINDS, POSTGRESQL, Database, database, open_transaction
from tests.benchmarks.filler import fill_days
from tests.benchmarks.letters import BODY_BYTES, letters_of
from tests.benchmarks.pending import DAYS, DEAD
from tests.benchmarks.stream import through_wheel
from tests.kit.servers.redis import RedisServer

#: Table → new versions of rows so far, and how many of them needed no entry in an index.
VERSIONS = "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE n_tup_upd > 0 ORDER BY relname"


class Watch:
    """Tells of each span the dead rows at its end, and row versions a second by table, with the part that are HOT."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._before, self._at_s = self._read(), time.monotonic()

    def _read(self) -> dict[str, tuple[int, int]]:
        return {name: (all_, hot) for name, all_, hot in self._connection.execute(VERSIONS)}

    def since(self) -> Iterator[str]:
        found, at_s = self._read(), time.monotonic()
        seconds, versions = at_s - self._at_s, list[str]()
        for name, (all_, hot) in found.items():
            was, was_hot = self._before.get(name, (0, 0))
            if (count := all_ - was) / seconds >= 0.05:
                part = f"({(hot - was_hot) / count:.0%} HOT)"
                versions.append(f"{name.removeprefix('wheel_')} {count / seconds:.1f} {part}")
        self._before, self._at_s = found, at_s
        [[dead]] = self._connection.execute(DEAD).fetchall()
        yield from (f"{dead:,}", ", ".join(versions))

    def close(self) -> None:
        self._connection.close()


def run(found: Database, watch: Watch | None, redis: RedisServer, minutes: int, rate: int, size: int) -> None:
    client = redis.client()
    letters, began = letters_of(redis.url, client, size=size), found.on_disk()
    columns = ["minute", "p50 ms", "p99 ms", "most ms", "CPU µs a message", "memory MB", "files grew by MB"]
    columns += ["dead rows", "row versions a second"] if watch else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    with Child(redis.url, found.url) as child:
        for minute in range(1, minutes + 1):
            stream = through_wheel(child, letters, client, rate, 60)
            late = (f"{stream.late_ms(percent):.1f}" for percent in (50, 99, 100))
            grew_mb = (found.on_disk() - began) / 2**20
            costs = f"{stream.cpu_us:.0f}", f"{child.status().rss / 2**20:.0f}", f"{grew_mb:.0f}"
            print("|", " | ".join([str(minute), *late, *costs, *(watch.since() if watch else ())]), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--rate", type=int, default=300, help="messages a second")
    parser.add_argument("--rows", type=int, default=0, help="pending tasks beside them")
    parser.add_argument("--size", type=int, default=BODY_BYTES, help="bytes of arguments")
    parser.add_argument("--store", choices=KINDS, default=POSTGRESQL)
    parser.add_argument("--pinned", action="store_true", help="beside an open transaction of PostgreSQL")
    options = parser.parse_args()
    if options.pinned and options.store != POSTGRESQL:
        parser.error("--pinned is for PostgreSQL: name it as the store")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minutes-")))
        redis = stack.enter_context(RedisServer(folder / "redis"))
        found, watch = stack.enter_context(database(folder, options.store)), None
        open_store(found.url).close()
        if options.rows:
            fill_days(found.url, options.rows // DAYS, DAYS, random.Random(41))
        if options.store == POSTGRESQL:
            watch = stack.enter_context(closing(Watch(found.url)))
        if options.pinned:
            stack.enter_context(open_transaction(found.url))
        run(found, watch, redis, options.minutes, options.rate, options.size)


if __name__ == "__main__":
    main()
