"""The samples of a store and of a process: bounded labels, the shards that it holds, and servers that hang."""

import dataclasses
import itertools
import os
import threading
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits
from celery_wheel.engine.stats import OTHER
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.metrics import samples
from celery_wheel.metrics.samples import (
    MAX_GROUPS,
    MAX_QUEUES,
    NotAnswered,
    PatientCall,
    ProcessMetrics,
    Totals,
    store_metrics,
)
from celery_wheel.overview import COUNTING_SHARE, PacedCounts, read_overview
from celery_wheel.store.model import HOUR_MS, Gate, Unreadable
from celery_wheel.store.ports.pages import PAIRS, StoreSize
from celery_wheel.store.schedule_model import ScheduleCounts
from celery_wheel.store.sql.store import SqlStore
from tests.kit.counts import reads_of
from tests.kit.holder import LEASE, NOW, Holder, hour_of
from tests.kit.patience import patience
from tests.unit.engine.conftest import Rig
from tests.unit.metrics.conftest import read


def tallied(holder: Holder, *due_ms: int, **parts: Any) -> None:
    for row in holder.accept(*due_ms, **parts):
        holder.apply(tally={hour_of(row): 1})


def totals_of(store: SqlStore) -> Totals:
    return Totals(read_overview(store, NOW), store.browse.schedule_counts())


def values(store: SqlStore) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: dict(samples) for name, samples in totals_of(store).samples()}  # type: ignore[arg-type]


def test_pending_tasks_are_counted_by_queue_and_by_the_time_in_which_they_are_due(sql_store: SqlStore) -> None:
    tallied(Holder(sql_store), NOW + 1, NOW + 3 * HOUR_MS)
    tallied(Holder(sql_store, 1), NOW + 400 * 24 * HOUR_MS, queue="mail")
    found = values(sql_store)
    assert found["pending"] == {("celery",): 2, ("mail",): 1}
    assert found["due"] == {("1h",): 1, ("1d",): 2, ("7d",): 2, ("30d",): 2}
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 0}, {(): 0})


def test_overdue_tasks_are_counted_unless_a_pause_holds_them(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    tallied(holder, NOW - 60_000, NOW - 1_000, NOW + 1_000)
    found = values(sql_store)
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 2}, {(): 60})
    assert found["paused"] == {("all",): 0, ("queue",): 0, ("task",): 0, ("group",): 0}
    holder.apply(gates=[Gate("all", "", "paused", 0, "", "ann", NOW - 5)])
    found = values(sql_store)
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 0}, {(): 0})
    assert found["paused"] == {("all",): 1, ("queue",): 0, ("task",): 0, ("group",): 0}
    assert found["paused_since_timestamp_seconds"] == {("all",): (NOW - 5) / 1_000}


def test_the_fullest_second_of_the_next_hour_is_shown_once_the_seconds_are_counted(sql_store: SqlStore) -> None:
    holder, first = Holder(sql_store), totals_of(sql_store)
    tallied(holder, *[NOW - 1_000] * 4, *[NOW + 5_250] * 2, *[NOW + 9_000, NOW + 9_800, NOW + 9_900])
    found = dict(first.samples())
    assert (found["due_peak"], found["due_peak_timestamp_seconds"]) == ([], [])
    second = read_overview(sql_store, NOW, with_seconds=True, last=first.overview)
    found = dict(Totals(second, first.schedules).samples())
    assert found["due_peak"] == [((), 3)]
    assert found["due_peak_timestamp_seconds"] == [((), NOW / 1_000 + 9)]


def test_the_size_of_the_store_and_its_disk_and_the_objective_are_shown_by_a_scheduler(sql_store: SqlStore) -> None:
    size, disk = sql_store.browse.size(), os.statvfs(sql_store.name)
    assert size.bytes >= os.stat(sql_store.name).st_size > 0
    assert size.disk is not None
    assert size.disk.total == disk.f_blocks * disk.f_frsize
    found = dict(dataclasses.replace(totals_of(sql_store), size=size, objective_ms=1_500).samples())
    assert found["store_bytes"] == [((), size.bytes)]
    assert found["store_disk_bytes"] == [((), size.disk.total)]
    assert found["store_disk_free_bytes"] == [((), size.disk.free)]
    assert found["objective_seconds"] == [((), 1.5)]
    found = dict(dataclasses.replace(totals_of(sql_store), size=StoreSize(7, None)).samples())
    assert (found["store_bytes"], found["store_disk_free_bytes"]) == ([((), 7)], [])


def test_very_many_schedules_are_counted_the_more_rarely(sql_store: SqlStore) -> None:
    now_s, takes_s, counted = 0.0, 0.001, []

    def count() -> ScheduleCounts:
        nonlocal now_s
        now_s += takes_s
        counted.append(now_s)
        return sql_store.browse.schedule_counts()

    counts = PacedCounts(count, lambda: now_s)
    for takes_s in (0.001, 2.0):
        counted.clear()
        for _ in range(10_000):
            now_s += 0.1
            counts.get()
        between_s = [after - before for before, after in itertools.pairwise(counted[1:])]
        assert min(between_s) >= takes_s / COUNTING_SHARE
        assert max(between_s) <= max(1.0, takes_s / COUNTING_SHARE) + takes_s + 0.2


def test_items_of_the_inboxes_are_counted_by_shard_each_message_of_a_pack(sql_store: SqlStore) -> None:
    sql_store.put_inboxes({1: [("cancel", b""), ("messages", b"", 500)]})
    assert read(lambda: store_metrics(totals_of(sql_store)))["inbox_depth"] == {("0",): 0, ("1",): 501}


