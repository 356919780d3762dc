"""Planted bugs of recurring schedules; see ``planted``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from celery_wheel.engine.recurring import materialise
from celery_wheel.engine.recurring.change import _Alteration
from celery_wheel.engine.recurring.instants import Occupied
from celery_wheel.engine.recurring.materialise import Occurrences
from celery_wheel.engine.round import Context
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import CommitInDoubt, StoreError
from celery_wheel.store.model import Change
from tests.simulation.recurring_world import RecurringWorld


@contextmanager
def step_without_its_row() -> Iterator[type[RecurringWorld]]:
    """A schedule's step is committed before its row."""
    with _in_two_commits(steps_first=True):
        yield RecurringWorld


@contextmanager
def row_without_its_step() -> Iterator[type[RecurringWorld]]:
    """A row is committed before the step and the run of its schedule."""
    with _in_two_commits(steps_first=False):
        yield RecurringWorld


@contextmanager
def _in_two_commits(steps_first: bool) -> Iterator[None]:
    def careless(self: UnitOfWork, ctx: Context) -> None:
        change = self.change
        if not change.schedule_steps:
            write(self, ctx)
            return
        runs, change.runs = change.runs, []
        own = Change(schedule_steps=change.schedule_steps, skips=change.skips)
        change.schedule_steps, change.skips = [], []
        if steps_first:
            change.runs = runs
        else:
            own.runs = runs
        try:
            if steps_first:
                ctx.store.apply(self.state.shard, self.state.epoch, own)
            write(self, ctx)
            if not steps_first:
                ctx.store.apply(self.state.shard, self.state.epoch, own)
        except StoreError as error:
            raise CommitInDoubt(str(error)) from error

    write = UnitOfWork._write
    with mock.patch.object(UnitOfWork, "_write", careless):
        yield


@contextmanager
def edit_that_leaves_the_old_occurrence() -> Iterator[type[RecurringWorld]]:
    """A change withdraws no occurrence of the former definition."""
    with mock.patch.object(_Alteration, "_withdraw", return_value=([], [])):
        yield RecurringWorld


@contextmanager
def made_while_the_earlier_run_goes_on() -> Iterator[type[RecurringWorld]]:
    """The runs of a guarded schedule are not read."""

    def careless(*_: Any) -> Generator[str, None, Occupied]:
        yield "nothing read"
        return Occupied()

    with mock.patch.object(materialise, "occupied", careless):
        yield RecurringWorld


@contextmanager
def instants_skipped_without_a_word() -> Iterator[type[RecurringWorld]]:
    """Catch-up leaves instants out without a skip."""

    def careless(self: Occurrences, work: UnitOfWork) -> None:
        self.change.skips.clear()
        record(self, work)

    record = Occurrences.record
    with mock.patch.object(Occurrences, "record", careless):
        yield RecurringWorld


@contextmanager
def due_before_its_instant() -> Iterator[type[RecurringWorld]]:
    """A row is due when it is made, ahead of its instant."""

    def careless(self: Occurrences, schedule: Any, instant_ms: int, message: Any, **requested: bool) -> None:
        add(self, schedule, instant_ms, replace(message, eta_ms=instant_ms - 5), **requested)

    add = Occurrences.add
    with mock.patch.object(Occurrences, "add", careless):
        yield RecurringWorld


PLANTED: list[Callable[[], object]] = [
    step_without_its_row,
    row_without_its_step,
    edit_that_leaves_the_old_occurrence,
    made_while_the_earlier_run_goes_on,
    instants_skipped_without_a_word,
    due_before_its_instant,
]
