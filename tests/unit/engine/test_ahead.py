"""A drain publishes rows before they are due, and no later holder publishes rows in doubt too early."""

from __future__ import annotations

from dataclasses import replace

from celery_wheel.engine.round import Limits
from celery_wheel.values.text import END_OF_TIME_MS
from tests.unit.engine.conftest import Rig
from tests.unit.engine.test_no_offset import RabbitRig

AHEAD = Limits(ahead_ms=END_OF_TIME_MS)
YEAR_MS = 365 * 86_400_000


def test_every_pending_task_is_published_in_order_of_due_time() -> None:
    rig = Rig(limits=AHEAD)
    for n, delay_ms in enumerate([YEAR_MS, 5, 100 * YEAR_MS, 3_600_000]):
        rig.send(f"task {n}", delay_ms)
    rig.run(rounds=3)
    assert rig.pushed == ["task 1", "task 3", "task 0", "task 2"]


def test_a_task_sent_after_a_drain_is_published_at_its_own_time() -> None:
    rig = Rig(limits=AHEAD)
    rig.send("far", YEAR_MS)
    rig.run(rounds=3)
    rig.run("release")
    rig.limits = Limits()
    rig.engine = rig.new_engine("two")
    rig.send("near", 500)
    rig.run(rounds=3)
    assert rig.pushed == ["far"]
    rig.pass_time(500)
    rig.run(rounds=3)
    assert rig.pushed == ["far", "near"]


def in_doubt(rig: RabbitRig) -> None:
    """Prepare a chunk of two rows and let the holder die: both rows are in doubt."""
    rig.send_in("due soon", eta_ms=rig.clock.now_ms() + 60_000)
    rig.send_in("due later", eta_ms=rig.clock.now_ms() + 120_000)
    rig.run("tend", "ingest", "prefetch")
    for step in rig.engine.dispatch():
        if step == "applied":
            break
    rig.limits = replace(rig.limits, ahead_ms=0)
    wheel = rig.rabbit.wheel
    rig.engine = rig.new_engine("two")
    rig.rabbit.wheel = wheel
    rig.pass_time(rig.limits.lease_ms + 1)
    rig.run(rounds=3)
    assert rig.engine.held


def test_rows_in_doubt_that_are_not_due_wait_for_their_time() -> None:
    rig = RabbitRig(limits=AHEAD)
    in_doubt(rig)
    assert rig.sent_as == []
    batches = len(rig.disk.shard(0).batches)
    rig.run(rounds=5)
    assert len(rig.disk.shard(0).batches) == batches, "and nothing is written meanwhile"
    rig.pass_time(60_000)
    rig.run(rounds=3)
    assert rig.sent_as == [("due soon", True)]
    rig.send_in("new", eta_ms=rig.clock.now_ms())
    rig.pass_time(60_000)
    rig.run(rounds=3)
    assert sorted(rig.sent_as) == [("due later", True), ("due soon", True), ("new", False)]


def test_another_drain_publishes_rows_in_doubt_at_once() -> None:
    rig = RabbitRig(limits=AHEAD)
    in_doubt(rig)
    rig.run("release")
    rig.limits = AHEAD
    rig.engine = rig.new_engine("three")
    rig.run(rounds=3)
    assert rig.sent_as == [("due soon", True), ("due later", True)]
