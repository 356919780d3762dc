"""Occurrences as the renderer gets them: due at the instant and its jitter, with the instant before.

A message that the project's code cannot make is tried again, with back-off; other schedules do not notice.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.engine.recurring.materialise import BROKEN_AFTER_MS
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.engine.state.agenda import FIRST_S, MOST_S
from celery_wheel.errors import BrokerError, RecurrenceError
from celery_wheel.recurring.definition import ALL, LATEST, NONE, Definition
from celery_wheel.store.model import Change, Message
from celery_wheel.store.schedule_model import RUN_ENDED_TASK, Run, RunReport, Schedule
from celery_wheel.worker.run_reports import reports_of
from tests.simulation.recurring_world import Renderer
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
    rig.engine.ctx.renderer = found
    return found


def test_an_occurrence_knows_the_instant_before_it(rig: ScheduleRig) -> None:
    seen = noting(rig)
    rig.create()
    rig.tick(2_000)
    made = [(one.instant_ms - START_MS, one.previous_ms and one.previous_ms - START_MS) for one in seen.occurrences]
    assert made == [(1_000, None), (2_000, 1_000), (3_000, 2_000), (4_000, 3_000)]
    rig.change("backfill", ["report"], from_ms=START_MS + 1_000, upto_ms=START_MS + 2_000)
    assert [one.previous_ms for one in seen.occurrences[4:]] == [None, START_MS + 1_000]
    assert {one.due_ms for one in seen.occurrences[4:]} == {rig.clock.now_ms()}


@pytest.mark.parametrize("do", ["update", "pause"])
def test_an_occurrence_names_no_withdrawn_instant_as_the_one_before_it(rig: ScheduleRig, do: str) -> None:
    seen = noting(rig)
    rig.create()
    rig.tick(1_500)
    assert [one.instant_ms - START_MS for one in seen.occurrences] == [1_000, 2_000, 3_000]
    if do == "update":
        rig.change("update", {"report": definition(700)})
    else:
        rig.change("pause", ["report"])
        rig.change("resume", ["report"])
    assert rig.outcomes() == ["cancelled", "cancelled"]
    rig.tick(100)
    assert seen.occurrences[3].previous_ms == START_MS + 1_000


def test_an_occurrence_keeps_its_id_when_its_commit_fails(rig: ScheduleRig) -> None:
    seen = noting(rig)
    rig.create(every_ms=2_500)
    rig.pass_time(1_000)
    rig.fail_once("before commit")
    rig.run("ingest", "tend", "ingest")
    assert [one.instant_ms - START_MS for one in seen.occurrences] == [2_500, 2_500]
    assert len({one.envelope_id for one in seen.occurrences}) == 1


def test_the_renderer_learns_of_a_queue_that_no_broker_has(rig: ScheduleRig) -> None:
    rig.create()
    rig.server.wrong_types.add("celery")
    rig.tick(2_000)
    assert set(rig.renderer.lost) == {"celery"}


@pytest.mark.parametrize("by", ["run", "name"])
def test_jitter_makes_a_run_due_later(rig: ScheduleRig, by: str) -> None:
    rig.create(every_ms=1_000, jitter_ms=700, jitter_by=by)
    rig.tick(20_000)
    late = [rig.message(run.timer_id).eta_ms - run.at_ms for run in rig.runs()]
    assert all(0 <= ms <= 700 for ms in late)
    assert (len(set(late)) == 1) is (by == "name")
    assert rig.made() == [1_000 * n for n in range(1, 23)], "the instants are those without jitter"
    assert sorted(rig.ran()) == rig.made()[:19] or sorted(rig.ran()) == rig.made()[:20]


def test_a_change_knows_an_occurrence_with_jitter_as_published(rig: ScheduleRig) -> None:
    """Due time goes back behind a published instant: the new definition begins after that instant."""
    rig.create(every_ms=10_000, jitter_ms=300, jitter_by="name")
    rig.tick(9_500)
    rig.run("dispatch", after_ms=900)
    assert rig.ran() == [10_000]
    [run] = rig.runs()
    assert rig.message(run.timer_id).eta_ms > run.at_ms
    rig.clock.step(-1_000)
    rig.engine.clock.accept()
    answer = rig.change("update", {"report": definition(5_000)})
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


def test_a_workers_report_ends_the_run_and_leaves_the_queue(rig: ScheduleRig) -> None:
    rig.create(overlap="skip")
    rig.tick(1_500)
    [run] = rig.runs()
    report(rig, {"run": run.timer_id})
    rig.run("ingest")
    assert [run.ended_ms for run in rig.runs()] == [START_MS + 1_500]
    assert not rig.server.keys.wheel
    rig.tick(1_000)
    assert rig.ran() == [1_000, 2_000]


def report(rig: ScheduleRig, body: object) -> Message:
    return rig.send("report", 0, task=RUN_ENDED_TASK, body=json.dumps(body).encode())


def test_the_message_of_a_run_whose_end_is_needed_has_the_id_of_its_row(rig: ScheduleRig) -> None:
    """A worker reports by this header; the rest is as the renderer has made it."""
    rig.create("guarded", overlap="skip")
    rig.create("free")
    rig.tick(1_500)
    found = {run.timer_id: json.loads(rig.message(run.timer_id).headers) for run in rig.runs()}
    of_schedule = {rig.schedule(name).id: name for name in ("guarded", "free")}
    for run in rig.runs():
        is_guarded = of_schedule[run.schedule or 0] == "guarded"
        assert list(found[run.timer_id]) == (["wheel_run"] if is_guarded else []) + ["wheel_occurrence"]
        assert found[run.timer_id].get("wheel_run", run.timer_id) == run.timer_id
        assert reports_of(found[run.timer_id]) == ([RunReport(run.timer_id)] if is_guarded else [])


def test_a_report_ends_no_other_run_of_the_instant(rig: ScheduleRig) -> None:
    """A backfill runs an instant for a second time, while the schedule's own run of it goes on."""
    schedule = rig.create(overlap="queue_one", every_ms=100_000, max_runtime_ms=1_000_000)
    rig.tick(100_500)
    [own] = rig.runs()
    instant_ms = START_MS + 100_000
    rig.change("backfill", ["report"], from_ms=instant_ms, upto_ms=instant_ms, overlap="allow")
    rig.run()
    assert [(run.schedule, run.instant_ms) for run in rig.runs()] == [(schedule.id, instant_ms)] * 2
    [requested] = [run for run in rig.runs() if run.requested]
    for one in reports_of(json.loads(rig.message(requested.timer_id).headers)):
        report(rig, json.loads(one.payload))
    rig.run("ingest")
    assert {run.timer_id: run.ended_ms for run in rig.runs()} == {
        own.timer_id: None,
        requested.timer_id: rig.clock.now_ms(),
    }
    rig.tick(100_000)
    assert rig.ran() == [100_000, 100_000], "the schedule waits for its own run"
    report(rig, {"run": own.timer_id})
    rig.tick(200)
    assert rig.ran() == [100_000, 100_000, 200_000]


