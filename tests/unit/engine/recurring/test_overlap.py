"""Decisions about due instants, compared with a walk through all of them.

The overlap policies of a backfill, on the engine; see ``engine.recurring.overlap``.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.engine.recurring.overlap import MAX_COUNTED, Occupied, Times, decide, latest, skip
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Spec
from celery_wheel.recurring.definition import Definition, ScheduledCall
from celery_wheel.store.schedule_model import MISSED, Run, Schedule
from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig, definition

NOW = 1_700_000_000_000
MINUTE = 60_000

SPECS: list[Callable[[random.Random], Spec]] = [
    lambda rng: Interval(rng.choice((7, 100, 1_000, 90_000, 5_000_000))),
    lambda rng: Crontab(minute=rng.choice(("*", "*/7", "3"))),
    lambda rng: Instants(tuple(sorted({NOW + rng.randrange(-200_000, 200_000) for _ in range(20)} | {NOW + 10**7}))),
]


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_every_due_instant_is_made_or_skipped_once(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        compare_with_a_walk(seed)


def compare_with_a_walk(seed: int) -> None:
    rng = random.Random(seed)
    recurrence = Recurrence(rng.choice(SPECS)(rng))
    catch_up = rng.choice(("latest", "all", "none"))
    overlap = rng.choice(("allow", "allow", "skip", "queue_one", "cancel_running"))
    definition = Definition(
        recurrence, ScheduledCall("app.report"), catch_up, rng.choice((50_000, MINUTE * 60)), overlap
    )
    late_ms, ahead_ms = rng.choice((100, 10_000)), 0 if definition.is_guarded else rng.choice((0, 2_000))
    first = recurrence.next_after(NOW - rng.choice((0, 3, 500, 20_000, 200_000)))
    assert first is not None
    times = Times(NOW, NOW + ahead_ms, late_ms)
    if first > times.upto_ms:
        return
    running = {"task": Run(1)} if rng.random() < 0.3 else {}
    occupied = Occupied(running, rng.choice((-1, NOW - 50_000, NOW - 50)))
    most = rng.choice((1, 3, 10**6))
    decision = decide(Schedule(1, "name", "", "api", 1, first), first, definition, times, most, occupied)
    end = times.upto_ms if decision.next_ms is None else min(times.upto_ms, decision.next_ms - 1)
    due = list(recurrence.between(first - 1, end))
    skipped = [at_ms for one in decision.skips for at_ms in due if one.from_ms <= at_ms <= one.to_ms]
    assert sorted([*decision.make, *skipped]) == due
    for one in decision.skips:
        count = sum(one.from_ms <= at_ms <= one.to_ms for at_ms in due)
        assert one.count == count or (one.count == -MAX_COUNTED and count > MAX_COUNTED)
    assert len(decision.make) <= (1 if definition.is_guarded else most)
    assert all(at_ms <= times.upto_ms for at_ms in decision.make)
    if definition.is_guarded and running and overlap != "cancel_running":
        assert decision.make == []
    if catch_up == "none" and overlap != "queue_one":
        assert all(at_ms >= times.missed_before_ms for at_ms in decision.make)
    if catch_up == "latest" and overlap == "allow" and due[-1] <= NOW:
        assert decision.make, "the latest instant runs"


def test_the_latest_instant_is_found_by_halving() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        recurrence = Recurrence(rng.choice(SPECS)(rng))
        first = recurrence.next_after(NOW - 300_000)
        upto_ms = NOW + rng.randrange(100_000)
        assert first is not None
        if first <= upto_ms:
            assert latest(recurrence, first, upto_ms) == list(recurrence.between(first - 1, upto_ms))[-1], seed


@pytest.mark.parametrize(
    ("spec", "minutes", "count"),
    [
        (Crontab(), 359, 359),
        (Crontab(), 1_000, 1_000),
        (Crontab(), 1_001, -MAX_COUNTED),
        (Interval(1_000), 10_080, 10_079 * 60 + 1),
    ],
)
def test_the_instants_of_a_long_outage_are_counted(spec: Any, minutes: int, count: int) -> None:
    minute_ms = 60_000
    first = NOW - NOW % minute_ms
    assert skip(1, Recurrence(spec), first, (first + (minutes - 1) * minute_ms), MISSED, NOW).count == count


HOUR_MS = 3_600_000
#: Instants of a backfill; the schedule itself is due much later.
TIMES = {"from_ms": START_MS - 4 * HOUR_MS, "upto_ms": START_MS - HOUR_MS}
ALL = [-4 * HOUR_MS, -3 * HOUR_MS, -2 * HOUR_MS, -HOUR_MS]
RUNTIME_MS = 60_000


def backfill(rig: ScheduleRig, **more: Any) -> dict[str, Any]:
    return rig.change("backfill", ["report"], **TIMES, **more)["report"]


def due(rig: ScheduleRig) -> list[int]:
    """Return when the pending rows are due, in milliseconds after the start."""
    return sorted(row.due_ms - START_MS for _, row, _ in rig.store.runs_of([rig.schedule().id], True, 99))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlap", "ran", "ran_beside_a_run"),
    [
        ("allow", ALL, ALL),
        ("skip", ALL[:1], []),
        ("queue_one", ALL[:1], []),
        ("queue_all", ALL[:1], []),
        ("cancel_running", ALL[-1:], ALL[-1:]),
    ],
)
@pytest.mark.parametrize("own", ["the policy of the request", "the policy of the schedule"])
def test_the_policy_decides_which_instants_run(
    rig: ScheduleRig, overlap: str, ran: list[int], ran_beside_a_run: list[int], own: str
) -> None:
    is_own = own == "the policy of the schedule" and overlap != "queue_all"  # which only a request has
    schedule = rig.create(every_ms=HOUR_MS, overlap=overlap if is_own else "skip", max_runtime_ms=RUNTIME_MS)
    named = {} if is_own else {"overlap": overlap}
    answer = backfill(rig, **named)
    rig.run()
    assert rig.ran() == ran
    left_out = {"skip": 3, "queue_one": 2, "cancel_running": 3}.get(overlap, 0)
    assert answer.get("reason", "").endswith(f"leaves out {left_out} of 4 instants" if left_out else "")
    assert bool(answer.get("reason")) is bool(left_out)
    rig.tick(5 * RUNTIME_MS)
    assert rig.ran() == {"queue_one": [ALL[0], ALL[-1]], "queue_all": ALL}.get(overlap, ran)
    del rig.pushed[:]
    trigger = rig.change("trigger", ["report"])["report"]["task_ids"]
    rig.run()
    backfill(rig, **named)
    rig.run()
    assert rig.ran()[1:] == ran_beside_a_run
    assert rig.cancelled == (trigger if overlap == "cancel_running" else [])
    assert rig.schedule().made == schedule.made == 0


def test_queued_instants_run_when_the_run_before_them_ends(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, max_runtime_ms=RUNTIME_MS)
    assert len(backfill(rig, overlap="queue_all")["task_ids"]) == 4
    assert due(rig) == [0, RUNTIME_MS, 2 * RUNTIME_MS, 3 * RUNTIME_MS]
    reported = [json.loads(rig.message(run.timer_id).headers)["wheel_run"] for run in rig.runs()]
    assert reported == [run.timer_id for run in rig.runs()], "the schedule itself needs no reports"
    rig.run()
    assert rig.ran() == ALL[:1]
    rig.pass_time(5_000)
    rig.end(schedule, START_MS + ALL[0])
    rig.run()
    assert rig.ran() == ALL[:2]
    rig.end(schedule, START_MS + ALL[0])
    rig.run()
    assert rig.ran() == ALL[:2], "a report may come twice"
    rig.tick(3 * RUNTIME_MS - 5_100)
    assert rig.ran() == ALL[:3], "no end was reported: each is due when the run before it counts as over"
    rig.end(schedule, START_MS + ALL[1])
    rig.run()
    assert rig.ran() == ALL[:3], "that run was replaced by another"
    rig.tick(200)
    assert rig.ran() == ALL


def test_queued_instants_of_two_backfills_do_not_wait_for_each_other(rig: ScheduleRig) -> None:
    """The second backfill is due before the first, whose runs may take longer."""
    rig.create(every_ms=HOUR_MS, max_runtime_ms=HOUR_MS)
    backfill(rig, overlap="queue_all")
    rig.run()
    first, *_ = [run.timer_id for run in rig.runs()]
    rig.change("update", {"report": definition(HOUR_MS, max_runtime_ms=RUNTIME_MS)})
    backfill(rig, overlap="queue_all")
    rig.run()
    assert rig.ran() == [ALL[0], ALL[0]]
    rig.put("run_ended", run=first)
    rig.tick(200)
    assert rig.ran() == [ALL[0], ALL[0], ALL[1]]


def test_queued_instants_wait_for_a_run_of_the_schedule(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="queue_one", max_runtime_ms=RUNTIME_MS)
    for _ in range(2):
        rig.change("trigger", ["report"])
        rig.run()
        rig.pass_time(1_000)
    assert rig.ran() == [0, 1_000]
    backfill(rig)
    assert due(rig) == [1_000 + RUNTIME_MS], "when both runs are over at the latest"
    rig.end(schedule, START_MS)
    rig.run()
    assert len(rig.ran()) == 2, "the other run goes on"
    rig.end(schedule, START_MS + 1_000)
    rig.run()
    assert rig.ran()[2:] == ALL[-1:]
    rig.end(schedule, START_MS + ALL[-1])
    rig.tick(200)
    assert len(rig.ran()) == 3


def test_queued_instants_wait_for_a_run_that_is_overdue(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="queue_one", max_runtime_ms=RUNTIME_MS)
    rig.change("trigger", ["report"])
    rig.run()
    rig.put("pause", gates=["all:"], actor="ann", reason="test")
    rig.pass_time(1_000)
    rig.change("trigger", ["report"])
    rig.tick(1_000)
    backfill(rig)
    rig.end(schedule, START_MS)
    rig.run()
    queued = max(due(rig))
    assert queued >= 1_000 + RUNTIME_MS, "the other run has not begun"
    rig.put("resume", gates=["all:"], actor="ann", reason="test")
    rig.tick(1_000)
    assert rig.ran() == [0, 1_000]
    rig.end(schedule, START_MS + 1_000)
    rig.tick(200)
    assert rig.ran() == [0, 1_000, ALL[-1]]


def test_queued_instants_wait_for_a_run_within_its_jitter(rig: ScheduleRig) -> None:
    rig.create(every_ms=HOUR_MS, overlap="skip", max_runtime_ms=RUNTIME_MS, jitter_ms=50_000)
    rig.pass_time(HOUR_MS)
    rig.run()
    [own] = due(rig)
    assert own > HOUR_MS + 2_000
    ids = rig.change("trigger", ["report"])["report"]["task_ids"]
    rig.run()
    rig.change("backfill", ["report"], **TIMES, overlap="queue_all")
    assert due(rig)[1] == own + RUNTIME_MS
    [run] = [one for one in rig.runs() if one.requested and rig.message(one.timer_id).task_id in ids]
    rig.pass_time(1_000)
    rig.put("run_ended", run=run.timer_id)
    rig.run()
    rig.run()
    assert len(rig.ran()) == 1, "the schedule's own run is due in a moment"


def test_the_instants_of_the_schedule_itself_wait_for_queued_ones(rig: ScheduleRig) -> None:
    rig.create(every_ms=RUNTIME_MS, overlap="skip", max_runtime_ms=HOUR_MS)
    rig.change("backfill", ["report"], from_ms=START_MS - 2 * RUNTIME_MS, upto_ms=START_MS, overlap="queue_all")
    rig.tick(RUNTIME_MS)
    assert rig.ran() == [-2 * RUNTIME_MS]
    assert [reason for *_, reason in rig.skips()] == ["overlapped"]


def test_the_end_of_each_run_is_recorded_however_many_are_later(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="skip")
    first = START_MS - 100 * HOUR_MS
    rig.change("backfill", ["report"], from_ms=first, upto_ms=START_MS, overlap="allow")
    rig.run()
    rig.end(schedule, first)
    rig.run()
    assert [run.instant_ms for run in rig.runs() if run.ended_ms is not None] == [first]
