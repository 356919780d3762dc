"""One beat on two shards with ``wheel_processes`` 1 and 2: ingest and dispatch by both shards at once.

::

    2 wheel queues ─► celery beat ─► store                ingest: until the wheel queues are empty
                      at their due time ─► task queues    dispatch: all rows are due in the same second

The CPU a row is that of beat and its children. Rates gain from a second process where it has a core beside those of
Redis and the database. Where there is a database server, ``project`` computes from the budgets of one process what up
to 32 shards on 8 machines would do::

    a message's whole way     s µs of a scheduler process + r µs of Redis + d µs of PostgreSQL
    n shards on m machines    n processes                   each has a core, and m = n / CORES, rounded up
    the rate                  the least of  processes / s,  1 / r,  CORES / d

This is arithmetic and no measurement: it tells what to add first, and it is too good where work waits for a network,
for a disk or for locks of the database. One Redis and one PostgreSQL serve all shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

from celery_wheel.broker import wheel_queue_name
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.beat import Tree, beat
from tests.benchmarks.databases import POSTGRESQL, Database, database
from tests.benchmarks.letters import QUEUES, Letters
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

SHARDS = 2
WHEEL_QUEUES = tuple(wheel_queue_name("wheel", shard) for shard in range(SHARDS))
AT_ONCE = 500

#: Seconds from the first message written to the due time: all rows must be accepted by then.
LEAD_S, LEAD_S_A_ROW = 5, 400e-6
AT_MOST_S = 600


class Budget(NamedTuple):
    """Microseconds of CPU a message."""

    scheduler: float
    redis: float
    database: float


#: By what is measured: rows a second, and µs of CPU a row.
Costs = dict[str, tuple[float, Budget]]


def run(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    count = max(2_000, rows // 20)
    found: list[Costs] = []
    for processes in (1, 2):
        place = folder / f"processes-{processes}"
        place.mkdir(parents=True)
        with RedisServer(place / "redis") as server, database(place, store) as one:
            found.append(_measure(server, one, processes, count))
    one_process, two_processes = found
    for what, (per_s, budget) in one_process.items():
        two_per_s, two_budget = two_processes[what]
        words = f"{what}, {store}, %s: %s"
        yield Figure("processes", words % ("1 process", "rate"), per_s, "/s")
        yield Figure("processes", words % ("2 processes", "rate"), two_per_s, "/s", "1 process", per_s)
        us, two_us = budget.scheduler, two_budget.scheduler
        yield Figure("processes", words % ("1 process", "CPU a row"), us, "µs")
        name = words % ("2 processes", "CPU a row")
        yield Figure("processes", name, two_us, "µs", "1 process", us, less_is_better=True)
        for name, own_us in (("Redis's CPU a row", budget.redis), ("the database server's CPU a row", budget.database)):
            yield Figure("processes", words % ("1 process", name), own_us, "µs")
    if store == POSTGRESQL:
        yield from project([budget for _, budget in one_process.values()])


def _measure(server: RedisServer, one: Database, processes: int, count: int) -> Costs:
    client = server.client()
    with closing(make_app(server.url, one.url)) as app, beat(server.url, one.url, SHARDS, processes) as process:
        letters = Letters(app, client)
        _wait(process, lambda: _holders(one.url) == processes)
        due_ms = int((time.time() + LEAD_S + LEAD_S_A_ROW * count) * 1_000)
        messages = list(letters.write([due_ms] * count, due_ms))

        def push() -> None:
            for start in range(0, count, AT_ONCE):
                client.lpush(WHEEL_QUEUES[start // AT_ONCE % SHARDS], *messages[start : start + AT_ONCE])

        def is_accepted() -> bool:
            return not any(client.llen(queue) for queue in WHEEL_QUEUES)

        def is_dispatched() -> bool:
            return sum(client.llen(queue) for queue in QUEUES) == count

        servers = [Tree(psutil.Process(pid)) if pid else None for pid in (server.pid, one.pid)]
        began = Moment(process, *servers)
        push()
        _wait(process, is_accepted)
        ingest = began.costs(count)
        assert time.time() * 1_000 < due_ms, "rows were due before all were accepted: raise LEAD_S_A_ROW"
        _wait(process, lambda: time.time() * 1_000 >= due_ms)
        began = Moment(process, *servers)
        _wait(process, is_dispatched)
        return {"ingest": ingest, "dispatch": began.costs(count)}


class Moment:
    """The time and the CPU times of a moment: of beat, of Redis, and of the database's server where there is one."""

    def __init__(self, *trees: Tree | None) -> None:
        self._trees, self._cpu_s, self._at = trees, _cpu_s(trees), time.perf_counter()

    def costs(self, count: int) -> tuple[float, Budget]:
        """Return the rate and the CPU a row since this moment."""
        spent_s = time.perf_counter() - self._at
        return count / spent_s, Budget(
            *((now - then) / count * 1e6 for now, then in zip(_cpu_s(self._trees), self._cpu_s, strict=True))
        )


def _cpu_s(trees: Sequence[Tree | None]) -> list[float]:
    return [tree.cpu_s if tree else 0.0 for tree in trees]


def _holders(url: str) -> int:
    with closing(open_store(url, shards=SHARDS)) as store:
        holders = store.holders()
        return len(set(holders.values())) if all(holders.values()) else 0


def _wait(process: Tree, is_over: Callable[[], bool]) -> None:
    until_s = time.monotonic() + AT_MOST_S
    while not is_over():
        assert process.alive, "celery beat has ended; its output is above"
        assert time.monotonic() < until_s, "celery beat did not become ready, or did not do its work"
        time.sleep(0.01)


CORES = 4
PAPER_SHARDS = (1, 2, 4, 8, 16, 32)


def project(ways: Sequence[Budget]) -> Iterator[Figure]:
    """Yield the rate of messages that go all ways: in and out."""
    whole = Budget(*map(sum, zip(*ways, strict=True)))
    for shards in PAPER_SHARDS:
        machines = -(-shards // CORES)
        rates = {
            "schedulers": shards * 1e6 / whole.scheduler,
            "Redis": 1e6 / whole.redis,
            "PostgreSQL": CORES * 1e6 / whole.database,
        }
        first = min(rates, key=rates.__getitem__)
        name = f"on paper, in and out: {shards} shards, {machines} machines; used up first: {first}"
        yield Figure("processes", name, rates[first], "/s")
