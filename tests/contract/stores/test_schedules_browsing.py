"""Recurring schedules for people: pages by name, and everything of one name."""

from dataclasses import replace

import pytest

from celery_wheel.store.model import ORIGIN, LaneState, Position
from celery_wheel.store.schedule_model import (
    MISSED,
    PAUSED,
    Schedule,
    ScheduleCriteria,
    ScheduleDetail,
    SchedulePage,
    ScheduleRun,
    SilentSchedules,
    Skip,
)
from celery_wheel.store.sql.browse import schedules as browsing
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, place
from tests.kit.schedules import MINUTE, create, occurrence, revision, schedule

ALL = ScheduleCriteria()


def walk(store: SqlStore, criteria: ScheduleCriteria, limit: int) -> list[list[str]]:
    pages, after = list[list[str]](), ""
    while True:
        page = store.browse.schedules(criteria, after, limit)
        assert len(page.items) <= limit
        pages.append([one.name for one in page.items])
        if page.next is None:
            return pages
        assert page.next > after
        after = page.next


def test_pages_come_in_the_order_of_names_over_all_shards(sql_store: SqlStore) -> None:
    one, other = Holder(sql_store, shard=0), Holder(sql_store, shard=1)
    create(one, *[f"s-{n:02}" for n in range(0, 20, 2)])
    create(other, *[f"s-{n:02}" for n in range(1, 20, 2)])
    names = [f"s-{n:02}" for n in range(20)]
    assert walk(sql_store, ALL, 8) == [names[:8], names[8:16], names[16:]]
    assert walk(sql_store, ALL, 10) == [names[:10], names[10:]]
    assert walk(sql_store, ScheduleCriteria(shard=1), 100) == [names[1::2]]


def test_a_page_has_whole_schedules(sql_holder: Holder, sql_store: SqlStore) -> None:
    made = create(sql_holder, "a", "b", paused=True, note="outage")
    assert sql_store.browse.schedules(ALL).items == made
    assert sql_store.browse.schedules(ALL, "a").items == made[1:]
    assert sql_store.browse.schedules(ALL, "b") == SchedulePage([], None)


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        (ScheduleCriteria(part="MAIL"), ["mail-daily", "mail_x"]),
        (ScheduleCriteria(part="l_"), ["mail_x"]),
        (ScheduleCriteria(part="100%"), ["100% sure"]),
        (ScheduleCriteria(source="beat"), ["from-beat"]),
        (ScheduleCriteria(task='app."100%"'), ["quoted"]),
        (ScheduleCriteria(task="app.a"), ["plain"]),
        (ScheduleCriteria(task="APP.A"), []),
        (ScheduleCriteria(paused=True), ["held"]),
        (ScheduleCriteria(paused=False, broken=False, source="api"), ["100% sure", "mail-daily", "mail_x"]),
        (ScheduleCriteria(broken=True), ["wrong"]),
        (ScheduleCriteria(source="beat", part="mail"), []),
        (ScheduleCriteria(shard=9), []),
    ],
)
def test_page_filters(sql_holder: Holder, sql_store: SqlStore, criteria: ScheduleCriteria, expected: list[str]) -> None:
    create(sql_holder, "mail-daily", "mail_x", "100% sure")
    create(sql_holder, "from-beat", source="beat")
    create(sql_holder, "quoted", source="code", definition='{"args":[],"task":"app.\\"100%\\""}')
    create(sql_holder, "plain", source="code", definition='{"args":["app.ab"],"task":"app.a"}')
    create(sql_holder, "other", source="code", definition='{"args":["app.a"],"task":"app.ab"}')
    create(sql_holder, "held", paused=True, next_ms=None)
    create(sql_holder, "wrong", broken=True, next_ms=None)
    assert sorted(one.name for one in sql_store.browse.schedules(criteria).items) == sorted(expected)