def test_a_queued_instant_waits_for_the_run_before_it_in_its_backfill(rig: ScheduleRig) -> None:
    """The schedule's own run of the same instant ends earlier."""
    rig.create(overlap="queue_one", every_ms=100_000, max_runtime_ms=1_000_000)
    rig.tick(200_500)
    own, *_ = rig.runs()
    first_ms = START_MS + 100_000
    rig.change("backfill", ["report"], from_ms=first_ms, upto_ms=first_ms + 100_000, overlap="queue_all")
    ids = [run.timer_id for run in rig.runs() if run.requested]
    report(rig, {"run": own.timer_id})
    rig.tick(300)
    before = rig.ran()
    assert before == [100_000, 100_000], "the first one of the backfill waited for the schedule's own run"
    report(rig, {"run": own.timer_id})
    rig.tick(300)
    assert rig.ran() == before
    report(rig, {"run": ids[0]})
    rig.tick(300)
    assert rig.ran() == [*before, 200_000]


def test_a_late_report_of_an_earlier_backfill_releases_no_instant_of_a_later_one(rig: ScheduleRig) -> None:
    """Both backfills have a run of the same instant, and that of the earlier one took longer than its time."""
    rig.create(overlap="queue_one", every_ms=100_000, max_runtime_ms=10_000)
    rig.tick(250_500)
    for run in rig.runs():
        report(rig, {"run": run.timer_id})
        rig.run("ingest")
    first_ms = START_MS + 100_000
    rig.change("backfill", ["report"], from_ms=first_ms, upto_ms=first_ms, overlap="queue_all")
    rig.tick(11_000)
    rig.change("backfill", ["report"], from_ms=first_ms, upto_ms=first_ms + 100_000, overlap="queue_all")
    rig.run()
    early, running, queued = [run.timer_id for run in rig.runs() if run.requested]
    assert json.loads(rig.message(queued).headers)["wheel_after"] == running
    before = rig.ran()
    report(rig, {"run": early})
    rig.tick(300)
    assert rig.ran() == before
    report(rig, {"run": running})
    rig.tick(300)
    assert rig.ran() == [*before, 200_000]


