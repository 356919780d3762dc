"""Groups: how long the small ones wait beside a backlog, and what a group costs the scheduler in CPU and memory.

``python -m tests.benchmarks.groups BROKER STORE`` is a process of its own, whose memory is measured: it adopts the
shard of a store, and prints a line of JSON.
"""

import gc
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import redis

from celery_wheel.broker import wheel_queue_name
from celery_wheel.engine.round import RoundSteps
from celery_wheel.operations.bench import rig
from celery_wheel.producer.rescue import Forwarder
from celery_wheel.scheduler.monitoring import tune_process
from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS, HOUR_MS
from celery_wheel.store.schedule_model import SLOT, RunReport
from celery_wheel.worker.run_reports import message_of
from tests.benchmarks.child import Child, measured
from tests.benchmarks.databases import Database, database
from tests.benchmarks.figure import Figure
from tests.benchmarks.letters import AT_ONCE, UNUSED, WHEEL_QUEUE, Letters, task_id_of
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app
from tests.benchmarks.stream import InBackground, part
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

#: The group with the backlog; in another message its number is replaced.
STORM = "tenant:000000"
QUEUE = "bench.shared"
MINUTE_MS = 60_000

#: Groups beside the one with the backlog, each with one message within so many seconds; the workers' pace.
SMALL, SECONDS, TAKEN_PER_S, TAKE_S = 9_999, 10, 5_000, 0.01
DEPTH = 1_000
PORTION = 50_000
P99_S, ROOM_US, WAITED_US, MEMORY_MB = 1, 10, 40, 100


