"""Recurring schedules: their progress and their occurrences are written together, once, and read by an index."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from celery_wheel.errors import Fenced, StoreError
from celery_wheel.store.model import ORIGIN, Change, LaneState, Position
from celery_wheel.store.ports import Retention, Store
from celery_wheel.store.schedule_model import MISSED, PAUSED, Run, RunEnd, Schedule, ScheduleStep, Skip, revised
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.schedules import revision_of, schedule_of
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.text import END_OF_TIME_MS
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.kit.rows import values_of
from tests.kit.schedules import MINUTE, create, materialise, occurrence, revision, schedule, step

LATER = NOW + 86_400_000
TABLES = (schema.schedule, schema.revision, schema.run, schema.schedule_skip, schema.timer)


def named(holder: Holder, *names: str) -> list[Schedule]:
    return sorted((one for _, one in holder.store.schedules_named(names)), key=lambda one: one.name)


def runs(holder: Holder, *schedules: Schedule, pending_only: bool = False, limit: int = 100) -> list[Run]:
    found = holder.store.runs_of([one.id for one in schedules], pending_only, limit)
    assert [run.timer_id for run, *_ in found] == [row.id for _, row, _ in found]
    assert {shard for *_, shard in found} <= {holder.shard}
    return [run for run, *_ in found]


def content(store: SqlStore) -> dict[str, list[dict[str, Any]]]:
    return {table.name: rows_of(store, table) for table in TABLES}


def test_a_stored_schedule_has_every_field(holder: Holder) -> None:
    whole = Schedule(holder.seq(), "Größe-漢字", '{"a": 1}', "beat", 7, NOW, 3, NOW - 1, True, "outage", True, NOW - 2)
    holder.apply(schedules=[whole])
    [found] = named(holder, whole.name)
    assert found == whole
    assert (type(found.paused), type(found.broken)) == (bool, bool)


def test_values_of_other_types_in_columns_of_sqlite_are_read_as_those_of_the_fields() -> None:
    one = schedule_of((1, "report", b"\xff", b"api", "x", 1.5, "x", b"x", 0, b"\xfe", 1, "x"), str)
    assert (one.definition, one.note, one.paused, one.broken) == ("b'\\xff'", "b'\\xfe'", False, True)
    assert (one.revision, one.next_ms, one.made, one.last_ms, one.since_ms) == (1, 1, 0, None, None)
    two = schedule_of((1, "report", "{}", "api", 1, "soon", 0, None, 0, "", 0, None), str)
    assert (two.next_ms, two.broken) == (None, True)
    assert two.note == "next_ms must be a whole number, got 'soon'; resume the schedule"


def test_numbers_beyond_the_ends_of_their_columns_have_a_next_one() -> None:
    one = schedule_of((1, "report", "{}", "api", 2**31 - 1, 2**63 - 1, 2**63 - 1, -(2**63), 0, "", 0, -5), str)
    assert (one.revision + 1, one.last_ms, one.since_ms) == (2**31 - 1, 0, 0)
    assert (one.next_ms, one.made) == (END_OF_TIME_MS, END_OF_TIME_MS)
    assert schedule_of((1, "report", "{}", "api", -1, 0, 0, None, 0, "", 0, None), str).revision == 1


def test_a_revision_with_values_of_other_types_is_read() -> None:
    one = revision_of((1, "x", "report", b"?", "ann", "", "soon", b"\xff"), str)
    assert (one.number, one.what, one.at_ms, one.before) == (0, "b'?'", 0, "b'\\xff'")


def test_a_row_that_was_restored_from_a_copy_can_be_changed(sql_holder: Holder) -> None:
    """Its next revision has a number that is taken."""
    [one] = create(sql_holder, "report")
    for note in ("before the copy was restored", "after it"):
        paused, change = revised(one, "paused", "ann", note, NOW, paused=True, note=note)
        sql_holder.apply(schedules=[paused], revisions=[change])
        assert named(sql_holder, "report") == [paused]


def test_a_schedule_replaces_that_of_its_id(holder: Holder) -> None:
    first, second = create(holder, "first", "second")
    changed = replace(first, name="renamed", definition="{}", revision=2, next_ms=None, paused=True, note="paid")
    holder.apply(schedules=[changed], revisions=[revision(changed, "paused")])
    assert named(holder, "first", "renamed", "second") == [changed, second]


def test_a_removed_schedules_name_is_free_in_the_same_change(sql_holder: Holder, sql_store: SqlStore) -> None:
    [old] = create(sql_holder, "report")
    new = schedule(sql_holder, "report", NOW + 1)
    deleted = revision(replace(old, revision=2), "deleted")
    sql_holder.apply(removed_schedules=[old.id], schedules=[new], revisions=[deleted])
    assert named(sql_holder, "report") == [new]
    assert [row["what"] for row in rows_of(sql_store, schema.revision)] == ["created", "deleted"]


def test_a_step_changes_the_progress_alone(holder: Holder) -> None:
    [one] = create(holder, "report", note="as it was")
    holder.apply(schedule_steps=[ScheduleStep(one.id, None, 12, NOW)])
    assert named(holder, "report") == [replace(one, next_ms=None, made=12, last_ms=NOW)]


def test_an_instant_may_have_several_runs(holder: Holder) -> None:
    [one] = create(holder, "report")
    row, run = occurrence(holder, one, NOW, task_id="t-1", body=b"[1]", headers=b'{"h": 1}')
    holder.apply(rows=[row], runs=[run])
    [(found, of_run, _)] = holder.store.runs_of([one.id], True, 9)
    assert (found, of_run.task_id) == (run, "t-1")
    assert values_of(replace(of_run, task_id="")) == values_of(holder.slice()[0])
    again = holder.row(NOW)
    holder.apply(rows=[again], runs=[Run(again.id, one.id, NOW)], moves=[holder.stop(row)])
    assert runs(holder, one) == [Run(again.id, one.id, NOW), run]
    assert runs(holder, one, pending_only=True) == [Run(again.id, one.id, NOW)]


def test_a_run_ends_once(holder: Holder) -> None:
    [one] = create(holder, "report")
    row, run = occurrence(holder, one, NOW)
    holder.apply(rows=[row], runs=[replace(run, requested=True)])
    for at_ms in (NOW + 7, NOW + 9):
        holder.apply(run_ends=[RunEnd(row.id, at_ms)])
    [found] = runs(holder, one)
    assert (found, type(found.requested)) == (replace(run, ended_ms=NOW + 7, requested=True), bool)


def test_the_end_of_a_forgotten_run_makes_no_run(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.apply(run_ends=[RunEnd(sql_holder.row(NOW).id, NOW)])
    assert rows_of(sql_store, schema.run) == []


def test_a_skip_grows_by_its_first_instant(sql_holder: Holder, sql_store: SqlStore) -> None:
    [one] = create(sql_holder, "report")
    sql_holder.apply(skips=[Skip(one.id, NOW, NOW, 1, MISSED, NOW), Skip(one.id, NOW + 9, NOW + 9, 1, PAUSED, NOW)])
    sql_holder.apply(skips=[Skip(one.id, NOW, NOW + 5, 6, MISSED, NOW + 5)])
    rows = rows_of(sql_store, schema.schedule_skip)
    found = sorted((row["from_ms"], row["to_ms"], row["count"], row["at_ms"]) for row in rows)
    assert found == [(NOW, NOW + 5, 6, NOW + 5), (NOW + 9, NOW + 9, 1, NOW)]


def everything(holder: Holder, one: Schedule) -> dict[str, Any]:
    row, run = occurrence(holder, one, NOW)
    new = schedule(holder, "new")
    return {
        "rows": [row],
        "removed_schedules": [],
        "schedules": [new],
        "schedule_steps": [step(one)],
        "revisions": [revision(new)],
        "runs": [run],
        "skips": [Skip(one.id, NOW - 5, NOW - 1, 5, MISSED, NOW)],
    }


def test_a_former_holder_writes_nothing(sql_holder: Holder, sql_store: SqlStore) -> None:
    [one] = create(sql_holder, "report")
    before, former = content(sql_store), sql_holder.epoch
    change = Change(seq=sql_holder.highest_seq, **everything(sql_holder, one))
    sql_holder.acquire()
    with pytest.raises(Fenced):
        sql_store.apply(0, former, change)
    assert content(sql_store) == before


def test_a_failure_of_the_last_part_leaves_nothing(sql_holder: Holder, sql_store: SqlStore) -> None:
    [one] = create(sql_holder, "report")
    before, parts = content(sql_store), everything(sql_holder, one)
    with pytest.raises(StoreError):
        sql_holder.apply(**{**parts, "skips": [*parts["skips"], Skip(one.id, NOW, NOW, 2**70, MISSED, NOW)]})
    assert content(sql_store) == before
    sql_holder.apply(**parts)
    assert runs(sql_holder, one) == parts["runs"]


def test_a_step_of_no_schedule_writes_nothing(sql_holder: Holder, sql_store: SqlStore) -> None:
    """An occurrence of a deleted schedule must not exist."""
    [one] = create(sql_holder, "report")
    sql_holder.apply(removed_schedules=[one.id])
    before = content(sql_store)
    with pytest.raises(StoreError, match="of a schedule that the store does not have; nothing was written"):
        sql_holder.apply(**everything(sql_holder, one))
    assert content(sql_store) == before


def test_a_name_is_taken_once(sql_holder: Holder) -> None:
    [one] = create(sql_holder, "report")
    with pytest.raises(StoreError, match="has one of these messages or ids already"):
        create(sql_holder, "other", "report")
    assert named(sql_holder, "report", "other") == [one]


def test_due_schedules_come_in_the_order_of_their_instants_and_a_herd_in_that_of_creation(holder: Holder) -> None:
    herd = create(holder, *[f"herd-{n}" for n in range(500)], next_ms=NOW + 60)
    assert holder.store.due_schedules(0, NOW + 60, 400) == herd[:400]
    made = [create(holder, f"s-{n}", next_ms=NOW + n * 7 % 10)[0] for n in range(10)]
    create(holder, "paused", next_ms=None)
    expected = sorted(made, key=lambda one: (one.next_ms, one.id))
    assert holder.store.due_schedules(0, NOW + 9, 100) == expected
    assert holder.store.due_schedules(0, NOW + 4, 100) == expected[:5]
    assert holder.store.due_schedules(0, NOW + 9, 3) == expected[:3]
    assert holder.store.due_schedules(0, NOW - 1, 3) == []


def test_the_next_instant_follows_every_change(holder: Holder) -> None:
    store = holder.store
    assert store.next_schedule_ms(0) is None
    create(holder, "paused", next_ms=None)
    assert store.next_schedule_ms(0) is None
    [late], [early] = create(holder, "late", next_ms=NOW + 99), create(holder, "early")
    assert store.next_schedule_ms(0) == NOW
    assert [store.next_schedule_ms(0, skip) for skip in range(3)] == [NOW, NOW + 99, None]
    holder.apply(schedule_steps=[step(early)])
    assert store.next_schedule_ms(0) == late.next_ms
    holder.apply(removed_schedules=[late.id])
    assert store.next_schedule_ms(0) == NOW + MINUTE


def test_each_shard_has_its_schedules(sql_store: SqlStore) -> None:
    one, other = Holder(sql_store, shard=0), Holder(sql_store, shard=1)
    [first], [second] = create(one, "first"), create(other, "second", next_ms=NOW + 1)
    assert (sql_store.due_schedules(0, LATER, 9), sql_store.due_schedules(1, LATER, 9)) == ([first], [second])
    assert (sql_store.next_schedule_ms(0), sql_store.next_schedule_ms(1)) == (NOW, NOW + 1)
    assert sql_store.schedules_named(["first"]) == [(0, first)]
    with pytest.raises(StoreError):
        one.apply(schedule_steps=[step(second)])
    one.apply(removed_schedules=[second.id])
    assert sql_store.schedules_named(["second"]) == [(1, second)]


def test_a_schedule_moves_to_another_shard_and_its_runs_stay(store: Store) -> None:
    one, other = Holder(store, shard=0), Holder(store, shard=1)
    first, second = create(one, "first", "second")
    row, run = occurrence(one, first, NOW)
    one.apply(rows=[row], runs=[run], schedule_steps=[step(first)], moved_schedules={first.id: 1})
    moved = replace(first, next_ms=NOW + MINUTE, made=1, last_ms=NOW)
    assert store.schedules_named(["first"]) == [(1, moved)]
    assert (store.due_schedules(0, LATER, 9), store.due_schedules(1, LATER, 9)) == ([second], [moved])
    assert materialise(other, NOW + MINUTE) == 1
    found = store.runs_of([first.id], False, 9)
    assert [(run.instant_ms, row.id & 0xFF, shard) for run, row, shard in found] == [(NOW + MINUTE, 1, 1), (NOW, 0, 0)]
    assert [shard for *_, shard in store.runs_of([first.id], True, 9)] == [1, 0]
    assert [shard for *_, shard in store.runs_of([first.id], False, 1)] == [1]
    other.apply(moved_schedules={first.id: 0})
    assert [shard for shard, _ in store.schedules_named(["first", "second"])] == [0, 0]


def test_only_the_holder_of_its_shard_moves_a_schedule(sql_store: SqlStore) -> None:
    one, other = Holder(sql_store, shard=0), Holder(sql_store, shard=1)
    [first] = create(one, "first")
    other.apply(moved_schedules={first.id: 1})
    assert sql_store.schedules_named(["first"]) == [(0, first)]


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 170])
def test_any_number_of_schedules_is_found_by_name(holder: Holder, count: int) -> None:
    made = create(holder, *[f"s-{n}" for n in range(count)])
    names = [name for n in range(count) for name in (f"s-{n}", f"x-{n}")]
    assert {one.id for one in named(holder, *names)} == {one.id for one in made}
    assert len(named(holder, *names)) == count


def lose(store: SqlStore, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """Make the next transaction fail: its answer is lost after the commit, or it is not committed."""
    real = store.database.writing

    @contextmanager
    def losing(**options: Any) -> Iterator[Connection]:
        monkeypatch.undo()
        with real(**options) as connection:
            yield connection
            if not committed:
                raise StoreError("the session was ended")
        raise StoreError("no answer")

    monkeypatch.setattr(store.database, "writing", losing)


@pytest.mark.parametrize("committed", [True, False])
def test_an_instant_is_made_once_where_a_commit_is_in_doubt(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    made = create(sql_holder, *[f"s-{n}" for n in range(20)])
    assert materialise(sql_holder, NOW) == 20
    lose(sql_store, monkeypatch, committed=committed)
    with pytest.raises(StoreError):
        materialise(sql_holder, NOW + MINUTE)
    sql_holder.acquire()
    assert materialise(sql_holder, NOW + MINUTE) == (0 if committed else 20)
    assert materialise(sql_holder, NOW + MINUTE) == 0
    assert [one.made for one in named(sql_holder, *[one.name for one in made])] == [2] * 20
    for one in made:
        assert [run.instant_ms for run in runs(sql_holder, one)] == [NOW + MINUTE, NOW]
    assert len(sql_holder.slice()) == 40


def made_runs(holder: Holder, one: Schedule, count: int) -> list[tuple[Any, Run]]:
    made = [occurrence(holder, one, NOW + n) for n in range(count)]
    holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made])
    return made


def test_the_latest_runs_come_first(holder: Holder) -> None:
    first, second, third = create(holder, "first", "second", "third")
    of_first = [run for _, run in made_runs(holder, first, 5)][::-1]
    of_second = [run for _, run in made_runs(holder, second, 2)][::-1]
    expected = [*of_first[:3], of_second[0], of_first[3], of_second[1], of_first[4]]
    assert runs(holder, first, second, third) == expected
    assert runs(holder, second, third, first, limit=4) == expected[:4]
    assert runs(holder, second) == of_second
    assert runs(holder) == []


@pytest.mark.parametrize("count", [0, 1, 50, 51, 120])
def test_runs_are_found_by_their_rows(holder: Holder, count: int) -> None:
    [one] = create(holder, "report")
    made = [run for _, run in made_runs(holder, one, 130)][:count]
    found = holder.store.runs_at([run.timer_id for run in made])
    assert sorted(found, key=lambda one: one[1].timer_id) == [(holder.shard, run) for run in made]
    assert holder.store.runs_at([holder.seq()]) == []


GROUP, UNTIL = "tenant:42", NOW + 60_000


def run_at(holder: Holder, timer_id: int) -> Run | None:
    return next((run for _, run in holder.store.runs_at([timer_id])), None)


@pytest.mark.parametrize("order", ["begin, end", "end, begin", "together", "begin, begin, end, end"])
def test_the_begin_and_the_end_of_a_groups_run_may_come_in_any_order(holder: Holder, order: str) -> None:
    """The begin is stored when the message is settled, and its worker's report may be faster."""
    [row] = holder.accept(NOW)
    run, end = Run(row.id, group=GROUP, until_ms=UNTIL), RunEnd(row.id, NOW + 7, GROUP, UNTIL)
    if order == "together":
        holder.apply(runs=[run], run_ends=[end])
    else:
        for word in order.split(", "):
            if word == "begin":
                holder.apply(runs=[run])
                assert order != "begin, end" or holder.store.open_runs(0, NOW) == [run]
            else:
                holder.apply(run_ends=[end])
                end = replace(end, ended_ms=NOW + 9)
    assert run_at(holder, row.id) == replace(run, ended_ms=NOW + 7)
    assert holder.store.open_runs(0, NOW) == []