def test_a_rare_match_ends_a_page_early(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(sql_holder, *[f"s-{n:03}" for n in range(100)])
    create(sql_holder, "t", "z", source="beat")
    monkeypatch.setattr(browsing, "SCAN", 25)
    pages = walk(sql_store, ScheduleCriteria(source="beat"), 5)
    assert pages == [[], [], [], ["t", "z"]]


def test_a_name_shows_its_changes_runs_and_skips(sql_holder: Holder, sql_store: SqlStore) -> None:
    [one] = create(sql_holder, "report")
    changed = replace(one, revision=2)
    sql_holder.apply(schedules=[changed], revisions=[revision(changed, "changed", before="{}", at_ms=NOW + 1)])
    made = [occurrence(sql_holder, one, NOW + n) for n in range(4)]
    rows = [row for row, _ in made]
    skips = [Skip(one.id, NOW - 9, NOW - 5, 5, MISSED, NOW), Skip(one.id, NOW - 3, NOW - 3, 1, PAUSED, NOW)]
    sql_holder.apply(rows=rows, runs=[run for _, run in made], skips=skips)
    sql_holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 70)
    sql_holder.apply(
        moves=[sql_holder.stop(rows[1])],
        outcomes=[sql_holder.outcome(rows[1].id)],
        lanes=[LaneState(0, place(rows[0]), place(rows[2]))],
    )
    found = sql_store.browse.schedule("report")
    assert found.schedule == changed
    changes = [(one.number, one.what, one.actor, one.before) for one in found.revisions]
    assert changes == [(2, "changed", "anna", "{}"), (1, "created", "anna", "")]
    assert found.skips == skips[::-1]
    seen = [(run.instant_ms - NOW, run.state, run.dispatched_ms, run.reason) for run in found.runs]
    assert seen == [
        (3, "pending", None, ""),
        (2, "in doubt", None, ""),
        (1, "cancelled", None, "asked for"),
        (0, "dispatched", NOW + 70, ""),
    ]
    assert [(run.timer_id, run.task_id) for run in found.runs] == [(row.id, row.message.task_id) for row in rows[::-1]]


def test_the_last_sixty_runs_are_shown_as_due_at_their_instants(sql_holder: Holder, sql_store: SqlStore) -> None:
    """The position of a run that was accepted late is after the tasks before it, and says nothing of its due time."""
    [one] = create(sql_holder, "report")
    made = [occurrence(sql_holder, one, NOW + n) for n in range(70)]
    rows = [replace(row, due_ms=NOW + 8_000) for row, _ in made]
    sql_holder.apply(rows=rows, runs=[run for _, run in made])
    found = sql_store.browse.schedule("report")
    assert [(run.instant_ms - NOW, run.due_ms - NOW) for run in found.runs] == [(n, n) for n in range(69, 9, -1)]


def test_a_deleted_schedule_keeps_its_changes_and_its_last_runs(sql_holder: Holder, sql_store: SqlStore) -> None:
    [one] = create(sql_holder, "report")
    row, run = occurrence(sql_holder, one, NOW)
    sql_holder.apply(rows=[row], runs=[run])
    sql_holder.settle(ORIGIN, Position(NOW, row.seq))
    sql_holder.apply(removed_schedules=[one.id], revisions=[revision(replace(one, revision=2), "deleted")])
    found = sql_store.browse.schedule("report")
    assert (found.schedule, [one.what for one in found.revisions]) == (None, ["deleted", "created"])
    assert [run.state for run in found.runs] == ["dispatched"]
    assert sql_store.browse.schedule("unknown") is None

    new: Schedule = schedule(sql_holder, "report")
    sql_holder.apply(schedules=[new], revisions=[revision(new)])
    found = sql_store.browse.schedule("report")
    assert (found.schedule, len(found.revisions), found.runs) == (new, 3, [])


