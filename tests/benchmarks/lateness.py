"""The wheel and native Celery under the same load: in one second, in a steady stream, and up to saturation.

``stream`` has the load. The store is new, with fsync; ``--store`` names it. Native Celery has one Redis with the wheel,
one after the other.
"""

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from celery_wheel.store.model import DAY_MS
from tests.benchmarks.child import Child
from tests.benchmarks.databases import Database, database
from tests.benchmarks.figure import Figure
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, Letters, letters_of
from tests.benchmarks.native import QUEUE, Native
from tests.benchmarks.stream import Drain, Stream, rates, through_native, through_wheel
from tests.kit.servers.redis import RedisServer

LEAD_MS = 5_000
PORTION = 50_000
NATIVE = 20_000
#: The least messages a second that a native worker receives; the second begins when all have had that time.
NATIVE_RECEIVES_PER_S = 300
#: Targets of the herd, for this many tasks.
TARGET_ROWS, TARGET_S, TARGET_MB = 1_000_000, 20, 300


def herd(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """Very many tasks that are due in the same second: 1,000,000 on the wheel, 20,000 in a worker of native Celery.

    ::

        ingest N with etas at random in one second of tomorrow; the clock goes to 5 s before it     not timed
        from the beginning of that second until the last one is in its worker's queue               seconds, rate, CPU
        VmHWM of the scheduler at the end                                                           peak of its memory

    The native worker has received all of its tasks before the second begins, as far as it can.
    """
    count, others = rows // 2, min(NATIVE, rows // 20)
    with RedisServer(folder / "redis") as server:
        other_s, other_mb = _native_herd(server, others)
        with database(folder, store) as found:
            took_s, cpu_us, peak_mb = _herd(server, found, count)
    what, yardstick = f"{count:,} due in the same second, {store}", f"native, {others:,}"
    target_s, target_mb = (TARGET_S, TARGET_MB) if count >= TARGET_ROWS else (None, None)
    yield Figure("herd", f"{what}, all in their queue", took_s, "s", target=target_s, less_is_better=True)
    yield Figure("herd", "… rate", count / took_s, "messages/s", yardstick, others / other_s)
    yield Figure("herd", "… CPU of the scheduler", cpu_us, "µs/message")
    memory = peak_mb, "MB", yardstick, other_mb, target_mb
    yield Figure("herd", "… peak of its memory", *memory, less_is_better=True)


def _herd(server: RedisServer, database: Database, count: int) -> tuple[float, float, float]:
    client, rng = server.client(), random.Random(19)
    letters = letters_of(server.url, client)
    with Child(server.url, database.url) as child, Drain(server, QUEUES):
        start_ms = child.status().now_ms
        second_ms = start_ms + DAY_MS
        for done in range(0, count, PORTION):
            etas = [second_ms + rng.randrange(1_000) for _ in range(min(PORTION, count - done))]
            letters.push(client, WHEEL_QUEUE, etas, start_ms)
            child.until("accepted", done + len(etas))
        before = child.move(second_ms - LEAD_MS - child.status().now_ms)
        after = child.until("dispatched", count)
    return (after.now_ms - second_ms) / 1_000, (after.cpu_s - before.cpu_s) / count * 1e6, after.rss_peak / 2**20


def _native_herd(server: RedisServer, count: int) -> tuple[float, float]:
    client, rng = server.client(), random.Random(19)
    with Native(server.url, client) as worker:
        now_ms = int(time.time() * 1_000)
        second_ms = now_ms + LEAD_MS + count * 1_000 // NATIVE_RECEIVES_PER_S
        worker.letters.push(client, QUEUE, [second_ms + rng.randrange(1_000) for _ in range(count)], now_ms)
        found = worker.wait(count, 120 + (second_ms - now_ms) / 1_000)
    assert len(found.late_ms) == count, f"{len(found.late_ms):,} of {count:,} tasks of native Celery have arrived"
    return (max(map(sum, found.late_ms)) - second_ms) / 1_000, found.rss_peak / 2**20


@contextmanager
def _wheel(server: RedisServer, folder: Path, store: str) -> Iterator[tuple[Child, Letters, redis.Redis]]:
    client = server.client()
    letters = letters_of(server.url, client)
    with database(folder, store) as found, Child(server.url, found.url) as child:
        yield child, letters, client


def _native(server: RedisServer, seconds: float, first_per_s: int) -> list[Stream]:
    with Native(server.url, server.client()) as worker:
        return rates(lambda rate: through_native(worker, rate, seconds), first_per_s)


STEADY_PER_S, OFFERED_PER_S, NATIVE_PER_S = 10_000, 40_000, 250
P99_MS, MAX_MS, BOTH_PER_S = 20, 150, 20_000
#: The longest stream, in seconds; others have rows / 100,000 seconds, and 1 at least.
LONGEST_S = 20


def steady(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """A steady 10,000 messages a second in and out, the most both ways at once, and native Celery at its best rate.

    ::

        steady      10,000/s offered: p50, p99 and max lateness at the arrival in the worker's queue, CPU a message
        both ways   40,000/s offered: more than can pass, so that ingest and dispatch are busy to the end
        native      twice the rate until the worker does not hold it: the last rate that it held     the yardstick

    Both ways, the wheel is late by as much as it was offered too fast: only its rate and its CPU count there.
    """
    seconds = max(1, min(LONGEST_S, rows / 100_000))
    with RedisServer(folder / "redis") as server:
        tried = _native(server, max(1, seconds / 4), NATIVE_PER_S)
        best = next((each for each in reversed(tried) if each.held), tried[0])
        with _wheel(server, folder, store) as way:
            even = through_wheel(*way, STEADY_PER_S, seconds)
            both = through_wheel(*way, OFFERED_PER_S, max(1, seconds / 4))
    yardstick = f"native Celery, {best.offered_per_s:,}/s"
    for what, stream, target in (
        (f"steady {STEADY_PER_S:,}/s, {store}", even, None),
        (f"both ways at once, {store}", both, BOTH_PER_S),
    ):
        yield Figure("steady", what, stream.per_s, "messages/s", yardstick, best.per_s, target)
        yield Figure("steady", "… CPU", stream.cpu_us, "µs/message", yardstick, best.cpu_us, less_is_better=True)
    for name, percent, target in (("median", 50, None), ("99 of 100", 99, P99_MS), ("most", 100, MAX_MS)):
        late = even.late_ms(percent), "ms", yardstick, best.late_ms(percent), target
        yield Figure("steady", f"steady {STEADY_PER_S:,}/s, lateness, {name}", *late, less_is_better=True)


def saturation(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """Lateness against rate: for each rate, twice the one before, a stream of its own, until the rate is not held.

    The plot has the rate that was not held as its last point.
    """
    seconds = max(1, min(10, rows / 200_000))
    with RedisServer(folder / "redis") as server:
        streams = {"native Celery": _native(server, seconds, 125)}
        with _wheel(server, folder, store) as way:
            streams["the wheel"] = rates(lambda rate: through_wheel(*way, rate, seconds), 125)
    for who, each in ((who, each) for who, found in streams.items() for each in found):
        what = f"{who}, {each.offered_per_s:,}/s{'' if each.held else ', not held'}"
        for percent in (50, 99):
            yield Figure("saturation", f"{what}: p{percent}", each.late_ms(percent), "ms")
        yield Figure("saturation", f"{what}: CPU", each.cpu_us, "µs/message")
    best = {who: max([each.offered_per_s for each in found if each.held], default=0) for who, found in streams.items()}
    others = best["native Celery"]
    yield Figure("saturation", f"highest rate held, {store}", best["the wheel"], "messages/s", "native Celery", others)
    lines = {
        f"{who}, p{percent}": [(each.offered_per_s, max(0.1, each.late_ms(percent))) for each in found]
        for who, found in streams.items()
        for percent in (50, 99)
    }
    save_plot("saturation", {"lateness up to saturation": ("messages a second", "late, ms", lines)})


#: Series → its points.
Lines = Mapping[str, Sequence[tuple[float, float]]]

PLOTS = Path(__file__).parents[2] / ".run" / "plots"


def save_plot(name: str, panels: Mapping[str, tuple[str, str, Lines]]) -> None:
    try:
        from matplotlib import use
        from matplotlib.figure import Figure as Picture
    except ImportError:
        print(f"{name}: no plot without matplotlib (pip install 'celery-wheel[spark]')", file=sys.stderr)
        return
    use("agg")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    picture = Picture(figsize=(6 * columns, 4.5 * rows), layout="constrained")
    axes = picture.subplots(rows, columns, squeeze=False).flat
    for axis, (title, (x, y, lines)) in zip(axes, panels.items(), strict=True):
        for label, points in lines.items():
            axis.loglog(*zip(*sorted(points), strict=True), marker="o", label=label)
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend()
    PLOTS.mkdir(parents=True, exist_ok=True)
    picture.savefig(PLOTS / f"{name}.png", dpi=120)
    print(f"plot: {PLOTS / name}.png", file=sys.stderr)