def test_a_run_of_a_group_ends_like_any_other(holder: Holder) -> None:
    [row] = holder.accept(NOW)
    holder.apply(runs=[Run(row.id, group=GROUP, until_ms=UNTIL)])
    holder.apply(run_ends=[RunEnd(row.id, NOW + 7)])
    assert run_at(holder, row.id) == Run(row.id, group=GROUP, until_ms=UNTIL, ended_ms=NOW + 7)


def test_the_end_of_a_message_that_the_store_has_not_makes_no_run(holder: Holder) -> None:
    """Its timer was forgotten, and nothing would remove the run."""
    unknown = holder.seq()
    holder.apply(run_ends=[RunEnd(unknown, NOW, GROUP, UNTIL)])
    assert run_at(holder, unknown) is None


def test_open_runs_are_those_of_groups_that_go_on(holder: Holder) -> None:
    [one] = create(holder, "report")
    _, occurs = made_runs(holder, one, 1)[0]
    rows = holder.accept(*[NOW] * 5)
    of_group = [Run(row.id, group=f"tenant:{n}", until_ms=UNTIL + n) for n, row in enumerate(rows)]
    holder.apply(runs=of_group[::-1], run_ends=[RunEnd(rows[3].id, NOW, "tenant:3", UNTIL + 3)])
    assert holder.store.open_runs(0, NOW) == [of_group[n] for n in (0, 1, 2, 4)]
    assert holder.store.open_runs(0, UNTIL) == [of_group[n] for n in (1, 2, 4)]
    assert holder.store.open_runs(0, UNTIL + 4) == []
    assert holder.store.open_runs(1, NOW) == []
    assert runs(holder, one) == [occurs], "a schedule has its own runs alone"


