"""A bulk action on very many tasks, and how late other tasks are meanwhile; as ``python -m tests.benchmarks bulk``.

::

    rows/67 tasks (30,000), due tomorrow, through the wheel queue                            not timed
    probes: a task every 50 ms, due 200 ms later, before the action and during it            lateness at the arrival
    cancel all tasks of tomorrow: from the request until the part is finished                rate, CPU a task
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.control import wheel_of
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.ports.pages import Criteria
from tests.benchmarks.child import Child
from tests.benchmarks.databases import database
from tests.benchmarks.figure import Figure
from tests.benchmarks.letters import WHEEL_QUEUE, letters_of
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Probes, part
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

#: Rows of the default for each task of the action.
SHARE = 67
QUIET_S, LONGEST_S = 5.0, 300.0


def bulk(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """A bulk action that cancels 30,000 tasks: its rate, and the lateness of tasks that are due meanwhile."""
    count = rows // SHARE
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        client = server.client()
        with Child(server.url, found.url) as child:
            now_ms = int(time.time() * 1_000)
            letters = letters_of(server.url, client)
            letters.push(client, WHEEL_QUEUE, [now_ms + DAY_MS + n * 1_000 // 500 for n in range(count)], now_ms)
            child.until("accepted", count)
            with closing(wheel_of(make_app(server.url, found.url))) as wheel, Probes(server, found.url) as probes:
                time.sleep(QUIET_S)
                cpu_s, begun_s = child.status().cpu_s, time.time()
                action = wheel.bulk.begin("cancel", Criteria(from_ms=now_ms + DAY_MS // 2), actor="bench")
                wait_until(lambda: (got := wheel.bulk.get(action)) is not None and got.is_over, "it is over", LONGEST_S)
                over_s, cpu_s = time.time(), child.status().cpu_s - cpu_s
                done = wheel.bulk.get(action)
            assert done is not None
            assert done.results == {"done": done.found}, (done.results, done.found)
            assert done.found >= count
    quiet, during = probes.between(upto_s=begun_s), probes.between(begun_s, over_s)
    rate = done.found / (over_s - begun_s)
    yield Figure("bulk", f"cancel {count:,} tasks as a bulk action, {store}", rate, "tasks/s")
    yield Figure("bulk", "… CPU of the scheduler", cpu_s / count * 1e6, "µs/task")
    for percent in (50, 99, 100):
        late = part(during, percent), "ms", "without it", part(quiet, percent)
        yield Figure("bulk", f"… p{percent} lateness of {len(during)} tasks due meanwhile", *late, less_is_better=True)
