"""The whole path under load: a real Redis, a real store with fsync, the scheduler in a process of its own.

::

    rows + rows/10 messages, etas at random over 33 days, through the wheel queue           ingest
    the clock moves 3 days: rows/10 are dispatched: the history                             dispatch, no history
    ``rows`` are pending now, over 30 days, and the history is older than its retention
    the clock moves 3 days: rows/10 are dispatched, and the history is forgotten            dispatch
    messages that are due within half a second                                              due now
    kill -9, a new process, its first message in a worker's queue                           restart

Only the scheduler's work is timed. Messages are made beforehand under another name, and appear in the wheel queue at
once by RENAME; dispatched messages are removed from the workers' queues over a connection of its own.

The store is SQLite, or PostgreSQL with ``--store PostgreSQL``: its server's CPU time is not in the scheduler's.

The yardstick is kombu's own consume and publish, as a worker and a producer use them::

    consume    Consumer(on_message=ack), the message not decoded           against ingest
    publish    Producer.publish of a body serialised before, one by one    against dispatch
    batch      the same within Producer.batch(500)

Neither makes anything durable, and neither knows when a message is due.
"""

from __future__ import annotations

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

from celery_wheel.console.output import progress
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from tests.benchmarks.child import Child
from tests.benchmarks.databases import POSTGRESQL, SQLITE, Database, database
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, Letter, Letters
from tests.benchmarks.parts import make_app
from tests.benchmarks.scheduler import RETENTION_S
from tests.benchmarks.stream import Drain
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

DAY_MS = 86_400_000
PENDING_DAYS, DUE_DAYS = 30, 3
#: The thread behind each count.
THREADS = {"accepted": "ingest", "dispatched": "dispatch"}
STAGED = "bench.staged"
PORTION = 100_000  #: messages in Redis at a time, about 200 MB
SEED = 11

#: Targets, for this many rows.
TARGET_ROWS = 2_000_000
INGEST_PER_S = {SQLITE: 25_000, POSTGRESQL: 20_000}
INGEST_US = {SQLITE: 35.0, POSTGRESQL: None}
DISPATCH_PER_S, DISPATCH_US, BOTH_PER_S = 60_000, 15.0, 20_000
RSS_MB, RESTART_S, COLD_RESTART_S = 300, 2, 5