@pytest.mark.parametrize("order", ["begin, end", "end, begin", "end, end"])
def test_a_slot_ends_and_the_run_of_its_schedule_goes_on(holder: Holder, order: str) -> None:
    """The occurrence is retried: a retry asks its group for room again, and the schedule waits for the last one."""
    [one] = create(holder, "report")
    row, run = occurrence(holder, one, NOW)
    holder.apply(rows=[row], runs=[run])
    end = RunEnd(row.id, NOW + 7, GROUP, UNTIL)
    for word in order.split(", "):
        if word == "begin":
            holder.apply(runs=[Run(row.id, group=GROUP, until_ms=UNTIL)])
            until_ms = UNTIL if order == "begin, end" else NOW + 7
            assert holder.store.open_runs(0, NOW) == [replace(run, group=GROUP, until_ms=until_ms)]
        else:
            holder.apply(run_ends=[end])
            end = replace(end, ended_ms=NOW + 9)
    assert run_at(holder, row.id) == replace(run, group=GROUP, until_ms=NOW + 7)
    assert holder.store.open_runs(0, NOW + 7) == []
    holder.apply(run_ends=[RunEnd(row.id, NOW + 20)])
    assert run_at(holder, row.id) == replace(run, group=GROUP, until_ms=NOW + 7, ended_ms=NOW + 20)