def test_a_report_that_comes_twice_or_of_no_run_changes_nothing(rig: ScheduleRig) -> None:
    rig.create(overlap="skip")
    rig.tick(1_500)
    [run] = rig.runs()
    for id_ in (run.timer_id, run.timer_id, run.timer_id + 256, 2**63 - 1):
        report(rig, {"run": id_})
        rig.run("ingest")
        rig.pass_time(10)
    assert [run.ended_ms for run in rig.runs()] == [START_MS + 1_500]
    assert (rig.server.keys.wheel, rig.outcomes()) == ([], [])


def test_the_slot_of_a_group_ends_without_the_schedules_run(rig: ScheduleRig) -> None:
    """The task is retried: its group has room, and the schedule still waits for the run."""
    rig.create(overlap="skip")
    rig.tick(1_500)
    [run] = rig.runs()
    rig.send("other", 0)
    rig.run()
    [of_group] = [row_id for row_id in rig.data.rows if rig.task_id(row_id) == "other"]
    until_ms = START_MS + 9_000
    slots = [Run(id_, group="tenant:1", until_ms=until_ms) for id_ in (run.timer_id, of_group)]
    rig.store.apply(0, rig.state.epoch, Change(runs=slots))
    assert [one.timer_id for one in rig.store.open_runs(0, START_MS)] == sorted([run.timer_id, of_group])
    assert rig.store.open_runs(0, until_ms) == []
    for id_ in (run.timer_id, of_group):
        report(rig, {"slot": id_})
    rig.run("ingest")
    now_ms = rig.clock.now_ms()
    found = {one.timer_id: (one.until_ms, one.ended_ms) for one in rig.runs()}
    assert found == {run.timer_id: (now_ms, None), of_group: (until_ms, now_ms)}
    assert rig.store.open_runs(0, now_ms) == []
    rig.tick(1_000)
    assert rig.ran() == [1_000]
    report(rig, {"run": run.timer_id})
    rig.tick(1_000)
    assert rig.ran() == [1_000, 3_000]


def test_a_report_is_passed_on_to_the_shard_that_has_the_run_by_now(rig: ScheduleRig) -> None:
    """A resharding has moved the pending row, whose id still names its first shard."""
    rig.create(overlap="skip")
    rig.tick(1_500)
    [run] = rig.runs()
    data, other = rig.data, rig.store.disk.shard(1)
    other.rows[run.timer_id], other.runs[run.timer_id] = data.rows.pop(run.timer_id), data.runs.pop(run.timer_id)
    report(rig, {"run": run.timer_id})
    report(rig, {"slot": run.timer_id})
    rig.run("ingest")
    assert not rig.server.keys.wheel
    found = [(one.kind, json.loads(one.payload)) for one in rig.store.read_inbox(1, 9)]
    assert found == [("run_ended", {"run": run.timer_id}), ("run_ended", {"slot": run.timer_id})]


def test_a_report_that_was_changed_is_rejected_like_any_unreadable_message(rig: ScheduleRig) -> None:
    rig.create(overlap="skip")
    rig.tick(1_500)
    for body in ([], {"run": "x"}, {"slot": -1}):
        report(rig, body)
    [run] = rig.runs()
    sent = report(rig, {"run": run.timer_id})
    rig.run("ingest")
    assert rig.outcomes() == ["rejected"] * 3
    assert not rig.server.keys.wheel
    assert [run.ended_ms is None for run in rig.runs()] == [False], sent


def test_a_report_is_in_the_queue_until_it_is_committed(rig: ScheduleRig) -> None:
    rig.create(overlap="skip")
    rig.tick(1_500)
    report(rig, {"run": rig.runs()[0].timer_id})
    for step in rig.engine.ingest():
        ended = [run.ended_ms is not None for run in rig.runs()]
        assert ended == [True] or rig.server.keys.wheel, f"after {step}"
    assert ended == [True]