def groups(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """9,999 groups beside one with a backlog of rows / 2; the CPU of a message of a group; the memory of many groups.

    ::

        backlog     N tasks of one group are due, and wait in the wheel, or in their queue without wheel_queue_depth
                    then each other group has a task, within 10 s; the workers take 5,000 a second in the queue's order
                    wait: from a task's due time until a worker takes it                         the yardstick: no depth
        a message   rounds of one thread: 5,000 tasks are due, until they are dispatched and settled: CPU a message
                    waited: all of them have moved into lines before the queue has room; the best of several turns
        a report    the end of a run, as workers report it: CPU until it is ingested
        adoption    rows / 20 groups with a waiting row each; memory: the yardstick is a store of as many pending rows
    """
    with RedisServer(folder / "redis") as server:
        yield from _backlog(server, folder, rows // 2, store)
        yield from _messages(server, folder)
        yield from _adoption(server, folder, rows // 20)


# -- small groups beside a backlog -------------------------------------------------------------------------


class Workers(InBackground):
    """Takes messages out of a queue at a fixed pace, and notes how long each of some has waited."""

    def __init__(self, client: redis.Redis, etas_ms: dict[bytes, int], ahead_ms: int) -> None:
        super().__init__(self._take)
        self.waited_s: list[float] = []
        self._client, self._etas_ms, self._ahead_ms = client, etas_ms, ahead_ms

    def _take(self) -> None:
        began_s, taken = time.monotonic(), 0
        while not self.over.wait(TAKE_S):
            wanted = int((time.monotonic() - began_s) * TAKEN_PER_S) - taken
            found: Any = self._client.rpop(QUEUE, wanted) or []
            taken += wanted  # an idle worker does not work faster later
            now_ms = time.time() * 1_000 + self._ahead_ms
            etas_ms = map(self._etas_ms.get, map(task_id_of, found))
            self.waited_s += [(now_ms - eta_ms) / 1_000 for eta_ms in etas_ms if eta_ms is not None]


def _letters(server: RedisServer, group: str | None, **settings: Any) -> Letters:
    with make_app(server.url, UNUSED, wheel_group=lambda *_: group, **settings) as app:
        return Letters(app, server.client(), [("bench.task", QUEUE)], size=0)


def _of_groups(messages: Iterable[bytes], numbers: Iterable[int]) -> Iterator[bytes]:
    return (raw.replace(STORM.encode(), b"tenant:%06d" % n) for raw, n in zip(messages, numbers, strict=False))


def _push(client: redis.Redis, queue: str, messages: Iterable[bytes]) -> None:
    rest = iter(messages)
    while some := list(islice(rest, AT_ONCE)):
        client.lpush(queue, *some)


def _backlog(server: RedisServer, folder: Path, count: int, store: str) -> Iterator[Figure]:
    waited: dict[bool, list[float]] = {}
    for has_depth in (False, True):
        place = folder / f"depth-{has_depth}"
        place.mkdir()
        with database(place, store) as found:
            waited[has_depth] = _waited_s(server, found, count, has_depth)
        server.client().flushall()  # the next store is another one
    what = f"{SMALL:,} groups beside one with {count:,} waiting tasks"
    for name, percent, target in (("half wait", 50, None), ("99 of 100 wait", 99, P99_S), ("all wait", 100, None)):
        with_depth, without = (part(waited[has_depth], percent) for has_depth in (True, False))
        at_most = with_depth, "s", "no depth", without, target
        yield Figure("groups", f"{what}: {name} at most", *at_most, less_is_better=True)


def _waited_s(server: RedisServer, database: Database, count: int, has_depth: bool) -> list[float]:
    """Return how long the messages of the small groups waited, in order."""
    client, rng, letters = server.client(), random.Random(23), _letters(server, STORM)
    longest_s = 60 + count / 1_000
    with Child(server.url, database.url, settings={"wheel_queue_depth": {QUEUE: DEPTH} if has_depth else {}}) as child:
        start_ms = child.status().now_ms
        storm_ms, small_ms = start_ms + DAY_MS, start_ms + DAY_MS + MINUTE_MS
        for done in range(0, count, PORTION):
            etas = [storm_ms + rng.randrange(1_000) for _ in range(min(PORTION, count - done))]
            letters.push(client, WHEEL_QUEUE, etas, start_ms)
            child.until("accepted", done + len(etas))
        etas = [small_ms + rng.randrange(SECONDS * 1_000) for _ in range(SMALL)]
        small = list(_of_groups(letters.write(etas, start_ms), range(1, SMALL + 1)))
        _push(client, WHEEL_QUEUE, small)
        child.until("accepted", count + SMALL)
        child.move(storm_ms + 2_000 - child.status().now_ms)
        with closing(open_store(database.url)) as opened:
            in_place = (lambda: sum(one.waiting for one in opened.lines(0)) >= count - DEPTH) if has_depth else None
            wait_until(in_place or (lambda: child.status().dispatched >= count), "the backlog waits", longest_s, 0.5)
        child.move(small_ms - 2_000 - child.status().now_ms)
        with Workers(client, dict(zip(map(task_id_of, small), etas, strict=True)), child.ahead_ms) as workers:
            wait_until(lambda: len(workers.waited_s) == SMALL, "each small group has had its turn", longest_s)
    return sorted(workers.waited_s)


# -- the cost of a message ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kind:
    """Messages of so many groups, 0 for none; ``waits``: the depth of their queue is reached when they are due."""

    what: str
    groups: int = 0
    target_us: float | None = None  #: CPU beyond that of a message without a group
    waits: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


COUNT, TURNS = 5_000, 7
DEEP: dict[str, Any] = {"wheel_queue_depth": {QUEUE: COUNT}}
RATE, RUNS = ({"wheel_limits": {"tenant": limit}} for limit in ({"rate": "1000000/s"}, {"concurrency": 1_000_000}))
KINDS = (
    Kind("no group"),
    Kind("room for its rate", 100, ROOM_US, settings=RATE),
    Kind("room for its concurrency", 100, ROOM_US, settings=RUNS),
    Kind("room in its queue", 100, ROOM_US, settings=DEEP),
    Kind("waited, 50 of each group", 100, WAITED_US, waits=True, settings=DEEP),
    Kind("waited, one of each group", COUNT, WAITED_US, waits=True, settings=DEEP),
)


def _messages(server: RedisServer, folder: Path) -> Iterator[Figure]:
    spent_us = {kind: list[float]() for kind in KINDS}
    reports_us = list[float]()
    tune_process()  # collects garbage as a scheduler does
    with ExitStack() as stack:
        stack.callback(gc.unfreeze)
        sites = [Site(stack, server, folder / f"kind-{n}.sqlite3", kind) for n, kind in enumerate(KINDS)]
        for _ in range(TURNS):
            for site in sites:
                spent_us[site.kind].append(site.message_us())
                if site.kind.settings is RUNS:
                    reports_us.append(site.report_us())
                site.client.delete(QUEUE)
    least_us = {kind: min(spent) for kind, spent in spent_us.items()}
    plain_us = least_us[KINDS[0]]
    yield Figure("groups", "a message without a group", plain_us, "µs/message")
    for kind in KINDS[1:]:
        more_us = least_us[kind] - plain_us
        yield Figure("groups", f"more: {kind.what}", more_us, "µs/message", target=kind.target_us, less_is_better=True)
    yield Figure("groups", "the report of a run", min(reports_us), "µs/message")


class Site:
    """An engine on a moved clock whose store leaves fsync to the system."""

    def __init__(self, stack: ExitStack, server: RedisServer, store: Path, kind: Kind) -> None:
        self.kind, self.client, self._clock = kind, server.client(), MovedClock()
        own: dict[str, Any] = {"wheel_namespace": store.stem, "wheel_lease": 600}  # seconds: others have their turns
        self._letters = _letters(server, STORM if kind.groups else None, **own)
        self._app = make_app(server.url, f"sqlite:///{store}", wheel_durability="memory", **own, **kind.settings)
        self._rig = stack.enter_context(rig(self._app, self._clock, **NO_WATCH))
        self._engine, self._wheel_queue = self._rig.engine, wheel_queue_name(store.stem, 0)
        self._rig.acquire()

    def message_us(self) -> float:
        """Return the CPU of a message from its due time until it is settled."""
        self.accept(COUNT)
        engine, spent_s = self._engine, 0.0
        if self.kind.waits:
            spent_s = self.wait(COUNT)
            self.client.delete(QUEUE)
            self._clock.ahead_ms += MINUTE_MS  # so that the depth is read again
        sending = engine.prefetch, engine.release_rows, engine.dispatch, engine.settle
        return (spent_s + self._until("dispatched", COUNT, *sending)) / COUNT * 1e6

    def accept(self, count: int) -> None:
        """Accept messages, which are due then."""
        for done in range(0, count, COUNT):
            now_ms = self._clock.now_ms()
            messages = self._letters.write([now_ms + HOUR_MS] * COUNT, now_ms)
            numbers = (n % self.kind.groups if self.kind.groups else 0 for n in range(done, done + COUNT))
            _push(self.client, self._wheel_queue, _of_groups(messages, numbers))
            self._until("accepted", COUNT, self._engine.ingest)
        self._clock.ahead_ms += 2 * HOUR_MS

    def wait(self, count: int) -> float:
        """Let messages that are due move into the lines of their groups; returns the CPU seconds."""
        _push(self.client, QUEUE, [b"full"] * COUNT)
        rounds = self._engine.prefetch, self._engine.release_rows, self._engine.dispatch
        return self._until("waiting", count, *rounds)

    def report_us(self) -> float:
        """Return the CPU of the report of a run; all runs that were dispatched end."""
        published: Any = self.client.lrange(QUEUE, 0, -1)
        forwarder = Forwarder(self._app)
        for run in re.findall(rb'"%s": ?(\d+)' % SLOT.encode(), b"".join(published)):
            forwarder.publish(message_of(RunReport(int(run), True)), 0)
        forwarder.drop()
        return self._until("in flight", -COUNT, self._engine.ingest) / COUNT * 1e6

    def _until(self, what: str, more: int, *rounds: Callable[[], RoundSteps]) -> float:
        """Run rounds until so many more messages are there; returns the CPU seconds."""
        return self._rig.until(what, abs(more), lambda: self._count(what) * (1 if more > 0 else -1), *rounds).cpu_s

    def _count(self, what: str) -> int:
        if what in ("accepted", "dispatched"):
            return int(getattr(self._engine.stats, what))
        assert self._engine.state is not None
        groups = self._engine.state.groups.groups()
        return sum(one.waiting if what == "waiting" else one.in_flight for one in groups)


# -- adoption ----------------------------------------------------------------------------------------------


def _adoption(server: RedisServer, folder: Path, count: int) -> Iterator[Figure]:
    """Adopt a store with a waiting row of each of many groups, and one with as many pending rows."""
    found = {}
    for waits in (False, True):
        with ExitStack() as stack:
            kind = Kind("", count, waits=waits, settings=DEEP)
            site = Site(stack, server, folder / f"adopted-{waits}.sqlite3", kind)
            site.accept(count)
            if waits:
                site.wait(count)
        found[waits] = measured("groups", server.url, str(folder / f"adopted-{waits}.sqlite3"))
    more_mb = (found[True]["rss"] - found[False]["rss"]) / 2**20
    what = f"{count:,} groups with a waiting row"
    memory = more_mb, "MB"
    yield Figure("groups", f"{what}: more memory", *memory, target=MEMORY_MB, less_is_better=True)
    took_s = found[True]["took_s"], "s", "no group", found[False]["took_s"]
    yield Figure("groups", f"{what}: adoption", *took_s, less_is_better=True)


def main(broker: str, store: str) -> None:
    """Adopt the shard of a store, and print the memory of this process and the seconds that it took."""
    app = make_app(broker, f"sqlite:///{store}", wheel_namespace=Path(store).stem, **DEEP)
    with rig(app, **NO_WATCH) as adopting:
        began_s = time.process_time()
        adopting.acquire()
        took_s = time.process_time() - began_s
        gc.collect()
        print(json.dumps({"rss": psutil.Process().memory_info().rss, "took_s": took_s}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
