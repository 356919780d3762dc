"""The cost of a message as the work grows: pending tasks, shards, task names and bytes of arguments, one at a time.

::

    pending       10,000 … --rows (10,000,000)         the other three stay at ``BASE``
    shards        1 … 64
    task names    1 … 10,000
    bytes         10 … 1,000,000

    fill ─► celery beat starts ─► idle for 3 s ─► 20 probes, one by one ─► M messages through the whole path
            its RSS at the end    CPU of a core   lateness, median          CPU of the process / M, less the idle share

The store is new at each point and filled past the engine; the process is the real ``celery beat -S wheel``. The growth
of a cost is the exponent k of n^k that is nearest to all points of an axis, by least squares. The target is the
exponent of log n between the same points; along the bytes it is 1, because a message of many bytes has to be copied.
A plot is made where matplotlib is installed (the extra ``spark`` has it).
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression, median

import redis

from celery_wheel.broker import wheel_queue_name
from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.beat import Tree, beat
from tests.benchmarks.databases import SQLITE, Database, database
from tests.benchmarks.filler import Filler, realistic
from tests.benchmarks.letters import KINDS, QUEUES, Letters, task_id_of
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Arrivals
from tests.kit.servers.redis import RedisServer

DAY_MS, DAYS = 86_400_000, 30
SEED, GROUP = 29, 5_000
IDLE_S, PROBES, PROBE_DUE_MS = 3.0, 20, 200
MESSAGES, BYTES = 20_000, 100_000_000
#: The longest wait, for the start of 64 shards too.
AT_MOST_S = 120
#: The least messages of a point.
FEWEST = 50
#: With fewer ``--rows``, only the first and the last value of each axis are measured.
WHOLE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    pending: int = 10_000
    shards: int = 1
    names: int = 4
    size: int = 600


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_us: float
    late_ms: float
    rss_mb: float
    idle_percent: float


BASE = Setting()
AXES: dict[str, tuple[int, ...]] = {
    "pending": (10_000, 100_000, 1_000_000, 10_000_000),
    "shards": (1, 4, 16, 64),
    "names": (1, 10, 100, 1_000, 10_000),
    "size": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
}
#: Cost → name and unit.
COSTS = {"cpu_us": ("CPU", "µs/message"), "late_ms": ("lateness", "ms"), "rss_mb": ("memory", "MB")}


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    axes = {axis: _values(axis, rows) for axis in AXES}
    found: dict[str, dict[int, Cost]] = {}
    with RedisServer(folder / "redis") as server, progress("scale", sum(map(len, axes.values()))) as bar:
        for axis, values in axes.items():
            found[axis] = {}
            for value in values:
                bar(0, doing=f"{axis} {value:,}")
                place = folder / f"{axis}-{value}"
                place.mkdir()
                with database(place, store) as new:
                    found[axis][value] = measure(server, new, replace(BASE, **{axis: value}), rows)
                server.client().flushall()
                bar(1)
            yield from _figures(axis, found[axis])
    _plot(found)


def _values(axis: str, rows: int) -> list[int]:
    found = [value for value in AXES[axis] if axis != "pending" or value <= rows]
    return found if rows >= WHOLE_ROWS else sorted({found[0], found[-1]})


def _figures(axis: str, costs: dict[int, Cost]) -> Iterator[Figure]:
    for value, cost in costs.items():
        for name, (what, unit) in COSTS.items():
            yield Figure("scale", f"{axis} {value:,}: {what}", getattr(cost, name), unit)
        yield Figure("scale", f"{axis} {value:,}: idle, of a core", cost.idle_percent, "%")
    if len(costs) < 2:
        return
    least, most = max(2, min(costs)), max(costs)
    log_k = math.log(math.log(most) / math.log(least)) / math.log(most / least)
    for each, (what, _) in COSTS.items():
        k = exponent({value: getattr(cost, each) for value, cost in costs.items()})
        target = 1.0 if axis == "size" else log_k
        yield Figure("scale", f"{axis}: {what} grows with n^k, k =", k, "", target=target, less_is_better=True)


def exponent(costs: dict[int, float]) -> float:
    """Return k of the n^k that is nearest to the costs."""
    return linear_regression([math.log(n) for n in costs], [math.log(max(cost, 1e-9)) for cost in costs.values()]).slope


def measure(server: RedisServer, database: Database, setting: Setting, rows: int) -> Cost:
    client = server.client()
    _fill(database, setting)
    kinds = [(f"shop.tasks.task_{n}", KINDS[n % len(KINDS)][1]) for n in range(setting.names)]
    with closing(make_app(server.url, database.url)) as app:
        letters = Letters(app, client, kinds, setting.size)
    count = max(FEWEST, min(MESSAGES, rows // 20, BYTES // (3 * setting.size)))
    with beat(server.url, database.url, setting.shards) as process:
        load = Load(client, letters, process, setting.shards)
        load.send(setting.shards, 0)  # the shards are held when their messages have come
        idle_per_s = _idle(process)
        late_ms = [load.send(1, PROBE_DUE_MS)[0] for _ in range(PROBES)]
        before_s, began = process.cpu_s, time.perf_counter()
        load.send(count, 1_000)
        spent_s = process.cpu_s - before_s - idle_per_s * (time.perf_counter() - began)
        return Cost(spent_s / count * 1e6, median(late_ms), process.rss / 2**20, 100 * idle_per_s)


class Load:
    """Messages for all shards in turn."""

    def __init__(self, client: redis.Redis, letters: Letters, process: Tree, shards: int) -> None:
        self._client, self._letters, self._process = client, letters, process
        self._queues = itertools.cycle([wheel_queue_name("wheel", shard) for shard in range(shards)])

    def send(self, count: int, due_ms: int) -> list[float]:
        """Send messages that are due so much later; return how late they arrived, when all have."""
        now_ms = int(time.time() * 1_000)
        messages = list(self._letters.write([now_ms + due_ms] * count, now_ms))
        etas_ms = dict.fromkeys(map(task_id_of, messages), now_ms + due_ms)
        with Arrivals(self._client, QUEUES, etas_ms) as arrivals:
            for raw in messages:
                self._client.lpush(next(self._queues), raw)
            arrivals.wait(count, AT_MOST_S)
        assert self._process.alive, "celery beat has ended; its output is above"
        assert len(arrivals.pairs) == count, f"{len(arrivals.pairs):,} of {count:,} messages have arrived"
        return [late for _, late in arrivals.pairs]


def _idle(process: Tree) -> float:
    """Return the CPU seconds that the process uses in a second in which nothing happens."""
    time.sleep(1)
    before_s, began = process.cpu_s, time.perf_counter()
    time.sleep(IDLE_S)
    return (process.cpu_s - before_s) / (time.perf_counter() - began)


def _fill(database: Database, setting: Setting) -> None:
    rng, now_ms = random.Random(SEED), int(time.time() * 1_000)
    each = math.ceil(setting.pending / setting.shards)
    names = [f"shop.tasks.task_{n}" for n in range(setting.names)]
    # The pending rows have the usual size: a large store of large messages would measure the filler.
    parts = realistic(rng, min(setting.size, BASE.size), names)
    with closing(open_store(database.url, durability="memory", shards=setting.shards)) as store:
        for shard in range(setting.shards):
            holder = Filler(store, shard)
            for start in range(0, each, GROUP):
                dues = (now_ms + rng.randrange(DAY_MS, DAYS * DAY_MS) for _ in range(min(GROUP, each - start)))
                holder.accept([holder.row(due_ms, **next(parts)) for due_ms in dues])
            store.release(shard, holder.epoch)


def _plot(found: dict[str, dict[int, Cost]]) -> None:
    panels = {}
    for axis, costs in found.items():
        lines = {
            f"{what}, {unit}": [(value, max(1e-3, getattr(cost, name))) for value, cost in costs.items()]
            for name, (what, unit) in COSTS.items()
        }
        panels[axis] = (axis, "cost", lines)
    save_plot("scale", panels)


#: Series → its points.
Lines = Mapping[str, Sequence[tuple[float, float]]]

PLOTS = Path(__file__).parents[2] / ".run" / "plots"


def save_plot(name: str, panels: Mapping[str, tuple[str, str, Lines]]) -> None:
    """Write a picture with a panel for each title → labels of x and y, lines; both axes are logarithmic."""
    try:
        from matplotlib import use
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{name}: no plot without matplotlib (pip install 'celery-wheel[spark]')", file=sys.stderr)
        return
    use("agg")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6 * columns, 4.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, (title, (x, y, lines)) in zip(axes, panels.items(), strict=True):
        for label, points in lines.items():
            axis.loglog(*zip(*sorted(points), strict=True), marker="o", label=label)
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend()
    PLOTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOTS / f"{name}.png", dpi=120)
    print(f"plot: {PLOTS / name}.png", file=sys.stderr)
