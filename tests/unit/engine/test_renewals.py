"""Renewals: one call to the broker and one transaction for all shards; each shard's own ``tend`` decides the rest."""

from __future__ import annotations

from unittest import mock

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool
from celery_wheel.engine.round import Round, run_round
from celery_wheel.engine.runner import Runner, renew
from celery_wheel.errors import BrokerError, StoreError
from tests.kit.patience import wait_until
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import ModelStore
from tests.unit.engine.conftest import Rig

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
        return {shard for shard, _, confirmed in chunks if not confirmed}

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
    engines[0].renewed(call)
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


def test_an_unexpected_error_ends_the_process(engines: list[Engine]) -> None:
    runner = Runner(*engines, lease_ms=2_000, poll_ms=50)
    with mock.patch.object(ModelStore, "renew_all", side_effect=RuntimeError("a defect")):
        runner._renewal.wake()
        wait_until(lambda: runner.pool.failure is not None, "the pool has the failure")
    assert runner.pool.failure is not None
    assert (runner.pool.failure[0], str(runner.pool.failure[1])) == ("renew", "a defect")
