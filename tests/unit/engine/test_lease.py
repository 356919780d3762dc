"""A holder relies on its lease while the store or the broker does not answer."""

from __future__ import annotations

import threading

import pytest

from celery_wheel.engine.round import Round
from celery_wheel.engine.stats import Stats
from celery_wheel.errors import StoreError
from tests.unit.engine.conftest import Rig
from tests.unit.engine.test_no_offset import RabbitRig


def cut_off(rig: Rig) -> None:
    def fail(point: str) -> None:
        raise StoreError(f"the store is away ({point})")

    rig.store.fault = fail


def test_a_holder_that_cannot_renew_no_longer_says_that_it_holds_the_shard(rig: Rig) -> None:
    """Beat sends periodic entries while this is true; another scheduler does so after the lease."""
    rig.run()
    assert rig.engine.held
    cut_off(rig)
    rig.pass_time(rig.limits.lease_ms // 2)
    rig.run("tend")
    assert rig.engine.held
    rig.pass_time(rig.limits.lease_ms * 4 // 10)
    rig.run("tend")
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
    former._ctx.store.fault = lambda point: None  # type: ignore[attr-defined]
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
    threads = [
        threading.Thread(target=lambda: [stats.add(rejected=1, dispatched=2) for _ in range(20_000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (stats.rejected, stats.dispatched) == (80_000, 160_000)
