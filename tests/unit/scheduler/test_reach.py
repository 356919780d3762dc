"""A scheduler that does not reach the broker leaves its shards to the schedulers that do, and to nobody else."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Wait
from celery_wheel.engine.round import run_round
from celery_wheel.errors import BrokerError
from celery_wheel.scheduler import share as share_module
from celery_wheel.scheduler.reach import UNREACHED_S, BrokerReach
from celery_wheel.scheduler.share import SILENT_MS, Balance, Role, Share
from celery_wheel.timing import ManualClock
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore
from tests.unit.engine.conftest import START_MS

LOOK_MS = 500


class CutBroker(ModelRedis):
    is_cut, asked = False, 0

    def depth(self, shard: int) -> int:
        self.asked += 1
        if self.is_cut:
            raise BrokerError("out of reach")
        return super().depth(shard)


class OneJob:
    """A pool whose job runs when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_woken = False

    def now_s(self) -> float:
        return self._clock.monotonic_ms() / 1_000

    def job(self, run: Callable[[], Wait], name: str) -> Any:
        self.run = run
        return self

    def wake(self) -> None:
        self.is_woken = True


class Scheduler:
    def __init__(self, name: str, disk: Disk, clock: ManualClock, shards: int, role: Role = Role.ANY) -> None:
        store = ModelStore(disk)
        for shard in range(shards):
            disk.shard(shard)
        self.clock, self.pool = clock, OneJob(clock)
        self.brokers = [CutBroker(RedisServer(), clock.now_ms) for _ in range(shards)]
        self.engines = [Engine(shard, name, store, one, clock) for shard, one in enumerate(self.brokers)]
        reach = BrokerReach(self.engines, self.pool)  # type: ignore[arg-type]
        self.balance = Balance(store, name, self.engines, clock, role=role, reach=reach)

    def look(self) -> None:
        self.balance.once()
        if self.pool.is_woken:
            self.pool.is_woken = self.pool.run().most_s < UNREACHED_S
        for engine in self.engines:
            run_round(engine.tend())

    def cut(self, *, is_cut: bool = True) -> None:
        for one, engine in zip(self.brokers, self.engines, strict=True):
            one.is_cut = is_cut
            engine.stats.add(broker_errors=int(is_cut))

    def held(self) -> list[int]:
        return [engine.shard for engine in self.engines if engine.held]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


def look(clock: ManualClock, *schedulers: Scheduler, times: int = 1) -> None:
    for _ in range(times):
        clock.advance(LOOK_MS)
        for one in schedulers:
            one.look()


@pytest.mark.parametrize("shards", [1, 2])
def test_the_shards_of_a_scheduler_that_is_cut_off_go_to_another(clock: ManualClock, shards: int) -> None:
    disk = Disk()
    a, b = (Scheduler(name, disk, clock, shards) for name in "ab")
    look(clock, a, b, times=8)
    every = list(range(shards))
    assert sorted(a.held() + b.held()) == every
    a.cut()
    look(clock, a, b, times=8)
    assert (a.held(), b.held()) == ([], every)
    a.cut(is_cut=False)
    look(clock, a, b, times=8)
    assert len(a.held()) == shards - 1, "its share, where there is one"


def test_a_scheduler_alone_keeps_its_shards(clock: ManualClock) -> None:
    a = Scheduler("a", Disk(), clock, 2)
    look(clock, a, times=4)
    epochs = [engine.state and engine.state.epoch for engine in a.engines]
    a.cut()
    look(clock, a, times=8)
    assert a.held() == [0, 1]
    assert [engine.state and engine.state.epoch for engine in a.engines] == epochs


def test_a_single_error_is_no_loss(clock: ManualClock) -> None:
    disk = Disk()
    a, b = (Scheduler(name, disk, clock, 2) for name in "ab")
    look(clock, a, b, times=8)
    held = a.held()
    a.engines[0].stats.add(broker_errors=1)
    look(clock, a, b, times=int(SILENT_MS / LOOK_MS) + 4)
    assert a.held() == held
    assert a.brokers[0].asked == 1
    a.pool.run()
    assert a.brokers[0].asked == 1, "after the doubt nothing is asked"


def cut_off(clock: ManualClock) -> list[Scheduler]:
    """Return two schedulers that share two shards, a while after both have lost the broker."""
    disk = Disk()
    found = [Scheduler(name, disk, clock, 2) for name in "ab"]
    look(clock, *found, times=8)
    for one in found:
        one.cut()
    look(clock, *found, times=12)
    return found


def test_where_the_broker_is_down_for_all_each_shard_has_a_holder_again(clock: ManualClock) -> None:
    a, b = cut_off(clock)
    for one in (a, b):
        one.cut(is_cut=False)
    look(clock, a, b, times=8)
    assert sorted(a.held() + b.held()) == [0, 1]
    assert a.held()
    assert b.held()


def test_where_the_broker_is_down_for_all_one_stays_and_the_other_does_not_come_and_go(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = cut_off(clock)
    stays, left = sorted((a, b), key=lambda one: one.balance._leaves)
    register = stays.balance._store.register_scheduler

    def registered(*signs: Any) -> list[str]:
        found = register(*signs)
        left.look()  # at any moment
        assert (stays.balance._leaves, left.balance._leaves) == (False, True)
        return found

    monkeypatch.setattr(stays.balance._store, "register_scheduler", registered)
    look(clock, stays, times=8)


def test_a_child_never_takes_the_first_shard(clock: ManualClock) -> None:
    child = Scheduler("child", Disk(), clock, 1, Role.CHILD)
    look(clock, child, times=4)
    assert not child.held()


def test_a_scheduler_whose_lease_runs_out_while_it_counts_its_shards_keeps_them(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starved process may get no processor time for a lease between two of its own lines."""
    a = Scheduler("a", Disk(), clock, 2)
    look(clock, a, times=4)
    counted = share_module.share

    def counted_slowly(*facts: Any) -> Share:
        found = counted(*facts)
        clock.advance(a.engines[0].ctx.limits.lease_ms)
        return found

    monkeypatch.setattr(share_module, "share", counted_slowly)
    look(clock, a)
    assert a.held() == [0, 1]
    assert [engine.stats.adoptions for engine in a.engines] == [1, 1]
