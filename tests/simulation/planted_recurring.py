"""Planted bugs of recurring schedules; see ``planted``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from celery_wheel.engine import ingest
from celery_wheel.engine.intake.inbox import ScheduleCommand
from celery_wheel.engine.recurring import change, materialise, overlap, runs
from celery_wheel.engine.recurring.change import Pending, _Alteration
from celery_wheel.engine.recurring.materialise import Occurrences, occurrence_id
from celery_wheel.engine.recurring.overlap import Decision, Occupied, Requested, Starts, Times
from celery_wheel.engine.round import Context, Steps
from celery_wheel.engine.state.lane import MAIN
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import CommitInDoubt, StoreError
from celery_wheel.recurring.definition import Definition, ScheduledCall
from celery_wheel.store.model import Change, Row
from celery_wheel.store.ports import Store
from celery_wheel.store.schedule_model import Revision, Run, Schedule
from tests.simulation import model_schedules
from tests.simulation.model_history import ShardData
from tests.simulation.planted import planted
from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.world import World


@planted(seed=11)
def step_without_its_row() -> Iterator[type[RecurringWorld]]:
    """A schedule's step is committed before its row."""
    with _in_two_commits(steps_first=True):
        yield RecurringWorld


@planted(seed=11)
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


@planted(seed=0)
def edit_that_leaves_the_old_occurrence() -> Iterator[type[RecurringWorld]]:
    """A change withdraws no occurrence of the former definition."""
    with mock.patch.object(_Alteration, "_withdraw", return_value=([], [])):
        yield RecurringWorld


@planted(seed=1)
def made_while_the_earlier_run_goes_on() -> Iterator[type[RecurringWorld]]:
    """The runs of a guarded schedule are not read."""

    def careless(*_: Any) -> Generator[str, None, Occupied]:
        yield "nothing read"
        return Occupied()

    with mock.patch.object(materialise, "read_occupied", careless):
        yield RecurringWorld


@planted(seed=1)
def instants_skipped_without_a_word() -> Iterator[type[RecurringWorld]]:
    """Catch-up leaves instants out without a skip."""

    def careless(self: Occurrences, work: UnitOfWork) -> None:
        self.change.skips.clear()
        record(self, work)

    record = Occurrences.record
    with mock.patch.object(Occurrences, "record", careless):
        yield RecurringWorld


@planted(seed=1)
def due_before_its_instant() -> Iterator[type[RecurringWorld]]:
    """A row is due when it is made, ahead of its instant."""

    def careless(self: Occurrences, schedule: Any, instant_ms: int, message: Any, **requested: bool) -> None:
        add(self, schedule, instant_ms, replace(message, eta_ms=instant_ms - 5), **requested)

    add = Occurrences.add
    with mock.patch.object(Occurrences, "add", careless):
        yield RecurringWorld


@planted(seed=1)
def herd_that_outlives_a_change() -> Iterator[type[RecurringWorld]]:
    """A change withdraws rows of the main lane, and leaves those of a herd."""

    def careless(self: _Alteration, pending: Pending) -> tuple[list[Run], list[int]]:
        return withdraw(self, [one for one in pending if one[1][1].lane == MAIN])

    withdraw = _Alteration._withdraw
    with mock.patch.object(_Alteration, "_withdraw", careless):
        yield RecurringWorld


@planted(seed=1)
def pause_without_its_beginning() -> Iterator[type[RecurringWorld]]:
    """A resume does not know since when the schedule was paused."""

    def forgetful(self: _Alteration, **changes: Any) -> None:
        write(self, **{**changes, "since_ms": None})

    write = _Alteration._write
    with mock.patch.object(_Alteration, "_write", forgetful):
        yield RecurringWorld


@planted(seed=35)
def id_without_the_revision() -> Iterator[type[RecurringWorld]]:
    """The row that replaces a withdrawn one has its id, and counts as known."""

    def careless(store: Store, schedule: Schedule, instant_ms: int, request: int | None = None) -> str:
        return occurrence_id(store, replace(schedule, revision=0), instant_ms, request)

    with mock.patch.object(materialise, "occurrence_id", careless):
        yield RecurringWorld


@planted(seed=33)
def change_that_is_overtaken() -> Iterator[type[RecurringWorld]]:
    """A command that has to wait is overtaken by later ones on its schedule."""

    def hasty(ctx: Context, state: ShardState, command: ScheduleCommand) -> Generator[str, None, bool]:
        yield from carry_out(ctx, state, command)
        return True

    carry_out = change.change_schedules
    with mock.patch.object(ingest, "change_schedules", hasty):
        yield RecurringRabbitWorld


@contextmanager
def _other_policies(**policies: Any) -> Iterator[None]:
    """Decisions are made with other policies than the schedule has."""

    def careless(schedule: Schedule, first: int, definition: Definition, *rest: Any) -> Decision:
        return decide(schedule, first, replace(definition, **policies), *rest)

    decide = materialise.decide
    with mock.patch.object(materialise, "decide", careless):
        yield