def test_a_run_that_has_a_slot_outlives_its_row(sql_holder: Holder, sql_store: SqlStore) -> None:
    """The next holder counts it, until its end is reported, or its time is over."""
    over, ends, times_out, kept = made = sql_holder.accept(NOW, NOW, NOW, NOW + 1)
    until = {over.id: NOW + 20, times_out.id: NOW + 30}
    sql_holder.apply(runs=[Run(row.id, group=GROUP, until_ms=until.get(row.id, UNTIL)) for row in made])
    sql_holder.settle(ORIGIN, Position(NOW, NO_LIMIT), at_ms=NOW + 10)

    def forget(now_ms: int) -> list[int]:
        sql_store.forget(0, sql_holder.epoch, Retention(NOW + 11, NO_LIMIT, now_ms=now_ms), 100)
        return [row["timer_id"] for row in rows_of(sql_store, schema.run)]

    assert forget(NOW + 20) == [ends.id, times_out.id, kept.id]
    assert [row["id"] for row in rows_of(sql_store, schema.timer)] == [kept.id]
    assert [run.timer_id for run in sql_store.open_runs(0, NOW + 20)] == [ends.id, times_out.id, kept.id]
    sql_holder.apply(run_ends=[RunEnd(row.id, NOW + 21, GROUP, UNTIL) for row in (ends, kept)])
    assert forget(NOW + 29) == [times_out.id, kept.id]
    assert forget(NOW + 30) == [kept.id]
    assert forget(UNTIL) == [kept.id]


