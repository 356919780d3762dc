"""A steady 10,000 messages a second in and out, the most that go both ways at once, and native Celery at its best rate.

::

    steady      10,000/s offered: p50, p99 and max lateness at the arrival in the worker's queue, CPU a message
    both ways   40,000/s offered: more than can pass, so that ingest and dispatch are busy to the end
    native      twice the rate until the worker does not hold it: the last rate that it held     the yardstick

``stream`` has the load. The store is new, with fsync; ``--store`` names it. ``spine`` goes both ways beside millions of
rows. Both ways, the wheel is late by as much as it was offered too fast: only its rate and its CPU count there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from tests.benchmarks.child import Child
from tests.benchmarks.databases import SQLITE, database
from tests.benchmarks.letters import Letters
from tests.benchmarks.native import native
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import rates, through_native, through_wheel
from tests.kit.servers.redis import RedisServer

STEADY_PER_S, OFFERED_PER_S, NATIVE_PER_S = 10_000, 40_000, 250
P99_MS, MAX_MS, BOTH_PER_S = 20, 150, 20_000
#: The longest stream, in seconds; others have rows / 100,000 seconds, and 1 at least.
LONGEST_S = 20


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    seconds = max(1, min(LONGEST_S, rows / 100_000))
    with RedisServer(folder / "redis") as server, progress("steady", 3) as bar:
        client = server.client()
        bar(0, doing="native Celery")
        with native(server.url, client) as worker:
            tried = rates(lambda rate: through_native(worker, rate, max(1, seconds / 4)), NATIVE_PER_S)
            best = next((each for each in reversed(tried) if each.held), tried[0])
        bar(0, done=1, doing=store)
        with database(folder, store) as found:
            options = {"broker": server.url, "store": found.url, "ahead_ms": 0}
            with closing(make_app(server.url, found.url)) as app, Child(options) as child:
                child.until("held", 1)
                letters = Letters(app, client)
                steady = through_wheel(child, letters, client, STEADY_PER_S, seconds)
                bar(0, done=2, doing="both ways")
                both = through_wheel(child, letters, client, OFFERED_PER_S, max(1, seconds / 4))
                child.stop()
    yardstick = f"native Celery, {best.offered_per_s:,}/s"
    for what, stream, target in (
        (f"steady {STEADY_PER_S:,}/s, {store}", steady, None),
        (f"both ways at once, {store}", both, BOTH_PER_S),
    ):
        yield Figure("steady", what, stream.per_s, "messages/s", yardstick, best.per_s, target)
        yield Figure("steady", "… CPU", stream.cpu_us, "µs/message", yardstick, best.cpu_us, less_is_better=True)
    for name, percent, target in (("median", 50, None), ("99 of 100", 99, P99_MS), ("most", 100, MAX_MS)):
        late = steady.late_ms(percent), "ms", yardstick, best.late_ms(percent), target
        yield Figure("steady", f"steady {STEADY_PER_S:,}/s, lateness, {name}", *late, less_is_better=True)