def test_the_smallest_of_very_many_queues_are_added_up(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    for n in range(MAX_QUEUES + 2):
        tallied(holder, *[NOW + 1] * (1 if n < 3 else 2), queue=f"q{n}")
    found = values(sql_store)["pending"]
    assert len(found) == MAX_QUEUES + 1
    assert found[OTHER,] == 2
    assert sum(found.values()) == 2 * (MAX_QUEUES + 2) - 3


def test_the_pending_tasks_of_the_smallest_of_very_many_pairs_are_added_up(sql_store: SqlStore) -> None:
    [row] = Holder(sql_store).accept(NOW + 1)
    Holder(sql_store).apply(tally={hour_of(row): PAIRS + 7})
    totals = totals_of(sql_store)
    overview = dataclasses.replace(totals.overview, names={("mail", f"app.n{n}"): 1 for n in range(PAIRS)})
    pending = dict(dataclasses.replace(totals, overview=overview).samples())["pending"]
    assert pending == [(("mail",), PAIRS), ((OTHER,), 7)]


def test_the_groups_with_the_most_waiting_tasks_have_a_sample_each(sql_store: SqlStore) -> None:
    holders = [Holder(sql_store, shard) for shard in range(2)]
    assert values(sql_store)["group_waiting"] == {}
    for n in (MAX_GROUPS, MAX_GROUPS + 5):
        names = ["", *[f"tenant:{i}" for i in range(1, n)]]
        # Tasks without a group wait in both shards; each shard has half of the others.
        for holder in holders:
            own = [name for i, name in enumerate(names) if i == 0 or i % 2 == holder.shard]
            figures = {"count": len(own), "waiting": 7 + 3 * len(own), "starving": [], "unreported": []}
            figures["largest"] = [[name, 10 if not name else 3, 1, [0]] for name in own]
            sql_store.renew(holder.shard, holder.epoch, NOW, LEASE, {"groups": figures})
        with reads_of(sql_store) as said:
            found = values(sql_store)["group_waiting"]
        assert not [one for one in said if "wheel_line" in one]
        assert found["-",] == 20
        assert len(found) == min(n, MAX_GROUPS + 1)
        assert sum(found.values()) == 20 + 3 * (n - 1)
    assert found[OTHER,] == 5 * 3


def test_a_process_without_engines_shows_the_counts_of_the_holders_snapshots(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    snapshot = {"accepted": 7, "rejected": 3, "rejected_unique": 1, "window_count": 5, "window_bytes": 600}
    snapshot |= {"clock_skew_ms": -250, "clock_disputed_ms": 0}
    sql_store.renew(0, holder.epoch, NOW - 700, LEASE, snapshot)
    found = read(lambda: store_metrics(totals_of(sql_store)))
    assert found["accepted"] == {("0",): 7}
    assert found["rejected"] == {
        ("0", "unreadable"): 0,
        ("0", "signature"): 0,
        ("0", "unique"): 1,
        ("0", "destination"): 0,
        ("0", "broker"): 2,
    }
    assert found["holder"] == {("0",): 1, ("1",): 0}
    assert found["window_messages"] == {("0",): 5}
    assert found["clock_skew_seconds"] == {("0",): -0.25}


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
    rig.run(rounds=2, after_ms=1_003)
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
    rig.send("c", 0, queue="evil", routing_key="evil")
    rig.engine.ctx.limits = Limits(refusal=lambda route: "no" if route.queue == "evil" else "")
    rig.run(rounds=3)
    assert read(metrics.collect)["rejected"] == rejected(unreadable=1, unique=1, destination=1)


def rejected(**counts: int) -> dict[tuple[str, str], int]:
    return {
        ("0", cause): counts.get(cause, 0) for cause in ("unreadable", "unique", "signature", "destination", "broker")
    }


def test_a_message_too_late_for_its_misfire_option_is_counted_as_expired(rig: Rig, metrics: ProcessMetrics) -> None:
    rig.send("a", 1_000, misfire_ms=10)
    rig.run(rounds=2)
    rig.run(rounds=2, after_ms=5_000)
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
    fails = mock.Mock(side_effect=BrokerError("no answer") if side == "broker" else StoreError("no answer"))
    monkeypatch.setattr(*{"broker": (rig.broker, "depth"), "store": (sql_store.browse, "overview")}[side], fails)
    found = read(metrics_of(sql_store, Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)).collect)
    assert found["reachable"] == {("broker",): 1, ("store",): 1} | {(side,): 0}
    assert found["holder"] == {("0",): 0}


def test_a_broker_that_is_down_takes_its_own_metrics_away_and_no_other(
    rig: Rig, metrics: ProcessMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run("tend")
    monkeypatch.setattr(rig.broker, "depth", mock.Mock(side_effect=BrokerError("no answer")))
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
    monkeypatch.setattr(sql_store.browse, "schedule_counts", mock.Mock(side_effect=StoreError("no answer")))
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


def test_a_call_that_hangs_is_made_once_and_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ANSWER_S", 0.01)
    release, calls = threading.Event(), []

    def hang() -> str:
        calls.append(1)
        release.wait()
        return "answer"

    call = PatientCall("the store", hang)
    for _ in range(3):
        call.begin()
        with pytest.raises(NotAnswered, match="the store has not answered"):
            call.result()
    monkeypatch.setattr(samples, "ANSWER_S", patience())
    release.set()
    assert call.result() == "answer"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "told"), [(StoreError("gone"), NotAnswered("the store does not answer: gone")), (KeyError("x"),) * 2]
)
def test_an_error_of_the_server_is_told_and_a_defect_is_raised(error: Exception, told: Exception) -> None:
    call = PatientCall("the store", mock.Mock(side_effect=error))
    call.begin()
    with pytest.raises(type(told)) as raised:
        call.result()
    assert str(raised.value) == str(told)
