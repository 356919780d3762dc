"""Several shards, several schedulers: even shares, and dispatch that goes on while they come and go."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from zlib import crc32

import pytest

from celery_wheel.errors import StoreUnusable
from celery_wheel.store import open_store
from tests.integration.scheduler.conftest import Bench
from tests.servers import wait_until

SHARDS = 4
SETTINGS = {"wheel_shards": SHARDS}


@pytest.fixture
def sharded(bench: Bench) -> Bench:
    bench.app.conf.update(wheel_shards=SHARDS)
    return bench


def holders(bench: Bench) -> dict[int, int]:
    """Shard → process id of its holder, of those that have one."""
    try:
        store = open_store(bench.store, shards=None, create=False)
    except StoreUnusable:  # the first scheduler is about to make it
        return {}
    try:
        return {shard: int(name.rpartition("/")[2]) for shard, name in store.holders().items() if name}
    finally:
        store.close()


def counts(bench: Bench) -> list[int]:
    return sorted(Counter(holders(bench).values()).values())


class Traffic:
    """Sends a task a few times a second to each shard, due 0.3 s later, until it is left."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: dict[str, tuple[int, float]] = {}  #: task id → shard, when it is due (monotonic)
        self.arrived: dict[str, float] = {}

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(0.05):
            n += 1
            task_id = f"task-{n}"
            due_s = time.monotonic() + 0.3
            self._bench.app.send_task("noop", (n,), countdown=0.3, task_id=task_id)
            self.sent[task_id] = crc32(task_id.encode()) % SHARDS, due_s
            now_s = time.monotonic()
            for arrived in self._bench.dispatched():
                self.arrived.setdefault(arrived, now_s)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def late_s(self, shards: set[int]) -> float:
        """How late the latest task of these shards was, of those that have arrived."""
        return max(
            self.arrived[task_id] - due_s
            for task_id, (shard, due_s) in self.sent.items()
            if shard in shards and task_id in self.arrived
        )


@pytest.fixture
def traffic(sharded: Bench) -> Iterator[Traffic]:
    with Traffic(sharded) as found:
        yield found


def test_shares_are_even_and_shards_that_stay_see_no_gap(sharded: Bench, traffic: Traffic) -> None:
    first = sharded.beat(**SETTINGS)
    wait_until(lambda: counts(sharded) == [4], "one scheduler holds all")
    wait_until(lambda: len(traffic.arrived) > 40, "tasks of all shards leave")
    traffic.arrived.clear()
    traffic.sent.clear()

    second = sharded.beat(**SETTINGS)
    wait_until(lambda: counts(sharded) == [2, 2], "the newcomer has half of them")
    stayed = {shard for shard, pid in holders(sharded).items() if pid == first.pid}
    second.signal(signal.SIGTERM)
    assert second.end()[0] == 0
    wait_until(lambda: counts(sharded) == [4], "the first has all again")
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all has left")
    assert holders(sharded).keys() >= stayed
    assert traffic.late_s(stayed) < 1, "a shard that nobody moved made a pause"


def test_the_shards_of_a_scheduler_that_is_killed_go_to_the_other(sharded: Bench, traffic: Traffic) -> None:
    sharded.beat(**SETTINGS)
    victim = sharded.beat(**SETTINGS)
    wait_until(lambda: counts(sharded) == [2, 2], "two schedulers have half each")
    victim.kill()
    killed_at = time.monotonic()
    wait_until(lambda: counts(sharded) == [4], "the other has all", 3)
    assert time.monotonic() - killed_at < 3
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all has left")
    left = sharded.dispatched()  # once: more is leaving
    assert len(left) == len(set(left)), "a task left twice"
