"""Lateness against rate up to saturation: the wheel and native Celery, on the same axes.

::

    for each rate, twice the one before, until it is not held      a stream of its own (``stream``)
        p50 and p99 of the lateness at the arrival                 in a worker's queue; at the pool of a native worker
        CPU a message                                              of the scheduler; of the worker

Both use one Redis, one after the other, from ``FIRST_PER_S`` on. The highest rate that native Celery holds is the
yardstick of the wheel's. The plot has both, with the rate that was not held as its last point.
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
from tests.benchmarks.scale import save_plot
from tests.benchmarks.stream import Streamed, rates, through_native, through_wheel
from tests.kit.servers.redis import RedisServer

FIRST_PER_S = 125
LONGEST_S = 10
WHEEL, NATIVE = "the wheel", "native Celery"


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    seconds = max(1, min(LONGEST_S, rows / 200_000))
    with RedisServer(folder / "redis") as server, progress("saturation", 2) as bar:
        client = server.client()
        bar(0, doing=NATIVE)
        with native(server.url, client) as worker:
            others = rates(lambda rate: through_native(worker, rate, seconds), FIRST_PER_S)
        bar(0, done=1, doing=WHEEL)
        with database(folder, store) as found, closing(make_app(server.url, found.url)) as app:
            letters = Letters(app, client)
            with Child({"broker": server.url, "store": found.url, "ahead_ms": 0}) as child:
                child.until("held", 1)
                mine = rates(lambda rate: through_wheel(child, letters, client, rate, seconds), FIRST_PER_S)
                child.stop()
    yield from _figures({NATIVE: others, f"{WHEEL}, {store}": mine})
    yield Figure("saturation", "highest rate held", _highest(mine), "messages/s", NATIVE, _highest(others))
    _plot({NATIVE: others, WHEEL: mine})


def _highest(streams: list[Streamed]) -> int:
    return max((each.offered_per_s for each in streams if each.held), default=0)


def _figures(streams: dict[str, list[Streamed]]) -> Iterator[Figure]:
    for who, each in ((who, each) for who, found in streams.items() for each in found):
        what = f"{who}, {each.offered_per_s:,}/s{'' if each.held else ', not held'}"
        for percent in (50, 99):
            yield Figure("saturation", f"{what}: p{percent}", each.late_ms(percent), "ms")
        yield Figure("saturation", f"{what}: CPU", each.cpu_us, "µs/message")


def _plot(streams: dict[str, list[Streamed]]) -> None:
    lines = {
        f"{who}, p{percent}": [(each.offered_per_s, max(0.1, each.late_ms(percent))) for each in found]
        for who, found in streams.items()
        for percent in (50, 99)
    }
    save_plot("saturation", {"lateness up to saturation": ("messages a second", "late, ms", lines)})
