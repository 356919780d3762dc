"""``last_run_at`` and ``total_run_count`` are written back once for each run; nobody reads the tasks anew for it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from celery_wheel.scheduler.sources.django_source import EVERY_S, RunCounts
from celery_wheel.store import open_store
from celery_wheel.store.schedule_model import DJANGO, Schedule
from tests.kit.holder import Holder
from tests.kit.schedules import occurrence, revision, step
from tests.periodic.conftest import Tables

MINUTE = 60_000
Make = Callable[..., Any]


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
