"""A real ``celery beat -S wheel`` process: the growth of its costs, its processes, and its idle hours.

The CPU is that of beat and its children. The store is new for each point, with fsync.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

from celery_wheel.broker import wheel_queue_name
from celery_wheel.store import open_store
from tests.benchmarks.beat import beat
from tests.benchmarks.databases import SQLITE, Database, database, databases
from tests.benchmarks.figure import Figure
from tests.benchmarks.filler import fill, realistic, small
from tests.benchmarks.lateness import save_plot
from tests.benchmarks.letters import AT_ONCE, KINDS, QUEUES, letters_of, task_id_of
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import LONGEST_S, Arrivals, Stream
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer

#: The longest wait, for the start of 64 shards too.
AT_MOST_S = 600


class Setting(NamedTuple):
    pending: int = 10_000
    shards: int = 1
    names: int = 4
    size: int = 600


class Cost(NamedTuple):
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
#: Cost → name and unit; those of an idle process are no part of the plot.
COSTS = {"cpu_us": ("CPU", "µs/message"), "late_ms": ("lateness", "ms"), "rss_mb": ("memory", "MB")}
PROBES, PROBE_DUE_MS, SCALE_IDLE_S = 20, 200, 3.0
#: The most messages of a point, and the most bytes of them; the least messages.
MESSAGES, BYTES, FEWEST = 20_000, 100_000_000, 50
#: With fewer ``--rows``, only the first and the last value of each axis are measured.
WHOLE_ROWS = 100_000


def scale(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """The cost of a message as the work grows, one axis at a time, while the other three stay at ``BASE``.

    ::

        fill ─► celery beat starts ─► idle for 3 s ─► 20 probes, one by one ─► M messages through the whole path
                its RSS at the end    CPU of a core   lateness, median          CPU of the process / M, less the idle

    The growth of a cost is the exponent k of n^k that is nearest to all points of an axis, by least squares. The target
    is the exponent of log n between the same points; along the bytes it is 1, because a message has to be copied.
    """
    panels = {}
    with RedisServer(folder / "redis") as server:
        for axis, every in AXES.items():
            values = [value for value in every if axis != "pending" or value <= rows]
            found = dict[int, Cost]()
            for value in values if rows >= WHOLE_ROWS else sorted({values[0], values[-1]}):
                place = folder / f"{axis}-{value}"
                place.mkdir()
                with database(place, store) as new:
                    found[value] = _cost(server, new, BASE._replace(**{axis: value}), rows)
                server.client().flushall()
            yield from _growth(axis, found)
            lines = {
                f"{what}, {unit}": [(value, max(1e-3, getattr(cost, name))) for value, cost in found.items()]
                for name, (what, unit) in COSTS.items()
            }
            panels[axis] = (axis, "cost", lines)
    save_plot("scale", panels)


def _growth(axis: str, costs: Mapping[int, Cost]) -> Iterator[Figure]:
    for value, cost in costs.items():
        for name, (what, unit) in (COSTS | {"idle_percent": ("idle, of a core", "%")}).items():
            yield Figure("scale", f"{axis} {value:,}: {what}", getattr(cost, name), unit)
    if len(costs) < 2:
        return
    least, most = max(2, min(costs)), max(costs)
    log_k = math.log(math.log(most) / math.log(least)) / math.log(most / least)
    for name, (what, _) in COSTS.items():
        points = [math.log(max(getattr(cost, name), 1e-9)) for cost in costs.values()]
        k = linear_regression([math.log(n) for n in costs], points).slope
        target = 1.0 if axis == "size" else log_k
        yield Figure("scale", f"{axis}: {what} grows with n^k, k =", k, "", target=target, less_is_better=True)


def _cost(server: RedisServer, database: Database, setting: Setting, rows: int) -> Cost:
    client, rng = server.client(), random.Random(29)
    names = [f"shop.tasks.task_{n}" for n in range(setting.names)]
    # The pending rows have the usual size: a large store of large messages would measure the filler.
    fill(database.url, setting.pending, realistic(rng, min(setting.size, BASE.size), names), rng, shards=setting.shards)
    kinds = [(name, KINDS[n % len(KINDS)][1]) for n, name in enumerate(names)]
    letters = letters_of(server.url, client, kinds, size=setting.size)
    count = max(FEWEST, min(MESSAGES, rows // 20, BYTES // (3 * setting.size)))
    with beat(server.url, database.url, setting.shards) as process:
        queues = itertools.cycle([wheel_queue_name("wheel", shard) for shard in range(setting.shards)])

        def send(count: int, due_ms: int) -> list[float]:
            """Send messages that are due so much later; return how late they arrived, when all have."""
            now_ms = int(time.time() * 1_000)
            messages = list(letters.write([now_ms + due_ms] * count, now_ms))
            etas_ms = dict.fromkeys(map(task_id_of, messages), now_ms + due_ms)
            with Arrivals(client, QUEUES, etas_ms) as arrivals:
                for raw in messages:
                    client.lpush(next(queues), raw)
                process.wait(lambda: len(arrivals.pairs) == count, AT_MOST_S)
            return [late for _, late in arrivals.pairs]

        send(setting.shards, 0)  # the shards are held when their messages have come
        time.sleep(1)
        idle_per_s = process.cpu_share(SCALE_IDLE_S)
        late_ms = [send(1, PROBE_DUE_MS)[0] for _ in range(PROBES)]
        before_s, began = process.cpu_s, time.perf_counter()
        send(count, 1_000)
        spent_s = process.cpu_s - before_s - idle_per_s * (time.perf_counter() - began)
        return Cost(spent_s / count * 1e6, median(late_ms), process.rss / 2**20, 100 * idle_per_s)


SHARDS = 2
WHEEL_QUEUES = tuple(wheel_queue_name("wheel", shard) for shard in range(SHARDS))

#: Seconds from the first message written to the due time: all rows must be accepted by then.
LEAD_S, LEAD_S_A_ROW = 5, 400e-6

#: By what is measured: rows a second, and µs of CPU a row.
Costs = dict[str, tuple[float, float]]


STREAM_PER_S, STREAM_SHARDS, TAX = (2_000, 4_000), (1, 16, 64), 1.3


def shards(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """The same streams over more and more shards of one process: what a shard costs. Target: 1.3 of the CPU of one."""
    seconds, one = max(1, min(10, rows / 50_000)), dict[int, float]()
    for count in STREAM_SHARDS if rows >= WHOLE_ROWS else STREAM_SHARDS[:2]:
        (place := folder / str(count)).mkdir()
        with (
            RedisServer(place / "redis") as server,
            database(place, store) as new,
            beat(server.url, new.url, count) as tree,
        ):
            client, queues = server.client(), [wheel_queue_name("wheel", shard) for shard in range(count)]
            letters = letters_of(server.url, client)
            for rate in (count * 2, *STREAM_PER_S):  # the first one waits for the start of all shards
                stream, before_s = Stream(letters, rate, seconds), tree.cpu_s
                with Arrivals(client, QUEUES, stream.etas_ms) as arrivals:
                    stream.send(client, *queues)
                    arrivals.wait(stream.count, LONGEST_S)
                stream.ended(arrivals.pairs, tree.cpu_s - before_s)
                if rate not in STREAM_PER_S:
                    continue
                first, name = one.setdefault(rate, stream.cpu_us), f"{rate:,}/s over {count}, {store}"
                limit = TAX * first if count > 1 else None
                yield Figure(
                    "shards", f"{name}, CPU", stream.cpu_us, "µs/message", "1 shard", first, limit, less_is_better=True
                )
                for percent in (50, 99):
                    yield Figure(
                        "shards", f"… lateness, {percent} of 100", stream.late_ms(percent), "ms", less_is_better=True
                    )


def processes(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """One beat on two shards with ``wheel_processes`` 1 and 2: ingest and dispatch by both shards at once.

    ::

        2 wheel queues ─► celery beat ─► store                ingest: until the wheel queues are empty
                          at their due time ─► task queues    dispatch: all rows are due in the same second

    Rates gain from a second process where it has a core beside those of Redis and the database.
    """
    found: list[Costs] = []
    for count in (1, 2):
        place = folder / f"processes-{count}"
        place.mkdir()
        with RedisServer(place / "redis") as server, database(place, store) as one:
            found.append(_ways(server, one, count, max(2_000, rows // 20)))
    for what, (per_s, used_us) in found[0].items():
        two_per_s, two_us = found[1][what]
        words = f"{what}, {store}, %s: %s"
        yield Figure("processes", words % ("1 process", "rate"), per_s, "/s")
        yield Figure("processes", words % ("2 processes", "rate"), two_per_s, "/s", "1 process", per_s)
        yield Figure("processes", words % ("1 process", "CPU a row"), used_us, "µs")
        two = two_us, "µs", "1 process", used_us
        yield Figure("processes", words % ("2 processes", "CPU a row"), *two, less_is_better=True)


def _ways(server: RedisServer, one: Database, processes: int, count: int) -> Costs:
    client = server.client()
    letters = letters_of(server.url, client)
    with beat(server.url, one.url, SHARDS, processes) as process:
        process.wait(lambda: _holders(one.url) == processes, AT_MOST_S)
        due_ms = int((time.time() + LEAD_S + LEAD_S_A_ROW * count) * 1_000)
        messages = list(letters.write([due_ms] * count, due_ms))

        def measured(begin: Callable[[], object], is_over: Callable[[], bool]) -> tuple[float, float]:
            before_s, began = process.cpu_s, time.perf_counter()
            begin()
            process.wait(is_over, AT_MOST_S)
            return count / (time.perf_counter() - began), (process.cpu_s - before_s) / count * 1e6

        def push() -> None:
            for start in range(0, count, AT_ONCE):
                client.lpush(WHEEL_QUEUES[start // AT_ONCE % SHARDS], *messages[start : start + AT_ONCE])

        ingest = measured(push, lambda: not any(client.llen(queue) for queue in WHEEL_QUEUES))
        assert time.time() * 1_000 < due_ms, "rows were due before all were accepted: raise LEAD_S_A_ROW"
        process.wait(lambda: time.time() * 1_000 >= due_ms, AT_MOST_S)
        dispatch = measured(int, lambda: sum(client.llen(queue) for queue in QUEUES) == count)
        return {"ingest": ingest, "dispatch": dispatch}


def _holders(url: str, shards: int = SHARDS) -> int:
    with closing(open_store(url, shards=shards)) as store:
        holders = store.holders()
        return len(set(holders.values())) if all(holders.values()) else 0


IDLE_S, IDLE_PROBES, IDLE_QUEUE = 20, 30, "bench.idle"
#: Part of a core above which a beat still fills its windows.
STARTING = 0.1
#: Number of shards → target in percent of a core.
IDLE_TARGETS = {1: 0.5, 16: 2.0}


def idle(folder: Path, rows: int) -> Iterator[Figure]:
    """An idle beat with 1 and 16 shards: CPU, threads, and the lateness of a task that comes or becomes due meanwhile.

    On Redis with each kind of store, and on RabbitMQ with SQLite. Half of the rows are pending.
    """
    with databases(folder) as found:
        for name, make in found.items():
            for shards in IDLE_TARGETS:
                with RedisServer(folder / f"redis-{name}-{shards}") as server:
                    yield from _idle(server.url, name, make().url, shards, rows // 2)
        with RabbitServer(folder / "rabbitmq") as rabbit:
            for shards in IDLE_TARGETS:
                yield from _idle(rabbit.fresh(), f"{SQLITE} and RabbitMQ", found[SQLITE]().url, shards, rows // 2)


def _idle(broker: str, name: str, store: str, shards: int, rows: int) -> Iterator[Figure]:
    rng = random.Random(31)
    fill(store, rows, small(rng), rng, shards=shards)
    words = f"idle, {shards} {'shards' if shards > 1 else 'shard'}, {rows:,} pending, {name}: %s"
    with beat(broker, store, shards) as process:
        process.wait(lambda: _holders(store, shards) > 0, AT_MOST_S)
        process.wait(lambda: process.cpu_share(1) < STARTING, AT_MOST_S)
        percent, target = process.cpu_share(IDLE_S) * 100, IDLE_TARGETS[shards]
        yield Figure("idle", words % "of a core", percent, "%", target=target, less_is_better=True)
        yield Figure("idle", words % "threads", process.threads, "")
        with make_app(broker, store, wheel_shards=shards) as app, app.connection_for_read() as connection:
            queue = connection.SimpleQueue(app.amqp.queues[IDLE_QUEUE], no_ack=True)

            def late_ms(delay_s: float) -> float:
                time.sleep(random.uniform(0.1, 0.3))
                due_s = time.time() + delay_s
                app.send_task("bench.idle", queue=IDLE_QUEUE, countdown=delay_s)
                begin_s = max(due_s, time.time())
                queue.get(timeout=10)
                return (time.time() - begin_s) * 1_000

            for what, delay_s in (("a task that comes due", 0.001), ("a task that becomes due", 1.0)):
                late = median(late_ms(delay_s) for _ in range(IDLE_PROBES)), "ms"
                yield Figure("idle", words % f"{what}, median", *late, target=5.0, less_is_better=True)
