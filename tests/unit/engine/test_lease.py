"""A holder relies on its lease while the store or the broker does not answer.

Renewals: one call to the broker and one transaction for all shards; each shard's own ``tend`` decides the rest.

A store that was restored from an older copy, as the next holder finds it by the broker's offsets and epoch.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.engine.round import Round, run_round
from celery_wheel.engine.runner import Runner, renew
from celery_wheel.engine.stats import Stats
from celery_wheel.errors import BrokerError, StoreError
from tests.kit.patience import wait_until
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import ModelStore
from tests.unit.engine.conftest import RabbitRig, Rig


def cut_off(rig: Rig) -> None:
    def fail(point: str) -> None:
        raise StoreError(f"the store is away ({point})")

    rig.store.fault = fail


def test_a_holder_that_cannot_renew_no_longer_says_that_it_holds_the_shard(rig: Rig) -> None:
    """Beat sends periodic entries while this is true; another scheduler does so after the lease."""
    rig.run()
    assert rig.engine.held
    cut_off(rig)
    rig.run("tend", after_ms=rig.limits.lease_ms // 2)
    assert rig.engine.held
    rig.run("tend", after_ms=rig.limits.lease_ms * 4 // 10)
    assert not rig.engine.held, "a tenth of the lease is left: the store's clock may be ahead"
    rig.store.fault = lambda point: None
    rig.run("tend")
    assert rig.engine.held


def test_a_store_that_does_not_answer_for_a_while_costs_an_idle_shard_nothing(rig: Rig) -> None:
    rig.run(rounds=2)
    state = rig.engine.state
    cut_off(rig)
    for _ in range(20):
        rig.pass_time(100)
        assert rig.run("tend") is Round.FAILED
        rig.run("ingest", "prefetch", "dispatch", "settle", "announce")
    assert rig.engine.state is state
    rig.store.fault = lambda point: None
    rig.send("a", 0)
    rig.run(rounds=2)
    assert (rig.pushed, rig.engine.stats.adoptions) == (["a"], 1)


def test_where_another_holder_took_the_shard_meanwhile_memory_is_dropped(rig: Rig) -> None:
    rig.run(rounds=2)
    former = rig.engine
    cut_off(rig)
    rig.pass_time(rig.limits.lease_ms + 1)
    rig.engine = rig.new_engine("two")
    rig.run(rounds=2)
    assert rig.engine.held
    former.store.fault = lambda point: None  # type: ignore[attr-defined]
    rig.send("a", 0)
    rig.run(rounds=2)
    for activity in (former.dispatch, former.tend, former.ingest):
        list(activity())
    assert (former.state, former.held, rig.pushed) == (None, False, ["a"])


@pytest.mark.parametrize("left_ms", [1, 199])
def test_nothing_is_published_without_a_fence_when_the_lease_is_nearly_over(left_ms: int) -> None:
    rig = RabbitRig()
    rig.send_in("a")
    rig.run("tend", "ingest", "prefetch")
    state = rig.engine.state
    rig.pass_time(rig.limits.lease_ms - left_ms)
    assert rig.run("dispatch") is Round.FAILED
    assert rig.sent_as == []
    assert rig.engine.state is state, "nothing is in doubt"
    rig.run("tend", "dispatch")
    assert rig.sent_as == [("a", False)]


def test_the_lease_that_ends_in_the_middle_of_a_chunk_ends_the_chunk() -> None:
    rig = RabbitRig()
    for n in range(3):
        rig.send_in(str(n))
    rig.run("tend", "ingest", "prefetch")
    pushed = rig.model._pushed

    def slow(*args: object) -> None:
        pushed(*args)  # type: ignore[arg-type]
        rig.pass_time(rig.limits.lease_ms)

    rig.model._pushed = slow
    assert rig.run("dispatch") is Round.FAILED
    assert rig.sent_as == [("0", False)]
    rig.model._pushed = pushed
    rig.run("tend", "dispatch", rounds=2)
    assert [task_id for task_id, _ in rig.sent_as] in (["0", "1", "2"], ["0", "0", "1", "2"])
    assert all(redelivered for _, redelivered in rig.sent_as[1:])


def test_counts_of_several_threads_are_all_there() -> None:
    stats = Stats()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [stats.add(rejected=1, dispatched=2) for _ in range(20_000)], range(4)))
    assert (stats.rejected, stats.dispatched) == (80_000, 160_000)


LEASE_MS = 2_000


@pytest.fixture
def engines(rig: Rig) -> list[Engine]:
    """Two shards of one process, both held."""
    other = Engine(1, "one", rig.store, ModelRedis(RedisServer(), rig.clock.now_ms), rig.clock, rig.limits)
    for engine in (rig.engine, other):
        run_round(engine.tend())
    return [rig.engine, other]


@pytest.fixture(autouse=True)
def one_server() -> object:
    """Let the model of one engine's server answer for the other one too: each model has one shard."""

    def verified(self: object, chunks: list[tuple[int, int, int]]) -> set[int]:
        return {shard for shard, _, confirmed, _ in chunks if not confirmed}

    with mock.patch.object(ModelRedis, "verified", verified):
        yield


