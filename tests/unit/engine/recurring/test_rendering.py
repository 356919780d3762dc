"""Occurrences as the renderer gets them: due at the instant and its jitter, with the instant before."""

from __future__ import annotations

import json
import logging

import pytest

from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import RUN_ENDED_TASK, Schedule
from tests.simulation.rendering import Renderer
from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig, definition


class Noting(Renderer):
    """Keeps the occurrences that it renders; ``away`` is how often its result backend does not answer."""

    def __init__(self, away: int = 0) -> None:
        super().__init__()
        self.away = away
        self.occurrences: list[Occurrence] = []

    def render(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        if self.away:
            self.away -= 1
            raise BrokerError("the result backend is away")
        self.occurrences.append(occurrence)
        return super().render(schedule, definition, occurrence)


def noting(rig: ScheduleRig, away: int = 0) -> Noting:
    found = Noting(away)
    rig.engine._ctx.renderer = found
    return found


def test_an_occurrence_knows_the_instant_before_it(rig: ScheduleRig) -> None:
    seen = noting(rig)
    rig.create()
    rig.tick(2_000)
    made = [(one.instant_ms - START_MS, one.previous_ms and one.previous_ms - START_MS) for one in seen.occurrences]
    assert made == [(1_000, None), (2_000, 1_000), (3_000, 2_000), (4_000, 3_000)]
    rig.ask("backfill", ["report"], from_ms=START_MS + 1_000, upto_ms=START_MS + 2_000)
    assert [one.previous_ms for one in seen.occurrences[4:]] == [None, START_MS + 1_000]
    assert {one.due_ms for one in seen.occurrences[4:]} == {rig.clock.now_ms()}


def test_an_occurrence_keeps_its_id_when_its_commit_fails(rig: ScheduleRig) -> None:
    seen, faults = noting(rig), ["before commit"]
    rig.create(every_ms=2_500)
    rig.pass_time(1_000)

    def fault(at: str) -> None:
        if at in faults:
            faults.remove(at)
            raise StoreError("no answer")

    rig.store.fault = fault
    rig.run("ingest", "tend", "ingest")
    assert faults == []
    assert [one.instant_ms - START_MS for one in seen.occurrences] == [2_500, 2_500]
    assert len({one.envelope_id for one in seen.occurrences}) == 1


@pytest.mark.parametrize("by", ["run", "name"])
def test_jitter_makes_a_run_due_later(rig: ScheduleRig, by: str) -> None:
    rig.create(every_ms=1_000, jitter_ms=700, jitter_by=by)
    rig.tick(20_000)
    late = [rig.message(run.timer_id).eta_ms - run.instant_ms for run in rig.runs()]
    assert all(0 <= ms <= 700 for ms in late)
    assert (len(set(late)) == 1) is (by == "name")
    assert rig.made() == [1_000 * n for n in range(1, 23)], "the instants are those without jitter"
    assert sorted(rig.ran()) == rig.made()[:19] or sorted(rig.ran()) == rig.made()[:20]


def test_a_change_knows_an_occurrence_with_jitter_as_published(rig: ScheduleRig) -> None:
    """Due time goes back behind a published instant: the new definition begins after that instant."""
    rig.create(every_ms=10_000, jitter_ms=300, jitter_by="name")
    rig.tick(9_500)
    rig.pass_time(900)
    rig.run("dispatch")
    assert rig.ran() == [10_000]
    [run] = rig.runs()
    assert rig.message(run.timer_id).eta_ms > run.instant_ms
    rig.clock.step(-1_000)
    rig.engine.clock.accept()
    answer = rig.ask("update", {"report": definition(5_000)})
    assert answer == {"report": {"result": "done", "too_late": [START_MS + 10_000]}}
    assert (rig.made(), rig.next_ms()) == ([10_000], 15_000), "it is not made a second time"


def test_a_renderer_without_its_result_backend_is_tried_again_and_no_other_schedule_waits(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    seen = noting(rig, away=1)
    rig.create("first", every_ms=3_000)
    rig.create("second", every_ms=3_000)
    with caplog.at_level(logging.WARNING):
        rig.tick(3_500)
    assert (rig.ran("first"), rig.ran("second")) == ([3_000], [3_000])
    assert not rig.schedule("first").broken
    assert [one.getMessage() for one in caplog.records] == [
        "shard 0: the message of schedule first cannot be made, and is tried again: the result backend is away"
    ]
    assert seen.away == 0


# -- the end of a run, by the wheel queue ------------------------------------------------------------------


def report(rig: ScheduleRig, body: object) -> Message:
    return rig.send("report", 0, task=RUN_ENDED_TASK, body=json.dumps(body).encode())


def test_a_workers_report_ends_the_run_and_leaves_the_queue(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(1_500)
    report(rig, {"schedule": schedule.id, "instant_ms": START_MS + 1_000})
    rig.run("ingest")
    assert [run.ended_ms for run in rig.runs()] == [START_MS + 1_500]
    assert not rig.server.keys.wheel
    rig.tick(1_000)
    assert rig.ran() == [1_000, 2_000]


def test_a_report_that_comes_twice_or_of_no_run_changes_nothing(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(1_500)
    for instant_ms in (1_000, 1_000, 7):
        report(rig, {"schedule": schedule.id, "instant_ms": START_MS + instant_ms})
        rig.run("ingest")
        rig.pass_time(10)
    report(rig, {"schedule": 12, "instant_ms": 5})
    rig.run("ingest")
    assert [run.ended_ms for run in rig.runs()] == [START_MS + 1_500]
    assert (rig.server.keys.wheel, rig.outcomes()) == ([], [])


def test_a_report_that_was_changed_is_rejected_like_any_unreadable_message(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(1_500)
    for body in ([], {"schedule": "x"}, {"schedule": schedule.id, "instant_ms": -1}):
        report(rig, body)
    sent = report(rig, {"schedule": schedule.id, "instant_ms": START_MS + 1_000})
    rig.run("ingest")
    assert rig.outcomes() == ["rejected"] * 3
    assert not rig.server.keys.wheel
    assert [run.ended_ms is None for run in rig.runs()] == [False], sent


def test_a_report_is_in_the_queue_until_it_is_committed(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(1_500)
    report(rig, {"schedule": schedule.id, "instant_ms": START_MS + 1_000})
    round_ = rig.engine.ingest()
    for step in round_:
        ended = [run.ended_ms is not None for run in rig.runs()]
        assert ended == [True] or rig.server.keys.wheel, f"after {step}"
    assert ended == [True]