QUOTED = "4111 1111 1111 1111"


class Fault:
    """Raises an error for the schedules named "bad…", while it lasts, and notes when it was called."""

    def __init__(self, rig: ScheduleRig, error: Callable[[], Exception], took_ms: int = 0) -> None:
        self.lasts, self.tried_ms = True, list[int]()
        self._rig, self._error, self._took_ms = rig, error, took_ms
        rig.renderer.fault = self

    def __call__(self, schedule: Schedule) -> None:
        if self.lasts and schedule.name.startswith("bad"):
            self.tried_ms.append(self._rig.clock.now_ms() - START_MS)
            self._rig.clock.advance(self._took_ms)
            raise self._error()


def of_the_project() -> Exception:
    return LookupError(f"no card {QUOTED}")


def state(rig: ScheduleRig, name: str = "bad") -> tuple[bool, bool]:
    one = rig.schedule(name)
    return one.is_failing, one.broken


def test_an_error_of_the_project_is_tried_again_and_the_schedule_goes_on(rig: ScheduleRig) -> None:
    fault = Fault(rig, of_the_project)
    rig.create("good")
    rig.create("bad")
    rig.tick(5_500)
    assert state(rig) == (True, False)
    assert rig.schedule("bad").note == f"no message can be made: LookupError: no card {QUOTED}"
    assert rig.ran("good") == [1_000, 2_000, 3_000, 4_000, 5_000], "another schedule of the shard is not delayed"
    assert rig.ran("bad") == []
    assert len(fault.tried_ms) == rig.engine.stats.schedule_errors
    fault.lasts = False
    rig.tick(4_500)
    assert state(rig) == (False, False)
    assert (rig.schedule("bad").note, rig.schedule("bad").since_ms) == ("", None)
    assert rig.ran("bad") == [*range(1_000, 11_000, 1_000)], "none of these was ten seconds late"
    assert len(rig.state.failing) == 0


def test_the_waits_grow_up_to_a_minute_and_differ(rig: ScheduleRig) -> None:
    fault = Fault(rig, of_the_project)
    rig.create("bad", every_ms=60_000)
    rig.tick(600_000)
    waits = [late - early for early, late in zip(fault.tried_ms, fault.tried_ms[1:], strict=False)]
    assert FIRST_S * 500 <= waits[0] <= FIRST_S * 1_000 + 100
    assert max(waits) <= MOST_S * 1_000 + 100
    assert all(wait >= MOST_S * 500 for wait in waits[-5:])
    assert len(set(waits[-5:])) > 1


@pytest.mark.parametrize(
    ("catch_up", "more", "runs"),
    [
        (LATEST, {}, [600_000, 660_000]),
        (NONE, {}, [660_000]),
        (ALL, {"catch_up_ms": 300_000}, [360_000, 420_000, 480_000, 540_000, 600_000, 660_000]),
    ],
)
def test_instants_that_were_due_meanwhile_are_caught_up_as_after_an_outage(
    rig: ScheduleRig, catch_up: str, more: dict[str, int], runs: list[int]
) -> None:
    fault = Fault(rig, of_the_project)
    rig.create("bad", every_ms=60_000, catch_up=catch_up, **more)
    rig.tick(618_000)
    fault.lasts = False
    rig.tick(62_000)
    assert rig.ran("bad") == runs
    skips = rig.skips()
    assert (skips[0][0], skips[-1][1]) == (60_000, runs[0] - 60_000)
    assert sum(count for _, _, count, _ in skips) == runs[0] // 60_000 - 1
    assert {reason for *_, reason in skips} == {"missed"}


def test_a_schedule_that_fails_for_an_hour_is_broken(rig: ScheduleRig, caplog: pytest.LogCaptureFixture) -> None:
    fault = Fault(rig, of_the_project)
    rig.create("bad", every_ms=60_000)
    rig.tick(70_000)
    rig.pass_time(BROKEN_AFTER_MS - 70_000)
    rig.tick(1_000)
    assert state(rig) == (True, False)
    rig.tick(65_000 + 60_000)
    assert state(rig) == (False, True)
    assert rig.schedule("bad").next_ms is None
    assert len(rig.state.failing) == 0
    tries = len(fault.tried_ms)
    rig.tick(70_000)
    assert len(fault.tried_ms) == tries
    fault.lasts = False
    assert rig.change("resume", ["bad"]) == {"bad": {"result": "done"}}
    [(first, _, count, reason)] = rig.skips()
    assert (first, reason) == (60_000, "missed")
    assert count == 63
    assert QUOTED not in caplog.text, "an error may quote the arguments of the task"


