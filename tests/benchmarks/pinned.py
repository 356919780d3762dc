"""``python -m tests.benchmarks.pinned --minutes 5``: lateness beside a transaction that stays open on PostgreSQL.

::

    REPEATABLE READ, open all the time        no dead row may be removed: each version of a row stays
    a scheduler, idle for ten seconds         row versions a second by table
    a stream of 300 messages a second         each minute: lateness, row versions a second by table, CPU a message

A row that is rewritten again and again costs each reader all of its versions, so lateness grows with the minutes. With
``--free`` no transaction is open.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import DURABLE, open_transaction
from tests.benchmarks.letters import letters_of
from tests.benchmarks.stream import through_wheel
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer

IDLE_S = 10

#: Table → new versions of rows so far, and how many of them needed no entry in an index.
VERSIONS = "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE n_tup_upd > 0 ORDER BY relname"

Versions = dict[str, tuple[int, int]]


class Watch:
    """Prints a line for each span: row versions a second by table, with the part that are HOT updates."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self._server, self._database = server, url.rsplit("/", 1)[1]
        self._before, self._at_s = self._read(), time.monotonic()

    def _read(self) -> Versions:
        self._server.sql("SELECT pg_stat_clear_snapshot()", database=self._database)
        return {name: (all_, hot) for name, all_, hot in self._server.sql(VERSIONS, database=self._database)}

    def since(self) -> str:
        found, at_s = self._read(), time.monotonic()
        seconds, cells = at_s - self._at_s, list[str]()
        for name, (all_, hot) in found.items():
            was, was_hot = self._before.get(name, (0, 0))
            if (count := all_ - was) / seconds >= 0.05:
                cells.append(f"{name.removeprefix('wheel_')} {count / seconds:.1f} ({(hot - was_hot) / count:.0%} HOT)")
        self._before, self._at_s = found, at_s
        return ", ".join(cells)


def run(server: PostgresServer, url: str, redis: RedisServer, minutes: int, rate: int) -> None:
    watch, client = Watch(server, url), redis.client()
    letters = letters_of(redis.url, client)
    with Child(redis.url, url) as child:
        watch.since()
        time.sleep(IDLE_S)
        print(f"idle, row versions a second: {watch.since()}\n", flush=True)
        print("| minute | p50 ms | p99 ms | most ms | CPU µs a message | row versions a second |\n" + "|---" * 6 + "|")
        for minute in range(1, minutes + 1):
            stream = through_wheel(child, letters, client, rate, 60)
            late = " | ".join(f"{stream.late_ms(percent):.0f}" for percent in (50, 99, 100))
            print(f"| {minute} | {late} | {stream.cpu_us:.0f} | {watch.since()} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--rate", type=int, default=300, help="messages a second")
    parser.add_argument("--free", action="store_true", help="without the open transaction")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pinned-")))
        redis = stack.enter_context(RedisServer(folder / "redis"))
        server = stack.enter_context(PostgresServer(**DURABLE))
        url = server.new_database()
        open_store(url).close()
        if not options.free:
            stack.enter_context(open_transaction(url))
        run(server, url, redis, options.minutes, options.rate)


if __name__ == "__main__":
    main()