def test_a_run_of_a_schedule_goes_when_it_ends_without_its_row(sql_holder: Holder, sql_store: SqlStore) -> None:
    [row] = sql_holder.accept(NOW)
    sql_holder.apply(runs=[Run(row.id, 7, NOW, group=GROUP, until_ms=UNTIL)])
    sql_holder.settle(ORIGIN, Position(NOW, NO_LIMIT), at_ms=NOW + 10)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 11, NO_LIMIT, now_ms=NOW + 20), 100)
    assert len(rows_of(sql_store, schema.run)) == 1
    sql_holder.apply(run_ends=[RunEnd(row.id, NOW + 30)])
    assert rows_of(sql_store, schema.run) == []


def test_a_clock_that_goes_back_leaves_no_run(sql_holder: Holder, sql_store: SqlStore) -> None:
    rows = sql_holder.accept(NOW, NOW)
    sql_holder.apply(runs=[Run(row.id, group=GROUP, until_ms=NOW + 1_000) for row in rows])
    sql_holder.settle(ORIGIN, Position(NOW, NO_LIMIT), at_ms=NOW + 10)
    for before_ms, now_ms in ((0, NOW + 5_000), (NOW + 11, NOW + 500), (NOW + 11, NOW + 5_000)):
        sql_store.forget(0, sql_holder.epoch, Retention(before_ms, NO_LIMIT, now_ms=now_ms), 100)
    assert rows_of(sql_store, schema.timer) == []
    assert rows_of(sql_store, schema.run) == []


