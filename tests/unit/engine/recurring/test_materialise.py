"""Schedules become rows: ahead of their time, once, with their step, run and skips. Ingest waits for the next one,
and a herd of schedules keeps no other task waiting.
"""

import sys
from unittest import mock

import pytest

from celery_wheel.engine.recurring.materialise import occurrence_id
from celery_wheel.engine.round import Round
from celery_wheel.engine.runner import AT_ONCE, Runner
from celery_wheel.engine.state.agenda import EARLY_MS, LOOK_MS, NEVER, Agenda
from celery_wheel.engine.state.lane import MAIN
from celery_wheel.recurring import calendars
from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig, definition, with_limits


def test_occurrences_are_accepted_ahead_and_published_at_their_instants(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    rig.run()
    assert rig.made() == [1_000, 2_000]
    assert rig.pushed == []
    rig.tick(3_000)
    assert rig.ran() == [1_000, 2_000, 3_000]
    assert rig.made() == [1_000, 2_000, 3_000, 4_000, 5_000]
    schedule = rig.schedule()
    assert (schedule.made, schedule.last_ms, rig.next_ms()) == (5, START_MS + 5_000, 6_000)
    assert all(rig.message(run.timer_id).eta_ms == run.instant_ms for run in rig.runs())


def test_a_message_with_the_id_of_an_occurrence_takes_no_occurrences_place(rig: ScheduleRig) -> None:
    """Also where the secret of the store is known, and so each id of each coming occurrence."""
    schedule = rig.create(every_ms=1_000)
    later = range(START_MS + 3_000, START_MS + 20_000, 1_000)
    ids = [occurrence_id(rig.store, schedule, at_ms) for at_ms in later]
    for at_ms, id_ in zip(later, ids, strict=True):
        rig.send(f"report {at_ms}", 86_400_000, envelope_id=id_)
    rig.send("again", 86_400_000, envelope_id=ids[0])
    rig.tick(20_000)
    assert rig.ran() == [*range(1_000, 20_001, 1_000)]
    assert rig.schedule().made == len(rig.runs())
    assert sum(stored.message.envelope_id in ids for stored in rig.data.rows.values()) == len(ids)


def test_a_schedule_without_a_renderer_waits(rig: ScheduleRig) -> None:
    rig.engine.ctx.renderer = None
    rig.create()
    rig.tick(3_000)
    assert rig.made() == []
    assert rig.engine.ingest_wait_ms() == NEVER


def test_a_takeover_goes_on_where_the_former_holder_was(rig: ScheduleRig) -> None:
    rig.create()
    rig.tick(1_500)
    rig.pass_time(2_000)
    rig.engine = rig.new_engine("two")
    rig.tick(2_500)
    assert rig.ran() == [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_a_commit_without_an_answer_makes_no_second_row(rig: ScheduleRig, point: str) -> None:
    rig.create(every_ms=2_500)
    rig.pass_time(1_000)
    rig.fail_once(point)
    assert rig.run("ingest") is Round.FAILED
    rig.tick(4_000)
    assert rig.ran() == [2_500, 5_000]


def test_the_limit_of_times_ends_a_schedule(rig: ScheduleRig) -> None:
    rig.create(recurrence={"times": 2})
    rig.tick(4_000)
    assert rig.ran() == [1_000, 2_000]
    assert rig.next_ms() is None


def test_a_herd_is_made_in_several_rounds() -> None:
    rig = with_limits(occurrence_count=10)
    names = [f"n{number}" for number in range(25)]
    rig.change("create", {name: definition(3_000) for name in names})
    rig.pass_time(1_500)
    for made in (10, 20, 25, 25):
        rig.run("ingest")
        assert len(rig.runs()) == made


def test_schedules_that_wait_keep_none_behind_them_from_being_read() -> None:
    rig = with_limits(occurrence_count=5)
    rig.change("create", {f"guarded{n}": definition(2_500, overlap="skip") for n in range(20)})
    rig.change("create", {"free": definition(2_600)})
    rig.pass_time(1_000)
    for _ in range(6):
        rig.run("ingest")
    assert rig.made() == [2_600]


def test_ingest_waits_no_longer_than_until_the_next_schedule_is_due(rig: ScheduleRig) -> None:
    rig.create(every_ms=2_700)
    rig.run("ingest")
    assert rig.engine.ingest_wait_ms() == 700
    rig.pass_time(700)
    assert rig.engine.ingest_wait_ms() == 0
    rig.run("ingest", rounds=2)
    assert rig.made() == [2_700]
    assert rig.engine.ingest_wait_ms() == LOOK_MS


NESTED = '{"kind":"except","calendar":' * 50_000 + '{"kind":"weekdays","days":["sat"]}' + "}" * 50_000
DAILY = '{"task":"a","recurrence":{"kind":"recurrence","spec":{"kind":"interval","every_ms":86400000},"without":%s}}'


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"spec": "of a later version"}', "spec must be a field of a definition"),
        (DAILY % NESTED, "the definition must be "),
        (DAILY % '{"kind":"holidays","country":"DE"}', "recurrence: calendars of holidays need holidays"),
    ],
    ids=["version", "depth", "package"],
)
def test_a_definition_that_cannot_be_read_stops_its_schedule(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch, text: str, note: str
) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)  # not installed here
    calendars._countries.cache_clear()
    rig.create("good")
    rig.create("bad")
    for one in rig.data.schedules.values():
        one.definition = text if one.name == "bad" else one.definition
    rig.tick(1_000)
    assert rig.ran("good") == [1_000]
    assert rig.schedule("bad").broken
    assert rig.schedule("bad").note.startswith(note)


