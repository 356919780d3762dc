"""A herd of schedules is made ahead of its time, some in each round, and keeps no other task waiting."""

from __future__ import annotations

from celery_wheel.engine.state.lane import MAIN
from tests.unit.engine.recurring.conftest import ScheduleRig, definition, with_limits

#: 20 schedules are begun 2 · 16 s before their time, one in a round.
SLOWLY = {"herd_count": 2, "herd_per_s": 1}
NAMES = [f"n{number}" for number in range(20)]
DUE_MS = 100_000


def herd(**policies: object) -> ScheduleRig:
    rig = with_limits(**SLOWLY)
    rig.ask("create", {name: definition(DUE_MS, **policies) for name in NAMES})
    return rig


def rounds(rig: ScheduleRig, count: int) -> None:
    """Let ingest run every 50 ms."""
    for _ in range(count):
        rig.run("tend", "ingest")
        rig.pass_time(50)


def lanes_of_runs(rig: ScheduleRig) -> set[int]:
    rows = rig.disk.shard(0).rows
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
    rig.pass_time(DUE_MS)
    rig.run(rounds=3)
    assert len(rig.pushed) == 20


def test_a_few_schedules_are_no_herd(rig: ScheduleRig) -> None:
    rig.ask("create", {name: definition(DUE_MS) for name in NAMES})
    rig.pass_time(DUE_MS - 3_500)
    rounds(rig, 20)
    assert rig.runs() == []
    rounds(rig, 20)
    assert lanes_of_runs(rig) == {MAIN}


def test_a_task_that_is_due_meanwhile_does_not_wait_for_the_herd() -> None:
    rig = herd()
    rig.engine._ctx.limits = with_limits(**SLOWLY, chunk_count=1).engine._ctx.limits
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert len(rig.runs()) == 20
    rig.send("other", DUE_MS + 10 - 75_000)
    rig.run("ingest")
    assert MAIN not in lanes_of_runs(rig)
    rig.pass_time(25_020)
    rig.run("tend", "prefetch", "dispatch", "settle", rounds=4)
    assert "other" in rig.pushed
    assert len(rig.pushed) < 20


def test_an_update_withdraws_an_occurrence_that_was_made_ahead() -> None:
    rig = herd()
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert rig.ask("update", {"n7": definition(101_000)}) == {"n7": {"result": "done"}}
    assert rig.ask("pause", ["n8"]) == {"n8": {"result": "done"}}
    assert rig.outcomes() == ["cancelled", "cancelled"]
    rig.tick(30_000)
    assert (rig.ran("n7"), rig.ran("n8"), rig.ran("n9")) == ([101_000], [], [DUE_MS])


def test_schedules_that_wait_for_their_instants_keep_no_herd_behind_them() -> None:
    rig = with_limits(**SLOWLY)
    rig.ask("create", {f"guarded{n}": definition(DUE_MS, overlap="skip") for n in range(15)})
    rig.ask("create", {name: definition(DUE_MS + 1) for name in NAMES})
    rig.pass_time(40_000)
    rounds(rig, 200)
    assert rig.made() == [DUE_MS + 1] * 20
    rig.pass_time(DUE_MS - 50_000)
    rig.run("ingest", rounds=3)
    assert len(rig.runs()) == 35


def test_a_schedule_whose_renderings_are_watched_is_made_at_its_look_ahead() -> None:
    rig = with_limits(**SLOWLY)
    rig.ask("create", {f"watched{n}": definition(DUE_MS) for n in range(15)})
    rig.ask("create", {name: definition(DUE_MS + 1) for name in NAMES})
    rig.pass_time(40_000)
    rounds(rig, 200)
    assert rig.made() == [DUE_MS + 1] * 20
    rig.pass_time(DUE_MS - 50_000 - rig.limits.look_ahead_ms)
    rig.run("ingest", rounds=3)
    assert len(rig.runs()) == 35


def test_a_herd_whose_schedules_all_wait_is_left_until_its_time() -> None:
    rig = herd(overlap="skip")
    rig.pass_time(70_000)
    rounds(rig, 100)
    assert rig.runs() == []
    rig.pass_time(1_000)
    rig.run("tend", "ingest", rounds=2)
    assert rig.engine.ingest_wait_ms() == 1_000
