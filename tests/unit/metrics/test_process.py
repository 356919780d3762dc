"""A process shows the counts of its engines, and the shards that it holds."""

from __future__ import annotations

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.metrics.samples import ProcessMetrics, Totals
from celery_wheel.overview import read_overview
from celery_wheel.store.model import Unreadable
from celery_wheel.store.sql.store import SqlStore
from tests.unit.engine.conftest import Rig
from tests.unit.metrics.conftest import read


def metrics_of(store: SqlStore, engine: Engine) -> ProcessMetrics:
    return ProcessMetrics(
        lambda: [engine], lambda: Totals(read_overview(store, engine.clock.now_ms()), store.browse.schedule_counts())
    )


@pytest.fixture
def metrics(rig: Rig, sql_store: SqlStore) -> ProcessMetrics:
    return metrics_of(sql_store, rig.engine)


def test_a_message_is_counted_at_each_step(rig: Rig, metrics: ProcessMetrics) -> None:
    rig.send("a", 1_000)
    rig.send("b", 9_000)
    rig.run(rounds=2)
    found = read(metrics.collect)
    assert found["accepted"] == {("0",): 2}
    assert found["dispatched"] == {("0",): 0}
    assert found["window_messages"] == {("0",): 2}
    assert found["commit_duration_seconds"][("accept",)] == 1
    rig.pass_time(1_003)
    rig.run(rounds=2)
    found = read(metrics.collect)
    assert found["dispatched"] == {("0",): 1}
    assert found["lateness_seconds"] == {("tasks.add", "celery"): 1}
    assert rig.engine.stats.lateness.by_names["tasks.add", "celery"].sum_ms == 3
    assert found["publish_duration_seconds"] == {(): 1}
    assert found["commit_duration_seconds"][("settle",)] == 1


def test_rejected_messages_have_a_reason(rig: Rig, metrics: ProcessMetrics) -> None:
    rig.server.keys.wheel.append(Unreadable(f"00000000-0000-7000-8000-{99:012d}", "no JSON", b"?"))
    for task_id in ("a", "b"):
        rig.send(task_id, 1_000, unique="key", on_conflict="reject")
    rig.run(rounds=2)
    assert read(metrics.collect)["rejected"] == {("0", "unreadable"): 1, ("0", "unique"): 1, ("0", "broker"): 0}


def test_a_message_that_is_too_late_for_its_misfire_option_is_counted_as_expired(
    rig: Rig, metrics: ProcessMetrics
) -> None:
    rig.send("a", 1_000, misfire_ms=10)
    rig.run(rounds=2)
    rig.pass_time(5_000)
    rig.run(rounds=2)
    found = read(metrics.collect)
    assert (rig.pushed, found["expired"], found["dispatched"]) == ([], {("0",): 1}, {("0",): 0})


def test_a_standby_shows_no_shard(rig: Rig, sql_store: SqlStore) -> None:
    rig.run("tend")
    other = Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)
    holder = read(metrics_of(sql_store, rig.engine).collect)
    standby = read(metrics_of(sql_store, other).collect)
    assert (holder["holder"], standby["holder"]) == ({("0",): 1}, {("0",): 0})
    assert holder["lease_remaining_seconds"] == {("0",): rig.limits.lease_ms / 1_000}
    assert holder["wheel_queue_depth"] == {("0",): 0}
    assert holder["epoch"] == {("0",): 1}
    assert "pending" in holder
    for name in ("pending", "inbox_depth", "overdue"):
        assert name not in standby
    for name in ("epoch", "lease_remaining_seconds", "window_messages", "wheel_queue_depth"):
        assert standby[name] == {}


def test_the_wheel_queue_has_a_depth_and_an_age(rig: Rig, metrics: ProcessMetrics) -> None:
    rig.run("tend")
    rig.send("a", 1_000)
    rig.pass_time(250)
    rig.send("b", 1_000)
    found = read(metrics.collect)
    assert (found["wheel_queue_depth"], found["wheel_queue_age_seconds"]) == ({("0",): 2}, {("0",): 0.25})


@pytest.mark.parametrize("side", ["broker", "store"])
def test_a_standby_tells_that_a_server_does_not_answer(
    rig: Rig, sql_store: SqlStore, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokerError("no answer") if side == "broker" else StoreError("no answer")

    monkeypatch.setattr(*{"broker": (rig.broker, "depth"), "store": (sql_store.browse, "overview")}[side], fail)
    found = read(metrics_of(sql_store, Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)).collect)
    assert found["reachable"] == {("broker",): 1, ("store",): 1} | {(side,): 0}
    assert found["holder"] == {("0",): 0}


def test_a_broker_that_is_down_takes_its_own_metrics_away_and_no_other(
    rig: Rig, metrics: ProcessMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run("tend")

    def fail(shard: int) -> Peeked:
        raise BrokerError("no answer")

    monkeypatch.setattr(rig.broker, "depth", fail)
    found = read(metrics.collect)
    assert found["reachable"] == {("broker",): 0, ("store",): 1}
    assert "wheel_queue_depth" not in found
    assert "pending" in found
    assert found["holder"] == {("0",): 1}


def test_a_store_that_is_down_takes_its_totals_away_and_no_other(
    rig: Rig, metrics: ProcessMetrics, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run("tend")
    assert read(metrics.collect)["reachable"] == {("broker",): 1, ("store",): 1}

    def fail() -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(sql_store.browse, "schedule_counts", fail)
    found = read(metrics.collect)
    assert found["reachable"] == {("broker",): 1, ("store",): 0}
    assert "pending" not in found
    assert found["accepted"] == {("0",): 0}


def test_takeovers_and_errors_are_counted(rig: Rig, metrics: ProcessMetrics) -> None:
    rig.run("tend")
    rig.engine.stats.add(broker_errors=2, rollbacks=1)
    found = read(metrics.collect)
    assert found["takeovers"] == {("0",): 1}
    assert found["broker_rollbacks"] == {("0",): 1}
    assert found["errors"] == {("0", "broker"): 2, ("0", "store"): 0}