def test_an_erased_row_leaves_no_run(sql_holder: Holder, sql_store: SqlStore) -> None:
    [row] = sql_holder.accept(NOW)
    sql_holder.apply(runs=[Run(row.id, group=GROUP, until_ms=UNTIL)])
    sql_holder.apply(erased=[row.id])
    assert rows_of(sql_store, schema.run) == []


@pytest.mark.parametrize("count", [1, 300])
def test_many_runs_of_groups_are_written_and_read(holder: Holder, count: int) -> None:
    rows = holder.accept(*[NOW] * count)
    made = [Run(row.id, group="größe:漢字", until_ms=UNTIL) for row in rows]
    holder.apply(runs=made)
    assert holder.store.open_runs(0, NOW) == made
    holder.apply(run_ends=[RunEnd(row.id, NOW + 1, "größe:漢字", UNTIL) for row in rows])
    assert holder.store.open_runs(0, NOW) == []


def test_pending_runs_are_those_after_the_offset_of_their_lane(holder: Holder) -> None:
    [one] = create(holder, "report")
    made = made_runs(holder, one, 6)
    rows = [row for row, _ in made]
    holder.settle(ORIGIN, place(rows[0]))
    in_doubt = LaneState(0, place(rows[0]), place(rows[1]))
    gate = LaneState(3, ORIGIN, ORIGIN, "mail", scope="queue")
    behind_it = holder.move(rows[2], NOW + 2, lane=3)
    holder.apply(lanes=[in_doubt, gate], moves=[holder.stop(rows[4]), behind_it])
    assert [run.instant_ms - NOW for run in runs(holder, one, pending_only=True)] == [5, 3, 2, 1]
    assert [run.instant_ms - NOW for run in runs(holder, one, pending_only=True, limit=2)] == [5, 3]
    assert [run.instant_ms - NOW for run in runs(holder, one)] == [5, 4, 3, 2, 1, 0]
    holder.put_offset(Position(LATER, 0))
    assert [run.instant_ms - NOW for run in runs(holder, one, pending_only=True)] == [2]


