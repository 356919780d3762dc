"""``last_run_at`` and ``total_run_count`` are written back once for each run; nobody reads the tasks anew for it."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from celery_wheel.errors import StoreError
from celery_wheel.scheduler.sources import run_counts
from celery_wheel.scheduler.sources.run_counts import EVERY_S, SETTLED_MS, RunCounts
from celery_wheel.store import open_store
from celery_wheel.store.schedule_model import DJANGO, RunEnd, Schedule
from tests.kit.holder import Holder
from tests.kit.schedules import occurrence, revision, step
from tests.periodic.conftest import Make, Tables

MINUTE = 60_000


class Counted:
    def __init__(self, store: Any, tables: Tables) -> None:
        self.store = store
        self.tables = tables
        self.holder = Holder(store)
        self.start_ms = tables.now_ms() // MINUTE * MINUTE - 10 * MINUTE
        tables.read()
        tables.source.followed()
        self.counts = self.new()

    def new(self) -> RunCounts:
        return RunCounts(self.tables.source, self.tables.now_ms, lambda: self.tables.monotonic_s)

    def schedule(self, name: str) -> Schedule:
        spec = '{"kind":"recurrence","spec":{"kind":"interval","every_ms":60000}}'
        text = f'{{"recurrence":{spec},"task":"site.nothing"}}'
        one = Schedule(self.holder.seq(), name, text, DJANGO, 1, self.start_ms)
        self.holder.apply(schedules=[one], revisions=[revision(one)])
        return one

    def make(self, one: Schedule, times: int = 1) -> None:
        for _ in range(times):
            assert one.next_ms is not None
            row, run = occurrence(self.holder, one, one.next_ms)
            now = step(one)
            self.holder.apply(rows=[row], runs=[run], schedule_steps=[now])
            one.next_ms, one.made, one.last_ms = now.next_ms, now.made, now.last_ms

    def cancel(self, at_ms: int, *, by_edit: bool = True) -> None:
        """Cancel the first run that is pending, as an edit of its schedule does, or a user who cancels its task."""
        row = min(self.holder.slice(), key=lambda one: one.id)
        ends = [RunEnd(row.id, at_ms)] if by_edit else []
        outcome = self.holder.outcome(row.id, at_ms=at_ms)
        self.holder.apply(moves=[self.holder.stop(row)], outcomes=[outcome], run_ends=ends)

    def write(self) -> None:
        self.tables.monotonic_s += EVERY_S + 1
        self.counts.run(self.store)

    def at(self, minutes: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.start_ms + minutes * MINUTE)


def last_and_count(name: str) -> tuple[Any, int]:
    found = PeriodicTask.objects.get(name=name)
    return found.last_run_at, found.total_run_count


@pytest.fixture
def counted(tmp_path: Path, tables: Tables, task: Make) -> Iterator[Counted]:
    for name in "ab":
        task(name)
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")) as store:
        yield Counted(store, tables)


def test_runs_are_counted_in_batches_and_neither_marker_nor_change_date_moves(counted: Counted) -> None:
    counted.write()
    a, b = counted.schedule("a"), counted.schedule("b")
    before = PeriodicTasks.last_change(), PeriodicTask.objects.get(name="a").date_changed
    counted.make(a, 3)
    counted.make(b)
    counted.counts.run(counted.store)
    assert last_and_count("a") == (None, 0), "it is not time for a batch"
    counted.write()
    assert last_and_count("a") == (counted.at(2), 3)
    assert last_and_count("b") == (counted.at(0), 1)
    counted.write()
    assert last_and_count("a") == (counted.at(2), 3)
    assert (PeriodicTasks.last_change(), PeriodicTask.objects.get(name="a").date_changed) == before
    assert counted.tables.source.read() is None


def test_runs_that_a_killed_holder_did_not_count_are_counted_once_by_the_next(counted: Counted) -> None:
    counted.write()
    a, b = counted.schedule("a"), counted.schedule("b")
    counted.make(a, 2)
    counted.write()
    counted.make(a, 3)
    counted.make(b, 2)
    counted.counts = counted.new()
    counted.write()
    assert last_and_count("a") == (counted.at(4), 5)
    assert last_and_count("b") == (counted.at(1), 2)
    counted.make(a)
    counted.write()
    assert last_and_count("a") == (counted.at(5), 6)


def test_an_instant_counts_when_it_has_come(counted: Counted) -> None:
    counted.write()
    a = counted.schedule("a")
    counted.tables.ahead_ms = -11 * MINUTE
    counted.make(a)
    counted.write()
    assert last_and_count("a") == (None, 0)
    counted.tables.ahead_ms = 0
    counted.write()
    assert last_and_count("a") == (counted.at(0), 1)


def test_a_run_that_is_withdrawn_before_its_instant_does_not_count(counted: Counted) -> None:
    counted.write()
    PeriodicTask.objects.filter(name="a").update(one_off=True)
    a, b = counted.schedule("a"), counted.schedule("b")
    counted.tables.ahead_ms = -11 * MINUTE
    counted.make(a)
    counted.make(b)
    counted.write()
    counted.cancel(counted.start_ms - 1)
    counted.tables.ahead_ms = 0
    counted.write()
    assert last_and_count("a") == (None, 0)
    assert PeriodicTask.objects.get(name="a").enabled
    assert last_and_count("b") == (counted.at(0), 1)


@pytest.mark.parametrize(("at_ms", "by_edit", "counts"), [(-1, True, False), (-1, False, True), (0, True, True)])
def test_a_run_counts_unless_an_edit_withdrew_it_before_its_instant(
    counted: Counted, at_ms: int, by_edit: bool, counts: bool
) -> None:
    """Also where no batch came between; so a one-off row that was moved in time stays, and runs later."""
    counted.write()
    PeriodicTask.objects.filter(name="a").update(one_off=True)
    counted.make(counted.schedule("a"))
    counted.cancel(counted.start_ms + at_ms, by_edit=by_edit)
    counted.write()
    assert PeriodicTask.objects.get(name="a").enabled != counts


def test_a_run_counts_only_once_no_edit_can_withdraw_it(counted: Counted) -> None:
    counted.write()
    counted.make(counted.schedule("a"))
    counted.tables.ahead_ms = counted.start_ms - counted.tables.now_ms() + 1_000
    counted.write()
    assert last_and_count("a") == (None, 0)
    counted.tables.ahead_ms += SETTLED_MS
    counted.write()
    assert last_and_count("a") == (counted.at(0), 1)


def test_a_run_in_the_place_of_one_that_is_withdrawn_during_a_takeover_counts(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs_since(ids: Sequence[int], after_ms: int) -> Any:
        monkeypatch.undo()
        found = own(ids, after_ms)
        counted.cancel(counted.start_ms - 1)
        a.next_ms = counted.start_ms - 1_000
        counted.make(a)
        return found

    counted.write()
    a = counted.schedule("a")
    counted.tables.ahead_ms = -11 * MINUTE
    counted.make(a)
    counted.counts = counted.new()
    own = counted.store.browse.runs_since
    monkeypatch.setattr(counted.store.browse, "runs_since", runs_since)
    counted.write()
    counted.tables.ahead_ms = 0
    counted.write()
    assert last_and_count("a") == (counted.at(0) - timedelta(seconds=1), 1)


def test_fast_runs_before_and_ahead_of_a_takeover_count_once(counted: Counted) -> None:
    counted.write()
    a, b = counted.schedule("a"), counted.schedule("b")
    counted.make(a, 2)
    counted.write()
    counted.tables.ahead_ms = counted.start_ms + 3 * MINUTE + SETTLED_MS - counted.tables.now_ms()
    for one in (a, b):
        counted.make(one, 3)
    counted.counts = counted.new()
    counted.write()
    assert [last_and_count(name) for name in "ab"] == [(counted.at(3), 4), (counted.at(2), 3)]
    counted.tables.ahead_ms = 0
    counted.write()
    assert [last_and_count(name) for name in "ab"] == [(counted.at(4), 5), (counted.at(2), 3)]


def test_a_holder_that_comes_back_counts_no_run_that_another_has_counted(counted: Counted) -> None:
    counted.write()
    a = counted.schedule("a")
    counted.make(a)
    counted.write()
    other = counted.new()
    counted.make(a, 3)
    own, counted.counts = counted.counts, other
    counted.write()
    counted.make(a)
    own.reset()
    counted.counts = own
    counted.write()
    assert last_and_count("a") == (counted.at(4), 5)


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_a_run_that_was_made_ahead_at_a_takeover_counts_unless_it_is_withdrawn(
    counted: Counted, is_withdrawn: bool
) -> None:
    counted.write()
    PeriodicTask.objects.filter(name="a").update(one_off=True)
    a = counted.schedule("a")
    counted.tables.ahead_ms = -11 * MINUTE
    counted.make(a)
    counted.counts = counted.new()
    counted.write()
    if is_withdrawn:
        counted.cancel(counted.start_ms - 1)
    counted.tables.ahead_ms = 0
    counted.write()
    assert PeriodicTask.objects.get(name="a").enabled == is_withdrawn


def test_a_one_off_task_is_disabled_after_its_run(counted: Counted) -> None:
    counted.write()
    PeriodicTask.objects.filter(name="a").update(one_off=True)
    counted.make(counted.schedule("a"))
    counted.write()
    found = PeriodicTask.objects.get(name="a")
    assert (found.enabled, found.total_run_count, found.last_run_at) == (False, 0, None)
    changes = counted.tables.source.read()
    assert changes.gone == ["a"]


def test_a_task_that_was_disabled_meanwhile_keeps_no_last_run(counted: Counted) -> None:
    counted.write()
    counted.make(counted.schedule("a"))
    PeriodicTask.objects.filter(name="a").update(enabled=False)
    counted.write()
    assert last_and_count("a") == (None, 0)


def test_a_large_batch_is_written_in_parts_and_a_failure_counts_none_twice(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_counts, "NAMES", 1)
    monkeypatch.setattr(run_counts, "PART_S", 0.0)
    names = [f"row{n}" for n in range(5)]
    plain = {"task": "site.nothing", "interval": PeriodicTask.objects.get(name="a").interval}
    PeriodicTask.objects.bulk_create([PeriodicTask(name=name, **plain) for name in names])
    schedules = [counted.schedule(name) for name in names]

    def write() -> int:
        counted.write()
        looks = 1
        while counted.counts.has_more:
            counted.counts.run(counted.store)
            looks += 1
        return looks

    write()
    for one in schedules:
        counted.make(one)
    own, calls = counted.counts._count, itertools.count(1)

    def fail_once(*parts: Any) -> None:
        own(*parts)
        if next(calls) == 3:
            raise StoreError("the answer was lost")

    monkeypatch.setattr(counted.counts, "_count", fail_once)
    with pytest.raises(StoreError):
        write()
    assert [last_and_count(name)[1] for name in names] == [1, 1, 1, 0, 0]
    counted.make(schedules[0])
    counted.make(schedules[2])
    assert write() > 3, "each part has a look of its own"
    assert [last_and_count(name)[1] for name in names] == [2, 1, 2, 1, 1]
