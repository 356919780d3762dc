"""One beat on two shards with ``wheel_processes`` 1 and 2: ingest and dispatch by both shards at once.

::

    2 wheel queues ─► celery beat ─► store                ingest: until the wheel queues are empty
                      at their due time ─► task queues    dispatch: all rows are due in the same second

The CPU a row is that of beat and its children. Rates gain from a second process where it has a core beside those of
Redis and the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.operations.bench.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.beat import Beat, beat
from tests.benchmarks.databases import Database, database
from tests.benchmarks.letters import QUEUES, Letters
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

SHARDS = 2
WHEEL_QUEUES = tuple(wheel_queue_name("wheel", shard) for shard in range(SHARDS))
AT_ONCE = 500

#: Seconds from the first message written to the due time: all rows must be accepted by then.
LEAD_S, LEAD_S_A_ROW = 5, 400e-6
AT_MOST_S = 600

#: By what is measured: rows a second, and µs of CPU a row.
Costs = dict[str, tuple[float, float]]


def run(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    count = max(2_000, rows // 20)
    found: list[Costs] = []
    for processes in (1, 2):
        place = folder / f"processes-{processes}"
        place.mkdir(parents=True)
        with RedisServer(place / "redis") as server, database(place, store) as one:
            found.append(_measure(server, one, processes, count))
    one_process, two_processes = found
    for what in one_process:
        for at, (name, unit) in enumerate((("rate", "/s"), ("CPU a row", "µs"))):
            words, less, against = f"{what}, {store}, %s: {name}", unit == "µs", one_process[what][at]
            yield Figure("processes", words % "1 process", against, unit)
            value = two_processes[what][at]
            yield Figure("processes", words % "2 processes", value, unit, "1 process", against, less_is_better=less)


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

        began = Moment(process)
        push()
        _wait(process, is_accepted)
        ingest = began.costs(count)
        assert time.time() * 1_000 < due_ms, "rows were due before all were accepted: raise LEAD_S_A_ROW"
        _wait(process, lambda: time.time() * 1_000 >= due_ms)
        began = Moment(process)
        _wait(process, is_dispatched)
        return {"ingest": ingest, "dispatch": began.costs(count)}


class Moment:
    def __init__(self, process: Beat) -> None:
        self._process, self._cpu_s, self._at = process, process.cpu_s, time.perf_counter()

    def costs(self, count: int) -> tuple[float, float]:
        """Return the rate and the CPU a row since this moment."""
        spent_s, cpu_s = time.perf_counter() - self._at, self._process.cpu_s - self._cpu_s
        return count / spent_s, cpu_s / count * 1e6


def _holders(url: str) -> int:
    with closing(open_store(url, shards=SHARDS)) as store:
        holders = store.holders()
        return len(set(holders.values())) if all(holders.values()) else 0


def _wait(process: Beat, is_over: Callable[[], bool]) -> None:
    until_s = time.monotonic() + AT_MOST_S
    while not is_over():
        assert process.alive, "celery beat has ended; its output is above"
        assert time.monotonic() < until_s, "celery beat did not become ready, or did not do its work"
        time.sleep(0.01)