def test_the_hour_goes_on_over_a_takeover(rig: ScheduleRig) -> None:
    Fault(rig, of_the_project)
    rig.create("bad", every_ms=60_000)
    rig.tick(58_500)
    since_ms = rig.schedule("bad").since_ms
    assert since_ms is not None
    rig.pass_time(BROKEN_AFTER_MS - 60_000)
    rig.engine = rig.new_engine("two")
    rig.run("tend")
    rig.tick(1_000)
    assert state(rig) == (True, False)
    assert rig.schedule("bad").since_ms == since_ms
    rig.tick(130_000)
    assert state(rig) == (False, True)


def test_an_error_that_no_try_can_heal_breaks_the_schedule_at_once(rig: ScheduleRig) -> None:
    Fault(rig, lambda: RecurrenceError("task_always_eager must be False"))
    rig.create("bad")
    rig.tick(100)
    assert state(rig) == (False, True)


def test_an_outage_breaks_no_schedule_and_ends_within_two_seconds(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault(rig, lambda: BrokerError("the result backend is away"))
    rig.create("bad", every_ms=60_000)
    rig.tick(70_000)
    rig.pass_time(BROKEN_AFTER_MS * 3)
    rig.tick(1_000)
    assert state(rig) == (False, False)
    assert rig.schedule("bad").note == ""
    assert rig.engine.stats.schedule_errors == 0
    fault.lasts = False
    rig.tick(2_200)
    assert len(rig.ran("bad")) == 1
    assert len(lines(caplog)) <= 3, "a line a minute"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if getattr(one, "action", "") == "schedule_waits"]
    return [one.getMessage() for one in found if one.levelno >= logging.WARNING]


def test_one_cause_is_logged_once_a_minute_without_the_text_of_the_error(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Fault(rig, of_the_project)
    rig.change("create", {f"bad{n}": definition(1_000) for n in range(20)})
    rig.tick(59_000)
    [line] = lines(caplog)
    assert "LookupError in " in line
    assert f"{__file__}, line " in line
    assert QUOTED not in caplog.text
    rig.tick(60_000)
    assert len(lines(caplog)) == 2
    assert "more times since" in lines(caplog)[-1]


@pytest.mark.parametrize("do", ["update", "pause", "delete"])
def test_a_change_forgets_the_failures_and_the_new_definition_is_tried_at_once(rig: ScheduleRig, do: str) -> None:
    fault = Fault(rig, of_the_project)
    rig.create("bad")
    rig.tick(30_000)
    assert len(rig.state.failing) == 1
    fault.lasts = False
    before = rig.clock.now_ms() - START_MS
    names: Any = {"bad": definition(1_000, args=[1])} if do == "update" else ["bad"]
    assert rig.change(do, names) == {"bad": {"result": "done"}}
    assert len(rig.state.failing) == 0
    rig.tick(1_100)
    if do == "update":
        assert rig.ran("bad")[0] == before + 1_000
        assert rig.schedule("bad").note == ""
    else:
        assert rig.ran("bad") == []
    if do == "pause":
        assert (rig.schedule("bad").note, state(rig)) == ("test", (False, False))
        rig.change("resume", ["bad"])
        assert sum(count for _, _, count, _ in rig.skips()) == before // 1_000 + 1


def test_slow_failures_keep_no_other_work_of_the_round_waiting(rig: ScheduleRig) -> None:
    """Each try ends with a time-out of five seconds: one of them in a round, not twenty."""
    fault = Fault(rig, of_the_project, took_ms=5_000)
    rig.change("create", {f"bad{n:02}": definition(60_000) for n in range(20)})
    rig.create("good", every_ms=1_000)
    rig.pass_time(58_500)
    began_ms = rig.clock.now_ms()
    rig.run("ingest")
    assert rig.clock.now_ms() - began_ms == 5_000
    assert len(fault.tried_ms) == 1
    for _ in range(19):
        rig.run("ingest")
    assert len(fault.tried_ms) >= 19, "the others are tried in the rounds that follow"