def test_runs_are_forgotten_with_their_timers(sql_holder: Holder, sql_store: SqlStore) -> None:
    kept, deleted = create(sql_holder, "kept", "deleted")
    for one in (kept, deleted):
        made_runs(sql_holder, one, 3)
    sql_holder.apply(removed_schedules=[deleted.id])
    sql_holder.settle(ORIGIN, Position(NOW + 1, NO_LIMIT), at_ms=NOW + 10)
    assert sql_store.forget(0, sql_holder.epoch, Retention(NOW + 10, NO_LIMIT), 100) == 0
    assert len(rows_of(sql_store, schema.run)) == 6
    assert sql_store.forget(0, sql_holder.epoch, Retention(NOW + 11, NO_LIMIT), 100) == 4
    found = {(row["schedule"], row["instant_ms"]) for row in rows_of(sql_store, schema.run)}
    assert found == {(kept.id, NOW + 2), (deleted.id, NOW + 2)}
    assert named(sql_holder, "kept") == [kept]
    assert len(rows_of(sql_store, schema.revision)) == 2


def test_skips_are_forgotten_by_their_age(sql_store: SqlStore) -> None:
    one, other = Holder(sql_store, shard=0), Holder(sql_store, shard=1)
    [first], [second] = create(one, "first"), create(other, "second")
    one.apply(skips=[Skip(first.id, NOW + n, NOW + n, 1, MISSED, NOW + n) for n in range(1_200)])
    other.apply(skips=[Skip(second.id, NOW, NOW, 1, MISSED, NOW)])
    assert sql_store.forget(0, one.epoch, Retention(NOW + 1_100, NO_LIMIT), 100) == 0
    left = [(row["schedule"], row["at_ms"] - NOW) for row in rows_of(sql_store, schema.schedule_skip)]
    assert sorted(left) == sorted([*[(first.id, n) for n in range(1_100, 1_200)], (second.id, 0)])


def test_many_new_schedules_are_stored_whole(holder: Holder) -> None:
    """PostgreSQL gets them by COPY."""
    made = [schedule(holder, f"n{n}", None if n % 2 else NOW, note=f"ü {n}", paused=n % 3 == 0) for n in range(30)]
    holder.apply(added_schedules=made, revisions=[revision(one) for one in made])
    found = holder.store.schedules_named([one.name for one in made])
    assert sorted(found, key=lambda one: one[1].id) == [(holder.shard, one) for one in made]