def test_pending_runs_are_counted_among_the_latest(sql_holder: Holder, sql_store: SqlStore) -> None:
    busy, idle, new = create(sql_holder, "busy", "idle", "new")
    made = [occurrence(sql_holder, busy, NOW + n * MINUTE) for n in range(30)]
    made += [occurrence(sql_holder, idle, NOW - n * MINUTE) for n in range(1, 4)]
    sql_holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made])
    sql_holder.put_offset(Position(NOW + 12 * MINUTE, sql_holder.highest_seq))
    stopped = made[29][0]
    sql_holder.apply(moves=[sql_holder.stop(stopped)], outcomes=[sql_holder.outcome(stopped.id, "cancelled")])
    assert sql_store.browse.pending_runs([busy.id, idle.id, new.id]) == {busy.id: 16}
    sql_holder.put_offset(ORIGIN)
    assert sql_store.browse.pending_runs([busy.id, idle.id]) == {busy.id: 19, idle.id: 3}
    assert sql_store.browse.pending_runs([]) == {}


def test_schedules_that_ran_before_the_clock_went_back_are_silent(sql_holder: Holder, sql_store: SqlStore) -> None:
    hour_ms = 60 * MINUTE
    made = create(sql_holder, "near", "back", "paused", "new")
    near, back, paused, _ = made
    sql_holder.apply(
        schedules=[
            replace(near, next_ms=NOW + 6 * MINUTE, last_ms=NOW + 5 * MINUTE),  # of a herd
            replace(back, next_ms=NOW + hour_ms, last_ms=NOW + hour_ms - MINUTE),
            replace(paused, next_ms=None, last_ms=NOW + hour_ms, paused=True),
        ]
    )
    assert sql_store.browse.silent_schedules(NOW) == SilentSchedules(1, NOW + hour_ms - MINUTE)
    assert sql_store.browse.silent_schedules(NOW + hour_ms) == SilentSchedules(0, None)


def test_a_schedule_with_a_note_that_is_to_run_is_failing(sql_holder: Holder, sql_store: SqlStore) -> None:
    good, bad, base = create(sql_holder, "good", "bad", "base")
    assert sql_store.browse.schedule_counts().failing == 0
    sql_holder.apply(schedules=[replace(bad, note="no"), replace(base, note="its is_due", next_ms=None)])
    counts = sql_store.browse.schedule_counts()
    assert (counts.total, counts.failing, counts.with_base, counts.broken) == (3, 1, 1, 0)
    assert not good.is_failing


def test_a_schedule_that_broke_and_was_paused_then_is_counted_once(sql_holder: Holder, sql_store: SqlStore) -> None:
    _, one, two, three = create(sql_holder, "good", "both", "paused", "broken")
    both = replace(one, paused=True, broken=True)
    sql_holder.apply(schedules=[both, replace(two, paused=True), replace(three, broken=True)])
    counts = sql_store.browse.schedule_counts()
    assert (counts.total, counts.paused, counts.broken) == (4, 1, 2)


@pytest.mark.parametrize(
    ("ends", "replaced"),
    [
        ([None, 240, 180, 120, 60], 4),  # the runs of 240, 180, 120, 60 and 0 s: each ended when the next was made
        ([None, 240, 179, 120, 60], 1),  # that of 120 s ended by itself
        ([None, None, 180, 120, 60], 0),
        ([None], 0),
    ],
)
def test_runs_in_a_row_that_the_next_one_replaced_are_counted(ends: list[int | None], replaced: int) -> None:
    def run(at: int, end: int | None, *, requested: bool = False) -> ScheduleRun:
        return ScheduleRun(at, at, "id", at, "dispatched", at, end, requested=requested, reason="")

    runs = [run(240 - 60 * n, end) for n, end in enumerate(ends)]
    runs.append(run(170, 171, requested=True))
    runs.sort(key=lambda one: -one.instant_ms)
    for policy, expected in (("cancel_running", replaced), ("queue_one", 0)):
        schedule = Schedule(1, "a", f'{{"overlap":"{policy}"}}', "api", 1, None)
        assert ScheduleDetail(schedule, [], runs, []).replaced == expected