def after_an_outage(catch_up: dict[str, object], every_ms: int = 10_000, ms: int = 65_000) -> ScheduleRig:
    rig = with_limits()
    rig.create(every_ms=every_ms, **catch_up)
    rig.take_over(after_ms=ms)
    rig.tick(0)
    return rig


@pytest.mark.parametrize(
    ("catch_up", "every_ms", "ms", "made", "skips"),
    [
        ({}, 10_000, 65_000, [60_000], [(10_000, 50_000, 5, "missed")]),
        ({}, 25_000, 72_000, [50_000], [(25_000, 25_000, 1, "missed")]),
        (
            {"catch_up": "all", "catch_up_ms": 35_000},
            10_000,
            65_000,
            [30_000, 40_000, 50_000, 60_000],
            [(10_000, 20_000, 2, "missed")],
        ),
        ({"catch_up": "none"}, 25_000, 72_000, [], [(25_000, 50_000, 2, "missed")]),
    ],
    ids=["an instant that is on time stands for all", "the latest runs", "all of a window run", "none runs"],
)
def test_the_catch_up_decides_after_an_outage(
    catch_up: dict[str, object], every_ms: int, ms: int, made: list[int], skips: list[tuple[int, int, int, str]]
) -> None:
    rig = after_an_outage(catch_up, every_ms, ms)
    assert (rig.made(), rig.skips()) == (made, skips)
    assert rig.ran() == [at_ms for at_ms in made if at_ms <= ms]
    assert rig.next_ms() == every_ms * (ms // every_ms + 1)


def test_a_long_outage_costs_no_walk_through_its_instants() -> None:
    rig = after_an_outage({}, every_ms=1, ms=10**9)
    assert rig.skips() == [(101, 10**9 - 10_001, 10**9 - 10_101, "missed")]
    assert rig.made()[100:] == [10**9 - 10_000 + n for n in range(100)]


def test_skip_waits_for_the_end_of_the_run(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(900)
    assert rig.made() == [], "a guarded schedule is made at its instant"
    rig.tick(2_300)
    assert rig.ran() == [1_000]
    assert rig.skips() == [(2_000, 2_000, 1, "overlapped"), (3_000, 3_000, 1, "overlapped")]
    rig.end(schedule, START_MS + 1_000)
    rig.tick(1_000)
    assert rig.ran() == [1_000, 4_000]


def test_queue_one_runs_the_latest_instant_when_the_run_is_over(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="queue_one")
    rig.tick(3_500)
    assert rig.ran() == [1_000]
    assert rig.skips() == [(2_000, 2_000, 1, "overlapped")]
    assert rig.next_ms() == 3_000
    rig.end(schedule, START_MS + 1_000)
    rig.state.agenda.reopen()  # the schedules are read in the round that ends the run, and again after it
    rig.run(rounds=3)
    assert rig.ran() == [1_000, 3_000]


def test_queue_one_runs_an_instant_that_was_queued_for_long_whatever_the_catch_up() -> None:
    rig = with_limits(late_ms=1_000)
    schedule = rig.create(every_ms=60_000, overlap="queue_one", catch_up="none")
    rig.tick(140_000)
    assert rig.ran() == [60_000]
    rig.end(schedule, START_MS + 60_000)
    rig.run(rounds=3)
    assert rig.ran() == [60_000, 120_000]


def test_cancel_running_hands_over_the_earlier_run_once(rig: ScheduleRig) -> None:
    rig.create(overlap="cancel_running")
    rig.tick(3_100)
    assert rig.ran() == [1_000, 2_000, 3_000]
    assert rig.cancelled == rig.pushed[:2]


def test_a_run_without_an_end_is_over_after_its_longest_time(rig: ScheduleRig) -> None:
    rig.create(overlap="skip", max_runtime_ms=2_500)
    rig.tick(4_100)
    assert rig.ran() == [1_000, 4_000]


def test_a_run_that_was_cancelled_is_over(rig: ScheduleRig) -> None:
    rig.put("pause", gates=["queue:celery"])
    rig.create(overlap="skip")
    rig.tick(2_500)
    [run] = rig.runs()
    rig.put("cancel", task_ids=[rig.task_id(run.timer_id)])
    rig.tick(1_000)
    assert rig.made() == [1_000, 3_000]


def test_a_pending_run_is_not_over_however_late_it_is(rig: ScheduleRig) -> None:
    rig.put("pause", gates=["queue:celery"])
    rig.create(overlap="skip", max_runtime_ms=1_000)
    rig.tick(5_000)
    assert rig.made() == [1_000]


def test_a_takeover_knows_the_runs_that_are_not_over(rig: ScheduleRig) -> None:
    schedule = rig.create(overlap="skip")
    rig.tick(1_500)
    rig.take_over(after_ms=2_100)
    rig.tick(600)
    assert rig.ran() == [1_000]
    rig.end(schedule, START_MS + 1_000)
    rig.run(rounds=2)
    rig.take_over("three", after_ms=2_100)
    rig.tick(300)
    assert rig.ran() == [1_000, 6_000]


@pytest.mark.parametrize("schedule_ms", [NEVER, 0, 7, 900])
@pytest.mark.parametrize("listens", [True, False])
def test_ingest_waits_for_the_next_schedule_or_the_poll(rig: ScheduleRig, schedule_ms: int, listens: bool) -> None:
    rig.run("tend", "ingest")
    [jobs] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    if listens:
        steps = rig.engine.listen()
        assert next(steps) == "listens"
    with mock.patch.object(rig.engine, "ingest_wait_ms", return_value=schedule_ms):
        assert jobs._after_ingest(Round.BUSY, 1.0) == AT_ONCE
        wait = jobs._after_ingest(Round.IDLE, 0.0)
    assert wait.least_s == 0
    assert wait.most_s == (schedule_ms if listens else min(50, schedule_ms)) / 1_000


def test_an_agenda_is_read_again_soon_whatever_due_time_does() -> None:
    agenda = Agenda()
    assert agenda.is_time(0, 0)
    agenda.read(None, 100, 0)
    assert agenda.wait_ms(10**9, 100) == LOOK_MS
    assert not agenda.is_time(10**12, 100 + LOOK_MS - EARLY_MS - 1)
    assert agenda.is_time(0, 100 + LOOK_MS - EARLY_MS)
    agenda.read(5_000, 200, 0)
    assert agenda.wait_ms(4_300, 200) == 700
    assert agenda.is_time(5_000, 200)
    agenda.read(None, 200, 0)
    agenda.reopen()
    assert agenda.is_time(0, 200)


#: 20 schedules are begun 2 · 16 s before their time, one in a round.
SLOWLY = {"herd_count": 2, "herd_per_s": 1}
NAMES = [f"n{number}" for number in range(20)]
DUE_MS = 100_000


def herd(**policies: object) -> ScheduleRig:
    rig = with_limits(**SLOWLY)
    rig.change("create", {name: definition(DUE_MS, **policies) for name in NAMES})
    return rig


def rounds(rig: ScheduleRig, count: int) -> None:
    for _ in range(count):
        rig.run("tend", "ingest")
        rig.pass_time(50)


def lanes_of_runs(rig: ScheduleRig) -> set[int]:
    rows = rig.data.rows
    return {rows[run.timer_id].row.lane for run in rig.runs()}


def test_a_herd_is_made_ahead_one_round_after_the_other() -> None:
    rig = herd()
    rig.pass_time(60_000)
    rounds(rig, 40)
    assert rig.runs() == []
    rig.pass_time(10_000)
    rounds(rig, 5)
    assert len(rig.runs()) == 5
    rig.run("ingest", rounds=3)  # at once: no time has passed since the last round
    assert len(rig.runs()) <= 6
    rounds(rig, 40)
    assert rig.made() == [DUE_MS] * 20
    assert rig.pushed == []
    rig.run(rounds=3, after_ms=DUE_MS)
    assert len(rig.pushed) == 20


def test_a_few_schedules_are_no_herd(rig: ScheduleRig) -> None:
    rig.change("create", {name: definition(DUE_MS) for name in NAMES})
    rig.pass_time(DUE_MS - 3_500)
    rounds(rig, 20)
    assert rig.runs() == []
    rounds(rig, 20)
    assert lanes_of_runs(rig) == {MAIN}


def test_a_task_that_is_due_meanwhile_does_not_wait_for_the_herd() -> None:
    rig = herd()
    rig.engine.ctx.limits = with_limits(**SLOWLY, chunk_count=1).engine.ctx.limits
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert len(rig.runs()) == 20
    rig.send("other", DUE_MS + 10 - 75_000)
    rig.run("ingest")
    assert MAIN not in lanes_of_runs(rig)
    rig.run("tend", "prefetch", "dispatch", "settle", rounds=4, after_ms=25_020)
    assert "other" in rig.pushed
    assert len(rig.pushed) < 20


def test_an_update_withdraws_an_occurrence_that_was_made_ahead() -> None:
    rig = herd()
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert rig.change("update", {"n7": definition(101_000)}) == {"n7": {"result": "done"}}
    assert rig.change("pause", ["n8"]) == {"n8": {"result": "done"}}
    assert rig.outcomes() == ["cancelled", "cancelled"]
    rig.tick(30_000)
    assert (rig.ran("n7"), rig.ran("n8"), rig.ran("n9")) == ([101_000], [], [DUE_MS])


@pytest.mark.parametrize(
    ("name", "policies", "look_ahead"), [("guarded", {"overlap": "skip"}, False), ("watched", {}, True)]
)
def test_schedules_that_wait_for_their_instant_or_look_ahead_keep_no_herd_behind_them(
    name: str, policies: dict[str, str], look_ahead: bool
) -> None:
    """A guarded schedule is made at its instant, and one whose renderings are watched at its look-ahead."""
    rig = with_limits(**SLOWLY)
    rig.change("create", {f"{name}{n}": definition(DUE_MS, **policies) for n in range(15)})
    rig.change("create", {name: definition(DUE_MS + 1) for name in NAMES})
    rig.pass_time(40_000)
    rounds(rig, 200)
    assert rig.made() == [DUE_MS + 1] * 20
    rig.run("ingest", rounds=3, after_ms=DUE_MS - 50_000 - (rig.limits.look_ahead_ms if look_ahead else 0))
    assert len(rig.runs()) == 35


def test_a_herd_whose_schedules_all_wait_is_left_until_its_time() -> None:
    rig = herd(overlap="skip")
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert rig.runs() == []
    rig.run("tend", "ingest", rounds=2, after_ms=1_000)
    assert rig.engine.ingest_wait_ms() == LOOK_MS