@planted(seed=1)
def missed_instants_never_run() -> Iterator[type[RecurringWorld]]:
    """Each schedule has the catch-up "none"."""
    with _other_policies(catch_up="none"):
        yield RecurringWorld


@planted(seed=1)
def the_last_missed_instant_runs() -> Iterator[type[RecurringWorld]]:
    """Each schedule has the catch-up "latest"."""
    with _other_policies(catch_up="latest"):
        yield RecurringWorld


@planted(seed=1)
def missed_instants_run_without_a_window() -> Iterator[type[RecurringWorld]]:
    """Each schedule has the catch-up "all", of a day."""
    with _other_policies(catch_up="all", catch_up_ms=86_400_000):
        yield RecurringWorld


@planted(seed=1)
def queued_instant_is_skipped() -> Iterator[type[RecurringWorld]]:
    """An instant that has to wait for the end of a run is skipped."""

    def careless(schedule: Schedule, first: int, definition: Definition, *rest: Any) -> Decision:
        overlap = "skip" if definition.overlap == "queue_one" else definition.overlap
        return decide(schedule, first, replace(definition, overlap=overlap), *rest)

    decide = materialise.decide
    with mock.patch.object(materialise, "decide", careless):
        yield RecurringWorld


@planted(seed=1)
def run_that_is_replaced_goes_on() -> Iterator[type[RecurringWorld]]:
    """The runs that a later one replaces are not cancelled; their ends are stored."""

    with mock.patch.object(Occurrences, "cancel_replaced", return_value=()):
        yield RecurringWorld


@planted(seed=3)
def end_of_a_replaced_run_is_lost() -> Iterator[type[RecurringWorld]]:
    """The runs that a later one replaces are cancelled; their ends are not stored."""

    def forgetful(self: Occurrences, work: UnitOfWork) -> None:
        self.change.run_ends.clear()
        record(self, work)

    record = Occurrences.record
    with mock.patch.object(Occurrences, "record", forgetful):
        yield RecurringWorld


@planted(seed=11)
def runs_without_an_end() -> Iterator[type[RecurringWorld]]:
    """max_runtime_ms ends no run."""

    def patient(ctx: Any, state: Any, id_: int, definition: Definition, *rest: Any) -> Generator[str, None, Occupied]:
        return (yield from read(ctx, state, id_, replace(definition, max_runtime_ms=2**40), *rest))

    read = materialise.read_occupied
    with mock.patch.object(materialise, "read_occupied", patient):
        yield RecurringWorld


@planted(seed=1)
def end_of_a_run_is_dropped() -> Iterator[type[RecurringWorld]]:
    """The report of a worker is removed from the inbox, and nothing else."""

    def apply(data: ShardData, change_: Change) -> None:
        change_.run_ends = [] if not change_.runs else change_.run_ends
        write(data, change_)

    write = model_schedules.apply
    with mock.patch.object(model_schedules, "apply", apply):
        yield RecurringWorld


@planted(seed=10)
def jitter_of_a_name_is_drawn_for_each_run() -> Iterator[type[RecurringWorld]]:
    """Each run has a jitter of its own."""
    with _other_jitter(lambda call: replace(call, jitter_by="run")):
        yield RecurringWorld


@planted(seed=3)
def jitter_of_a_run_is_that_of_its_name() -> Iterator[type[RecurringWorld]]:
    """All runs of a schedule have one jitter."""
    with _other_jitter(lambda call: replace(call, jitter_by="name")):
        yield RecurringWorld


@planted(seed=1)
def jitter_twice_as_long() -> Iterator[type[RecurringWorld]]:
    """A row is due later than its instant and the jitter."""
    with _other_jitter(lambda call: replace(call, jitter_ms=2 * call.jitter_ms)):
        yield RecurringWorld


@contextmanager
def _other_jitter(changed: Callable[[ScheduledCall], ScheduledCall]) -> Iterator[None]:
    due_ms = ScheduledCall.due_ms
    with mock.patch.object(ScheduledCall, "due_ms", lambda self, *rest: due_ms(changed(self), *rest)):
        yield


@planted(seed=1)
def herd_in_the_main_lane() -> Iterator[type[RecurringWorld]]:
    """Tasks that are due meanwhile wait behind a herd."""
    with mock.patch.object(Occurrences, "lane_apart", return_value=()):
        yield RecurringWorld


@planted(seed=0)
def look_ahead_without_a_bound() -> Iterator[type[RecurringWorld]]:
    """Every instant of the next minute is made as if it were within the look-ahead."""

    def hasty(ctx: Context, *rest: Any) -> Generator[str, None, Occurrences]:
        return (yield from make(replace(ctx, limits=replace(ctx.limits, look_ahead_ms=60_000)), *rest))

    make = ingest.materialise
    with mock.patch.object(ingest, "materialise", hasty):
        yield RecurringWorld


