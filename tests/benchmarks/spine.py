"""The whole path under load: a real Redis, a real store with fsync, the scheduler in a process of its own.

::

    rows + rows/10 messages, etas at random over 33 days, through the wheel queue           ingest
    the clock moves 3 days: rows/10 are dispatched: the history                             dispatch, no history
    ``rows`` are pending now, over 30 days, and the history is older than its retention
    the clock moves 3 days: rows/10 are dispatched, and the history is forgotten            dispatch
    messages that are due within half a second                                              due now
    kill -9, a new process, its first message in a worker's queue                           restart

Only the scheduler's work is timed: messages are made beforehand, and appear in the wheel queue at once by RENAME. The
yardstick is kombu's own consume (against ingest), publish and Producer.batch (against dispatch), which make nothing
durable.
"""

from __future__ import annotations

import os
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import redis
from kombu import Connection, Consumer, Queue

from celery_wheel.operations.bench import Pace
from celery_wheel.store.model import DAY_MS
from tests.benchmarks.child import Child
from tests.benchmarks.databases import POSTGRESQL, SQLITE, Database, database
from tests.benchmarks.figure import Figure, pace
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, Letter, letters_of
from tests.benchmarks.scheduler import RETENTION_S
from tests.benchmarks.stream import Drain
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

#: A variable of the environment: secrets by which the store is encrypted.
KEYS = "BENCH_ENCRYPTION_KEYS"

PENDING_DAYS, DUE_DAYS = 30, 3
#: The thread behind each count.
THREADS = {"accepted": "ingest", "dispatched": "dispatch"}
STAGED = "bench.staged"
PORTION = 100_000  #: messages in Redis at a time, about 200 MB

#: Targets, for this many rows.
TARGET_ROWS = 2_000_000
INGEST_US = {SQLITE: 35.0, POSTGRESQL: None}
DISPATCH_PER_S, DISPATCH_US, BOTH_PER_S = 60_000, 15.0, 20_000
RSS_MB, RESTART_S, COLD_RESTART_S = 300, 2, 5