def until_ms(rig: Rig) -> list[int]:
    return [rig.store.state(shard).lease_until_ms or 0 for shard in (0, 1)]


def test_all_leases_are_renewed_in_one_transaction(rig: Rig, engines: list[Engine]) -> None:
    before = until_ms(rig)
    rig.pass_time(rig.limits.lease_ms * 3 // 4)
    with mock.patch.object(rig.store, "renew_all", wraps=rig.store.renew_all) as renew_all:
        assert renew(engines, LEASE_MS) == {0, 1}
    renew_all.assert_called_once()
    assert [later - earlier for later, earlier in zip(until_ms(rig), before, strict=True)] == [1_500, 1_500]
    rig.pass_time(rig.limits.lease_ms * 3 // 4)
    assert [engine.held for engine in engines] == [True, True]
    assert rig.store.state(1).snapshot is not None


def test_a_fenced_shard_ends_only_its_own_state(rig: Rig, engines: list[Engine]) -> None:
    rig.pass_time(rig.limits.lease_ms + 1)
    assert ModelStore(rig.disk).acquire(1, "two", rig.clock.now_ms(), rig.limits.lease_ms) is not None
    assert run_round(engines[0].tend()) is Round.IDLE, "a lease that is over is renewed by the shard's own tend"
    assert renew(engines, LEASE_MS) == {0}
    assert run_round(engines[1].tend()) is Round.FAILED
    assert [engine.held for engine in engines] == [True, False]
    assert [engine.state is None for engine in engines] == [False, True]


def test_a_shard_with_a_lost_chunk_is_left_to_its_own_tend(engines: list[Engine]) -> None:
    assert engines[1].state is not None
    engines[1].state.confirmed = 1
    assert renew(engines, LEASE_MS) == {0}


@pytest.mark.parametrize(("name", "error"), [("verified", BrokerError("away")), ("renew_all", StoreError("away"))])
def test_without_an_answer_each_shard_renews_by_itself(
    rig: Rig, engines: list[Engine], name: str, error: Exception
) -> None:
    target = ModelRedis if name == "verified" else ModelStore
    with mock.patch.object(target, name, side_effect=error):
        assert renew(engines, LEASE_MS) == set()
    assert [run_round(engine.tend()) for engine in engines] == [Round.IDLE] * 2


def test_a_shard_to_give_up_and_one_not_held_are_left_out(engines: list[Engine]) -> None:
    engines[0].wanted = False
    run_round(engines[1].release())
    assert renew(engines, LEASE_MS) == set()


def test_a_renewal_of_a_shard_that_is_given_up_meanwhile_is_worth_nothing(rig: Rig, engines: list[Engine]) -> None:
    call = engines[0].lease_call()
    assert call is not None
    run_round(engines[0].release())
    engines[0].renewed(call.state, call.lease_until_ms)
    assert not engines[0].held


def test_a_shard_that_could_not_be_settled_when_it_was_given_up_is_adopted_again(rig: Rig) -> None:
    rig.send("a", 0)
    rig.run("tend", "ingest", "prefetch", "dispatch")
    rig.engine.wanted = False
    with mock.patch.object(rig.store, "apply", side_effect=StoreError("away")):
        assert rig.run("tend") is Round.FAILED
    rig.engine.wanted = True
    assert rig.run("tend") is Round.BUSY
    assert rig.engine.held
    assert rig.pushed == ["a"]


def tends(runner: Runner) -> list[bool]:
    """Return, by shard, whether the next round of ``tend`` does anything."""
    return [bool(list(shard._tend())[:-1]) for shard in runner.shards]


def test_tend_does_nothing_after_a_renewal_and_everything_without(
    rig: Rig, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, pool = [1_000.0], Pool()
    monkeypatch.setattr(pool, "now_s", lambda: now_s[0])
    runner = Runner(*engines, lease_ms=rig.limits.lease_ms, poll_ms=50, pool=pool)
    assert tends(runner) == [True, True]
    runner._renew()
    assert tends(runner) == [False, False]
    engines[1].wanted = False
    runner._renew()
    assert tends(runner) == [False, True]
    now_s[0] = 1_000.76
    assert tends(runner) == [True, True], "the call of ``renew`` hangs"


def test_every_other_renewal_stores_the_snapshots(rig: Rig, engines: list[Engine]) -> None:
    runner, shown = Runner(*engines, lease_ms=rig.limits.lease_ms, poll_ms=50), []
    for _ in range(5):
        rig.pass_time(500)
        runner._renew()
        shown.append(rig.store.state(1).snapshot_at_ms == rig.clock.now_ms())
        assert [engine.held for engine in engines] == [True, True]
    assert shown == [True, False, True, False, True]


def test_an_unexpected_error_ends_the_process(engines: list[Engine]) -> None:
    runner = Runner(*engines, lease_ms=2_000, poll_ms=50)
    with mock.patch.object(ModelStore, "renew_all", side_effect=RuntimeError("a defect")):
        runner._renewal.wake()
        wait_until(lambda: runner.pool.failure is not None, "the pool has the failure")
    assert runner.pool.failure is not None
    assert (runner.pool.failure[0], str(runner.pool.failure[1])) == ("renew", "a defect")


OLDER_STORE = "the store is older than its broker"


def copy_of(rig: Rig) -> dict[int, Any]:
    return copy.deepcopy(rig.disk.shards, {id(rig.disk): rig.disk})


def restore(rig: Rig, backup: dict[int, Any]) -> None:
    rig.disk.shards = backup
    rig.take_over(after_ms=10_000)


def test_tasks_of_the_copy_that_were_dispatched_since_count_as_dispatched_and_the_log_says_so(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send("a", 1_000)
    rig.send("b", 2_000)
    rig.run()
    backup = copy_of(rig)
    for _ in range(2):
        rig.run(rounds=2, after_ms=1_000)
    assert rig.pushed == ["a", "b"]
    restore(rig, backup)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]
    assert OLDER_STORE in caplog.text


def test_a_holder_that_ended_before_its_settlement_is_no_older_copy(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("a", 0)
    rig.send("b", 1_000)
    rig.run(rounds=2)
    rig.run("tend", "prefetch", "dispatch", after_ms=1_000)
    assert rig.pushed == ["a", "b"]
    restore(rig, rig.disk.shards)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]
    assert OLDER_STORE not in caplog.text


def test_an_epoch_that_the_broker_has_passed_names_the_copy(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("a", 3_600_000)
    rig.run()
    backup = copy_of(rig)
    for name in ("two", "three", "four"):
        rig.engine = rig.new_engine(name)
        rig.run("tend", after_ms=10_000)
    restore(rig, backup)
    rig.run("tend")
    assert "where no other scheduler runs, the store was restored from an older copy" in caplog.text
    for _ in range(10):
        rig.run("tend", after_ms=10_000)
    assert rig.engine.held


def test_housekeeping_rests_for_a_minute_once_it_has_had_no_work_for_two_and_an_adoption_wakes_it(rig: Rig) -> None:
    """A change of the key ends with idle rounds, of which one comes a minute after the last row."""
    pool = Pool()
    with mock.patch.object(pool, "now_s", return_value=1_000.0) as now_s:
        [shard] = Runner(rig.engine, lease_ms=5_000, poll_ms=100, pool=pool).shards

        def waits(round_: Round, after_s: float, dispatched: int = 0) -> Wait:
            now_s.return_value += after_s
            rig.engine.stats.add(dispatched=dispatched)
            return shard._after_housekeeping(round_, 0.5)

        assert waits(Round.IDLE, 0) == Wait(0.0, 60.0)
        assert waits(Round.BUSY, 60) == Wait(0.5, 0.5)
        assert waits(Round.IDLE, 0.5) == Wait(0.0, 10.0)
        assert waits(Round.IDLE, 110) == Wait(0.0, 10.0)
        assert waits(Round.IDLE, 10) == Wait(0.0, 60.0)
        assert waits(Round.BUSY, 60, dispatched=1) == Wait(4.5, 4.5)
        assert waits(Round.IDLE, 60, dispatched=1) == Wait(0.0, 10.0)
    pool.close()