@planted(seed=3)
def guarded_instant_ahead_of_its_time() -> Iterator[type[RecurringWorld]]:
    """A guarded schedule is made within the look-ahead, by the runs of that moment."""

    def hasty(self: Occurrences, schedule: Schedule, times: Times) -> Steps:
        return make(self, schedule, replace(times, now_ms=times.upto_ms))

    make = Occurrences._make
    with mock.patch.object(Occurrences, "_make", hasty):
        yield RecurringWorld


@planted(seed=12)
def backfill_up_to_now() -> Iterator[type[RecurringWorld]]:
    """A backfill makes instants that the schedule will make as well."""

    def careless(schedule: Schedule, now_ms: int) -> int:
        return now_ms

    with mock.patch.object(materialise, "unmade_since", careless):
        yield RecurringWorld


@planted(seed=0)
def trigger_without_a_row() -> Iterator[type[RecurringWorld]]:
    """A trigger is answered, and its task is not stored."""

    def careless(self: Occurrences, schedule: Any, instant_ms: int, message: Any, *, requested: bool = False) -> None:
        if not requested:
            add(self, schedule, instant_ms, message, requested=False)

    add = Occurrences.add
    with mock.patch.object(Occurrences, "add", careless):
        yield RecurringWorld


@planted(seed=3)
def import_that_begins_now() -> Iterator[type[RecurringWorld]]:
    """An imported schedule forgets its next instant: those since the drain are lost."""
    with _restored(
        lambda schedule, now_ms: replace(schedule, next_ms=schedule.next_ms and max(schedule.next_ms, now_ms))
    ):
        yield RecurringWorld


@planted(seed=20)
def import_that_begins_at_the_last_instant() -> Iterator[type[RecurringWorld]]:
    """An imported schedule makes the last instant that the other store made once more."""
    with _restored(
        lambda schedule, _now_ms: replace(schedule, next_ms=schedule.next_ms and (schedule.last_ms or schedule.next_ms))
    ):
        yield RecurringWorld


@contextmanager
def _restored(changed: Callable[[Schedule, int], Schedule]) -> Iterator[None]:
    def careless(name: str, document: Any, now_ms: int) -> tuple[Schedule, list[Revision]]:
        schedule, revisions = restore(name, document, now_ms)
        return changed(schedule, now_ms), revisions

    restore = change.restored
    with mock.patch.object(change, "restored", careless):
        yield


class BreakingWorld(RecurringWorld):
    """A schedule whose message cannot be made is broken at its first failure."""

    def run(self) -> World:
        with mock.patch.object(materialise, "BROKEN_AFTER_MS", 0):
            return super().run()


@planted(seed=3)
def rows_again_after_an_error() -> Iterator[type[RecurringWorld]]:
    """A schedule that stops at an error forgets that its next instants are rows."""

    def careless(self: Occurrences, schedule: Schedule, error: Exception) -> None:
        stop(self, schedule, error)
        self.change.schedules[-1].since_ms = self.times.now_ms

    stop = Occurrences._break
    with mock.patch.object(Occurrences, "_break", careless):
        yield BreakingWorld


@planted(seed=36)
def queued_instant_that_nothing_releases() -> Iterator[type[RecurringWorld]]:
    """The end of a run leaves the queued instant after it where it is."""
    with mock.patch.object(runs, "released", return_value=None):
        yield RecurringWorld


@planted(seed=36)
def queued_instant_out_of_turn() -> Iterator[type[RecurringWorld]]:
    """The end of any run of the schedule releases the next queued instant."""

    def careless(queued: Iterable[tuple[Run, Row]], _latest: object, _over: object, now_ms: int) -> Row | None:
        return next((row for _, row in queued if row.due_ms > now_ms), None)

    with mock.patch.object(runs, "released", careless):
        yield RecurringWorld


@planted(seed=25)
def backfill_beside_a_run() -> Iterator[type[RecurringWorld]]:
    """A backfill does not look at the runs that are going on."""

    def careless(
        request: ScheduleCommand, definition: Definition, unmade_ms: int, _: Occupied, *rest: int
    ) -> Requested:
        return requested(request, definition, unmade_ms, Occupied(), *rest)

    requested = materialise.requested
    with mock.patch.object(materialise, "requested", careless):
        yield RecurringWorld


@planted(seed=0)
def backfill_of_every_instant() -> Iterator[type[RecurringWorld]]:
    """A backfill runs all its instants, whatever its policy."""

    def careless(policy: str, buffer: Sequence[int], *, is_running: bool) -> Starts:
        found = resolve(policy, buffer, is_running=is_running)
        return replace(found, instants=buffer) if len(buffer) > 1 else found

    resolve = overlap.resolve
    with mock.patch.object(overlap, "resolve", careless):
        yield RecurringWorld