@dataclass(frozen=True, slots=True)
class Spent(Pace):
    waited_s: float = 0.0  #: seconds in which the thread or Redis was ready to run, and others had the cores
    forgotten: int = 0
    broker_s: float = 0.0  #: seconds of Redis's CPU
    store_s: float = 0.0  #: seconds of the database server's CPU
    logged: int = 0  #: bytes that the server wrote into its write-ahead log

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def run(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        spine = Spine(found, rows, server)
        count = max(1_000, min(20_000, rows // 100) // 1_000 * 1_000)
        consume, publish, batch = kombu(server, spine.letters.example, count)
        for name, each in (("consume", consume), ("publish", publish), (f"batch({BATCH})", batch)):
            yield Figure("kombu", name, each.per_s, "messages/s")
            yield Figure("kombu", f"{name}, CPU", each.cpu_us, "µs/message")
        with spine.start() as child:
            whole, last = spine.fill(child)
            yield from _flow(f"ingest, the whole fill, {store}", whole, "kombu consume", consume)
            targets = spine.targets({SQLITE: 25_000, POSTGRESQL: 20_000}[store], INGEST_US[store])
            yield from _flow(f"ingest, the last {last.count:,}", last, "kombu consume", consume, *targets)
            yield from _flow("dispatch, nothing to forget", spine.dispatch(child), "kombu batch(500)", batch)
            child.move(RETENTION_S * 1_000 + 60_000)
            with Drain(spine._server, QUEUES):
                child.until("forgotten", 1)
            spent = spine.dispatch(child)
            targets = spine.targets(DISPATCH_PER_S, DISPATCH_US)
            yield from _flow("dispatch", spent, "kombu publish", publish, *targets)
            yield Figure("spine", "… history forgotten meanwhile", spent.forgotten / spent.wall_s, "rows/s")
            both = spine.due_now(child)
            yield from _flow("due now: ingest and dispatch", both, "kombu consume", consume, *spine.targets(BOTH_PER_S))
            peak_mb = child.status().rss_peak / 2**20
            child.kill()
        at_most = [("RSS of the scheduler, peak", peak_mb, "MB", RSS_MB)]
        for hours, cold, what, target in (
            (1, False, "restart to first dispatch", RESTART_S),
            (2, True, "the same, no page in memory", COLD_RESTART_S),
        ):
            at_most.append((what, spine.restart(child.ahead_ms + hours * 3_600_000, cold=cold), "s", target))
        for what, value, unit, target in at_most:
            [wanted] = spine.targets(target)
            yield Figure("spine", what, value, unit, target=wanted, less_is_better=True)
        yield Figure("spine", "store on disk, with its history", found.bytes() / (rows + spine.due), "bytes/row")


def _flow(
    what: str, spent: Spent, name: str, pace: Pace, per_s: float | None = None, cpu_us: float | None = None
) -> Iterator[Figure]:
    """Yield the figures of some work; ``per_s`` and ``cpu_us`` are its targets."""
    yield Figure("spine", what, spent.per_s, "rows/s", name, pace.per_s, per_s)
    cpu = spent.cpu_us, "µs/row", name, pace.cpu_us, cpu_us
    yield Figure("spine", "… CPU of the scheduler", *cpu, less_is_better=True)
    yield Figure("spine", "… CPU of Redis", spent.broker_s / spent.count * 1e6, "µs/row")
    if spent.logged:
        yield Figure("spine", "… CPU of the database server", spent.store_s / spent.count * 1e6, "µs/row")
        yield Figure("spine", "… written into its log", spent.logged / spent.count, "bytes/row")
    yield Figure("spine", "… time in which others had the cores", 100 * spent.waited_s / spent.wall_s, "%")


class Spine:
    def __init__(self, database: Database, rows: int, server: RedisServer) -> None:
        self.rows, self.due = rows, rows // 10
        self._server, self._database = server, database
        self._client: redis.Redis = server.client()
        self.letters = letters_of(server.url, self._client)
        self._etas = array("q")
        self._rng = random.Random(11)

    def start(self, ahead_ms: int = 0) -> Child:
        keys = {"wheel_encryption_keys": os.environ.get(KEYS, "").split()}
        return Child(self._server.url, self._database.url, ahead_ms=ahead_ms, settings=keys)

    def targets(self, *targets: float | None) -> tuple[float | None, ...]:
        return targets if self.rows >= TARGET_ROWS else (None,) * len(targets)

    def fill(self, child: Child) -> tuple[Spent, Spent]:
        """Ingest everything; returns the cost of the whole, and of its last tenth."""
        whole, last, total = Spent(0, 0, 0), Spent(0, 0, 0), self.rows + self.due
        start_ms, most = child.status().now_ms, (PENDING_DAYS + DUE_DAYS) * DAY_MS
        while whole.count < total:
            count = min(PORTION, self.due, total - whole.count)
            etas = [start_ms + self._rng.randrange(DAY_MS, most) for _ in range(count)]
            self._etas.extend(etas)
            self.letters.push(self._client, STAGED, etas, start_ms)
            spent = self._timed(child, count, self._release, "accepted")
            whole += spent
            if whole.count > total - self.due:
                last += spent
        self._etas = array("q", sorted(self._etas))
        return whole, last

    def _release(self) -> None:
        self._client.rename(STAGED, WHEEL_QUEUE)

    def dispatch(self, child: Child) -> Spent:
        before = child.status()
        until_ms = self._etas[min(before.dispatched + self.due, len(self._etas) - 1)]
        count = bisect_right(self._etas, until_ms) - before.dispatched
        with Drain(self._server, QUEUES) as drain:
            begin = lambda: child.move(until_ms - child.status().now_ms)  # noqa: E731
            spent = self._timed(child, count, begin, "dispatched")
        # The clock goes on, so a few more may have become due.
        assert drain.removed >= count, f"{drain.removed} of {count} tasks have arrived"
        return spent

    def due_now(self, child: Child) -> Spent:
        """Ingest and dispatch at once: messages that are due within half a second."""
        count, now_ms = min(50_000, self.due), child.status().now_ms
        etas = [now_ms + self._rng.randrange(500) for _ in range(count)]
        self.letters.push(self._client, STAGED, etas, now_ms)
        with Drain(self._server, QUEUES):
            return self._timed(child, count, self._release, "dispatched")

    def restart(self, ahead_ms: int, *, cold: bool) -> float:
        """Return the seconds from a start to the first message in a worker's queue, an hour after the last process."""
        self._client.delete(*QUEUES)
        if cold:
            self._database.evict()
        began = time.perf_counter()
        with self.start(ahead_ms) as child:
            arrived = self._client.blpop(list(QUEUES), timeout=30)
            took_s = time.perf_counter() - began
            assert arrived, "nothing was dispatched within 30 s of a restart"
            child.kill()
        return took_s

    def _timed(self, child: Child, count: int, begin: Callable[[], object], what: str) -> Spent:
        """Measure from ``begin`` until ``count`` more rows are accepted or dispatched, and the wheel queue is empty."""
        before, servers_before = child.status(), self._servers()
        counted, thread = attrgetter(what), THREADS[what]
        began = time.perf_counter()
        begin()
        after = child.until(what, counted(before) + count)
        wait_until(lambda: not self._client.exists(WHEEL_QUEUE), "the wheel queue is empty", every_s=0.002)
        wall_s = time.perf_counter() - began
        done = counted(after) - counted(before)
        waited_s, *servers = (now - then for now, then in zip(self._servers(), servers_before, strict=True))
        waited_s += after.core_wait_s[thread] - before.core_wait_s[thread]
        cpu_s, forgotten = after.cpu_s - before.cpu_s, after.forgotten - before.forgotten
        return Spent(done, wall_s, cpu_s, waited_s, forgotten, *servers)

    def _servers(self) -> tuple[float, float, float, int]:
        """Return how long Redis waited for a core, its CPU, the database server's CPU, and what that logged."""
        ran_ns, waited_ns, _ = map(int, Path(f"/proc/{self._server.pid}/schedstat").read_text().split())
        return waited_ns / 1e9, ran_ns / 1e9, self._database.cpu_s(), self._database.logged()


QUEUE, BATCH = "bench.kombu", 500


def kombu(server: RedisServer, letter: Letter, count: int) -> list[Pace]:
    kept = {name: letter.properties[name] for name in ("correlation_id", "reply_to")}
    kept |= {"content_type": "application/json", "content_encoding": "utf-8"}
    client, done = server.client(), 0

    def take(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    with Connection(server.url) as connection:
        producer = connection.Producer()

        def consume() -> None:
            with Consumer(connection.channel(), [Queue(QUEUE)], on_message=take):
                while done < count:
                    connection.drain_events(timeout=10)

        def produce(within: Any) -> Pace:
            def work() -> None:
                with within:
                    for _ in range(count):
                        producer.publish(letter.body, routing_key=QUEUE, headers=letter.headers, **kept)

            found = pace(work, count)
            client.delete(QUEUE)
            return found

        for _ in range(0, count, 1_000):
            client.lpush(QUEUE, *[letter.raw] * 1_000)
        return [pace(consume, count), produce(nullcontext()), produce(producer.batch(BATCH))]