@dataclass(frozen=True, slots=True)
class Spent(Pace):
    """The cost of some work: wall time, and CPU time of the scheduler."""

    waited_s: float = 0.0  #: seconds in which the thread or Redis was ready to run, and others had the cores
    forgotten: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class Spine:
    """A run in a folder of its own, which the caller makes and removes."""

    def __init__(self, database: Database, rows: int, server: RedisServer) -> None:
        self.rows = rows
        self.due = rows // 10
        self._server = server
        self._client: redis.Redis = server.client()
        self._database = database
        app = make_app(server.url, database.url)
        self._letters = Letters(app, self._client)
        app.close()
        self._etas = array("q")
        self._rng = random.Random(SEED)

    def yardstick(self) -> Yardstick:
        count = max(1_000, min(20_000, self.rows // 100) // 1_000 * 1_000)
        return measure_kombu(self._server.url, self._client, self._letters.example, count)

    def start(self, ahead_ms: int = 0) -> Child:
        return Child({"broker": self._server.url, "store": self._database.url, "ahead_ms": ahead_ms})

    def targets(self, *targets: float | None) -> tuple[float | None, ...]:
        """Return the targets if they are for this many rows."""
        return targets if self.rows >= TARGET_ROWS else (None,) * len(targets)

    def fill(self, child: Child) -> tuple[Spent, Spent]:
        """Ingest everything; returns the cost of the whole, and of its last tenth."""
        whole, last, total = Spent(0, 0, 0), Spent(0, 0, 0), self.rows + self.due
        start_ms = child.until("held", 1).now_ms
        with progress("ingest", total) as bar:
            while whole.count < total:
                count = min(PORTION, self.due, total - whole.count)
                etas = [
                    start_ms + self._rng.randrange(DAY_MS, (PENDING_DAYS + DUE_DAYS) * DAY_MS) for _ in range(count)
                ]
                self._etas.extend(etas)
                self._stage(etas, start_ms)
                done = whole.count
                spent = self._timed(child, count, self._release, "accepted", lambda n, d=done: bar(0, done=d + n))
                whole += spent
                if whole.count > total - self.due:
                    last += spent
                bar(0, doing=f"{spent.per_s:,.0f}/s")
        self._etas = array("q", sorted(self._etas))
        return whole, last

    def _stage(self, etas_ms: list[int], created_ms: int) -> None:
        self._letters.push(self._client, STAGED, etas_ms, created_ms)

    def _release(self) -> None:
        self._client.rename(STAGED, WHEEL_QUEUE)

    def dispatch(self, child: Child, what: str) -> Spent:
        """Move the clock so that a tenth of the rows are due, and wait until they are dispatched."""
        before = child.status()
        until_ms = self._etas[min(before.dispatched + self.due, len(self._etas) - 1)]
        count = bisect_right(self._etas, until_ms) - before.dispatched
        with progress(what, count) as bar, Drain(self._server, QUEUES) as drain:

            def begin() -> None:
                child.move(until_ms - child.status().now_ms)

            spent = self._timed(child, count, begin, "dispatched", lambda n: bar(0, done=n))
        # The clock goes on, so a few more may have become due.
        assert drain.removed >= count, f"{drain.removed} of {count} tasks have arrived"
        return spent

    def begin_forgetting(self, child: Child) -> None:
        """Let the history pass its retention, and wake the thread that removes it."""
        child.move(RETENTION_S * 1_000 + 60_000)
        with progress("until the history is too old", 1), Drain(self._server, QUEUES):
            child.until("forgotten", 1)

    def due_now(self, child: Child) -> Spent:
        """Ingest and dispatch at once: messages that are due within half a second."""
        count = min(50_000, self.due)
        now_ms = child.status().now_ms
        self._stage([now_ms + self._rng.randrange(500) for _ in range(count)], now_ms)
        with progress("due now", count) as bar, Drain(self._server, QUEUES):
            return self._timed(child, count, self._release, "dispatched", lambda n: bar(0, done=n))

    def restart(self, ahead_ms: int, *, cold: bool) -> float:
        """Return the seconds from the start of a process to its first message in a worker's queue."""
        self._client.delete(*QUEUES)
        if cold:
            self._database.evict()
        # An hour has passed since the last process died, so that rows are due.
        began = time.perf_counter()
        with self.start(ahead_ms) as child:
            arrived = self._client.blpop(list(QUEUES), timeout=30)
            took = time.perf_counter() - began
            assert arrived, "nothing was dispatched within 30 s of a restart"
            child.kill()
        return took

    def _timed(
        self, child: Child, count: int, begin: Callable[[], object], what: str, seen: Callable[[int], None]
    ) -> Spent:
        """Measure from ``begin`` until ``count`` more rows are accepted or dispatched, and the wheel queue is empty."""
        before, redis_before_s = child.status(), self._server_waited_s()
        counted, thread = attrgetter(what), THREADS[what]
        began = time.perf_counter()
        begin()
        after = child.until(what, counted(before) + count, lambda status: seen(counted(status) - counted(before)))
        wait_until(lambda: not self._client.exists(WHEEL_QUEUE), "the wheel queue is empty", every_s=0.002)
        wall_s = time.perf_counter() - began
        done = counted(after) - counted(before)
        waited_s = after.core_wait_s[thread] - before.core_wait_s[thread] + self._server_waited_s() - redis_before_s
        return Spent(done, wall_s, after.cpu_s - before.cpu_s, waited_s, after.forgotten - before.forgotten)

    def _server_waited_s(self) -> float:
        return int(Path(f"/proc/{self._server.pid}/schedstat").read_text().split()[1]) / 1e9


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        spine = Spine(found, rows, server)
        yardstick = spine.yardstick()
        yield from yardstick.figures()
        with spine.start() as child:
            yield from _ingest(spine, child, yardstick, store)
            yield from _dispatch(spine, child, yardstick)
            last = child.status()
            child.kill()
        yield _at_most("RSS of the scheduler, peak", last.rss_peak / 2**20, "MB", spine, RSS_MB)
        ahead_ms = child.ahead_ms
        for cold, what, target in (
            (False, "restart to first dispatch", RESTART_S),
            (True, "the same, no page in memory", COLD_RESTART_S),
        ):
            ahead_ms += DAY_MS // 24
            yield _at_most(what, spine.restart(ahead_ms, cold=cold), "s", spine, target)
        yield Figure("spine", "store on disk, with its history", found.bytes() / (rows + spine.due), "bytes/row")


def run_yardstick(folder: Path, rows: int) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, database(folder, SQLITE) as found:
        yield from Spine(found, rows, server).yardstick().figures()


def _ingest(spine: Spine, child: Child, yardstick: Yardstick, store: str) -> Iterator[Figure]:
    whole, last = spine.fill(child)
    yield from _flow(f"ingest, the whole fill, {store}", whole, "kombu consume", yardstick.consume)
    targets = spine.targets(INGEST_PER_S[store], INGEST_US[store])
    yield from _flow(f"ingest, the last {last.count:,}", last, "kombu consume", yardstick.consume, *targets)


def _dispatch(spine: Spine, child: Child, yardstick: Yardstick) -> Iterator[Figure]:
    first = spine.dispatch(child, "dispatch, no history")
    yield from _flow("dispatch, nothing to forget", first, "kombu batch(500)", yardstick.batch)
    spine.begin_forgetting(child)
    spent = spine.dispatch(child, "dispatch")
    yield from _flow("dispatch", spent, "kombu publish", yardstick.publish, *spine.targets(DISPATCH_PER_S, DISPATCH_US))
    yield Figure("spine", "… history forgotten meanwhile", spent.forgotten / spent.wall_s, "rows/s")
    both, targets = spine.due_now(child), spine.targets(BOTH_PER_S, None)
    yield from _flow("due now: ingest and dispatch", both, "kombu consume", yardstick.consume, *targets)


def _flow(
    what: str, spent: Spent, name: str, pace: Pace, per_s: float | None = None, cpu_us: float | None = None
) -> Iterator[Figure]:
    """Yield the figures of some work; ``per_s`` and ``cpu_us`` are its targets."""
    yield Figure("spine", what, spent.per_s, "rows/s", name, pace.per_s, per_s)
    cpu = spent.cpu_us, "µs/row", name, pace.cpu_us, cpu_us
    yield Figure("spine", "… CPU of the scheduler", *cpu, less_is_better=True)
    yield Figure("spine", "… time in which others had the cores", 100 * spent.waited_s / spent.wall_s, "%")


def _at_most(what: str, value: float, unit: str, spine: Spine, target: float) -> Figure:
    return Figure("spine", what, value, unit, target=spine.targets(target)[0], less_is_better=True)


QUEUE = "bench.kombu"
BATCH = 500


@dataclass(frozen=True, slots=True)
class Yardstick:
    consume: Pace
    publish: Pace
    batch: Pace

    def figures(self) -> Iterator[Figure]:
        for name, each in (("consume", self.consume), ("publish", self.publish), (f"batch({BATCH})", self.batch)):
            yield Figure("kombu", name, each.per_s, "messages/s")
            yield Figure("kombu", f"{name}, CPU", each.cpu_us, "µs/message")


def measure_kombu(url: str, client: redis.Redis, letter: Letter, count: int) -> Yardstick:
    with Connection(url) as connection, progress("kombu", 3) as bar:
        paces = []
        for what in (_consume, _publish, _batch):
            bar(0, doing=what.__name__.strip("_"))
            paces.append(what(connection, client, letter, count))
            client.delete(QUEUE)
            bar(0, done=len(paces))
    return Yardstick(*paces)


def _consume(connection: Any, client: redis.Redis, letter: Letter, count: int) -> Pace:
    for _ in range(0, count, 1_000):
        client.lpush(QUEUE, *[letter.raw] * 1_000)
    done = 0

    def take(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    def work() -> None:
        with Consumer(connection.channel(), [Queue(QUEUE)], on_message=take):
            while done < count:
                connection.drain_events(timeout=10)

    return pace(work, count)


def _publish(connection: Any, _client: redis.Redis, letter: Letter, count: int) -> Pace:
    return _produce(connection, letter, count, lambda _: nullcontext())


def _batch(connection: Any, _client: redis.Redis, letter: Letter, count: int) -> Pace:
    return _produce(connection, letter, count, lambda producer: producer.batch(BATCH))


def _produce(connection: Any, letter: Letter, count: int, within: Callable[[Any], Any]) -> Pace:
    producer = connection.Producer()
    kept = {name: letter.properties[name] for name in ("correlation_id", "reply_to")}
    kept |= {"content_type": "application/json", "content_encoding": "utf-8"}

    def work() -> None:
        with within(producer):
            for _ in range(count):
                producer.publish(letter.body, routing_key=QUEUE, headers=letter.headers, **kept)

    return pace(work, count)
