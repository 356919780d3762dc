"""The overlap policies of a backfill, on the engine; see ``engine.recurring.backfill``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig

HOUR_MS = 3_600_000
#: Instants of a backfill; the schedule itself is due much later.
TIMES = {"from_ms": START_MS - 4 * HOUR_MS, "upto_ms": START_MS - HOUR_MS}
ALL = [-4 * HOUR_MS, -3 * HOUR_MS, -2 * HOUR_MS, -HOUR_MS]
RUNTIME_MS = 60_000


def backfill(rig: ScheduleRig, **more: Any) -> dict[str, Any]:
    return rig.ask("backfill", ["report"], **TIMES, **more)["report"]


def due(rig: ScheduleRig) -> list[int]:
    """Return when the pending rows are due, in milliseconds after the start."""
    return sorted(row.due_ms - START_MS for _, (_, row) in rig.store.runs_of(0, [rig.schedule().id], True, 99))


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
    trigger = rig.ask("trigger", ["report"])["report"]["task_ids"]
    rig.run()
    backfill(rig, **named)
    rig.run()
    assert rig.ran()[1:] == ran_beside_a_run
    assert rig.cancelled == (trigger if overlap == "cancel_running" else [])
    assert rig.schedule().made == schedule.made == 0


def test_queued_instants_run_when_the_run_before_them_ends(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, max_runtime_ms=RUNTIME_MS)
    answer = backfill(rig, overlap="queue_all")
    assert len(answer["task_ids"]) == 4
    assert due(rig) == [0, RUNTIME_MS, 2 * RUNTIME_MS, 3 * RUNTIME_MS]
    headers = [json.loads(rig.message(run.timer_id).headers)["wheel_occurrence"] for run in rig.runs()]
    assert [one["report"] for one in headers] == [True] * 4, "the schedule itself needs no reports"
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


def test_queued_instants_wait_for_a_run_of_the_schedule(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="queue_one", max_runtime_ms=RUNTIME_MS)
    for _ in range(2):
        rig.ask("trigger", ["report"])
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


def test_a_queued_instant_that_was_replaced_holds_up_no_later_one(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="skip", max_runtime_ms=RUNTIME_MS)
    backfill(rig, overlap="queue_all")
    rig.run()
    replaced = backfill(rig, overlap="cancel_running")
    rig.run()
    assert len(rig.cancelled) == 4, "their cancels have not arrived"
    rig.pass_time(1_000)
    queued = backfill(rig, overlap="queue_one")
    rig.end(schedule, int(replaced["task_ids"][0].split()[1]))
    rig.run()
    assert rig.pushed[-1] == queued["task_ids"][0]


def test_the_instants_of_the_schedule_itself_wait_for_queued_ones(rig: ScheduleRig) -> None:
    rig.create(every_ms=RUNTIME_MS, overlap="skip", max_runtime_ms=HOUR_MS)
    rig.ask("backfill", ["report"], from_ms=START_MS - 2 * RUNTIME_MS, upto_ms=START_MS, overlap="queue_all")
    rig.tick(RUNTIME_MS)
    assert rig.ran() == [-2 * RUNTIME_MS]
    assert [reason for *_, reason in rig.skips()] == ["overlapped"]


def test_the_end_of_each_run_is_recorded_however_many_are_later(rig: ScheduleRig) -> None:
    schedule = rig.create(every_ms=HOUR_MS, overlap="skip")
    first = START_MS - 100 * HOUR_MS
    rig.ask("backfill", ["report"], from_ms=first, upto_ms=START_MS, overlap="allow")
    rig.run()
    rig.end(schedule, first)
    rig.run()
    assert [run.instant_ms for run in rig.runs() if run.ended_ms is not None] == [first]


def test_an_unknown_policy_is_kept_as_rejected(rig: ScheduleRig) -> None:
    rig.create()
    item = {"do": "backfill", "names": ["report"], **TIMES, "overlap": "explode"}
    rig.store.put_inbox(0, [("schedule", json.dumps(item).encode())])
    rig.run("ingest", rounds=2)
    assert rig.outcomes() == ["rejected"]
