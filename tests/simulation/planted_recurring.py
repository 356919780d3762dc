"""Planted bugs of recurring schedules; see ``planted``."""

import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from celery_wheel.engine import ingest
from celery_wheel.engine.recurring import change, materialise, overlap, runs
from celery_wheel.engine.recurring.change import _Alteration
from celery_wheel.engine.recurring.materialise import Occurrences
from celery_wheel.engine.recurring.overlap import KnownRun, Occupied, QueuedRow, Starts
from celery_wheel.engine.round import Context, Steps
from celery_wheel.engine.state.lane import MAIN
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import CommitInDoubt, StoreError
from celery_wheel.recurring.definition import ScheduledCall
from celery_wheel.store.model import Change, Row
from celery_wheel.store.schedule_model import Revision, Schedule
from tests.simulation import model_history
from tests.simulation import planted as planted_module
from tests.simulation.focused import BackfillWorld
from tests.simulation.model_history import ShardData
from tests.simulation.planted import replaces
from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.world import World


def _in_two_commits(steps_first: bool) -> tuple[Any, str, Any]:
    def careless(self: UnitOfWork, ctx: Context) -> Steps:
        change = self.change
        if not change.schedule_steps:
            yield from write(self, ctx)
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
            yield from write(self, ctx)
            if not steps_first:
                ctx.store.apply(self.state.shard, self.state.epoch, own)
        except StoreError as error:
            raise CommitInDoubt(str(error)) from error

    write = UnitOfWork._write
    return UnitOfWork, "_write", careless


replaces_recurring = functools.partial(replaces, world=RecurringWorld)
otherwise = functools.partial(planted_module.otherwise, world=RecurringWorld)
instead = functools.partial(planted_module.instead, world=RecurringWorld)

# A schedule's step is committed before its row, or a row before the step and the run of its schedule.
instead("step_without_its_row", _in_two_commits(steps_first=True), seed=11)
instead("row_without_its_step", _in_two_commits(steps_first=False), seed=11)


def _differs(**changes: Any) -> Callable[[Any], Any]:
    return lambda given: replace(given, **changes)


_without_queue = lambda own: replace(own, overlap="skip" if own.overlap == "queue_one" else own.overlap)  # noqa: E731
# Each schedule has another catch-up; an instant that has to wait for the end of a run is skipped.
otherwise("missed_instants_never_run", overlap, "decide", 2, _differs(catch_up="none"), seed=1)
otherwise("the_last_missed_instant_runs", overlap, "decide", 2, _differs(catch_up="latest"), seed=1)
_all = _differs(catch_up="all", catch_up_ms=86_400_000)
otherwise("missed_instants_run_without_a_window", overlap, "decide", 2, _all, seed=1)
otherwise("queued_instant_is_skipped", overlap, "decide", 2, _without_queue, seed=1)
# max_runtime_ms ends no run; a backfill does not look at the runs that are going on.
otherwise("runs_without_an_end", materialise, "read_occupied", 3, _differs(max_runtime_ms=2**40), seed=47)
otherwise("backfill_beside_a_run", overlap, "requested", 3, lambda _: Occupied(), seed=25)
# Each run has a jitter of its own, or all runs have one, or a row is due later than its instant and the jitter.
otherwise("jitter_of_a_name_is_drawn_for_each_run", ScheduledCall, "due_ms", 0, _differs(jitter_by="run"), seed=10)
otherwise("jitter_of_a_run_is_that_of_its_name", ScheduledCall, "due_ms", 0, _differs(jitter_by="name"), seed=136)
_long = lambda call: replace(call, jitter_ms=2 * call.jitter_ms)  # noqa: E731
otherwise("jitter_twice_as_long", ScheduledCall, "due_ms", 0, _long, seed=1)
# Every instant of the next minute is made; a guarded one too, by the runs of that moment.
_far = lambda ctx: replace(ctx, limits=replace(ctx.limits, look_ahead_ms=60_000))  # noqa: E731
otherwise("look_ahead_without_a_bound", ingest, "materialise", 0, _far, seed=1)
_ahead = lambda times: replace(times, now_ms=times.upto_ms)  # noqa: E731
otherwise("guarded_instant_ahead_of_its_time", Occurrences, "_make", 2, _ahead, seed=3)
_in_the_main_lane = lambda pending: [one for one in pending if one[1].lane == MAIN]  # noqa: E731
# A change withdraws rows of the main lane, and leaves those of a herd; the row that replaces one has its id.
otherwise("herd_that_outlives_a_change", _Alteration, "_withdraw", 1, _in_the_main_lane, seed=1)
otherwise("id_without_the_revision", materialise, "occurrence_id", 1, _differs(revision=0), seed=35)


# A change withdraws no occurrence of the former definition.
instead("edit_that_leaves_the_old_occurrence", (_Alteration, "_withdraw", lambda *_: ([], [])), seed=0)
# The runs that a later one replaces are not cancelled; their ends are stored.
instead("run_that_is_replaced_goes_on", (Occurrences, "cancel_replaced", lambda *_: ()), seed=1)
# Tasks that are due meanwhile wait behind a herd.
instead("herd_in_the_main_lane", (Occurrences, "lane_apart", lambda *_: ()), seed=1)
# A backfill makes instants that the schedule will make as well.
instead("backfill_up_to_now", (materialise, "unmade_since", lambda _schedule, now_ms: now_ms), seed=12)
# The end of a run leaves the queued instant after it where it is.
instead("queued_instant_that_nothing_releases", (runs, "released", lambda *_: []), seed=658)


@replaces_recurring(materialise, "read_occupied", seed=1)
def made_while_the_earlier_run_goes_on(*_: object) -> Generator[str, None, Occupied]:
    """The runs of a guarded schedule are not read."""
    yield "nothing read"
    return Occupied()


@replaces_recurring(Occurrences, "record", seed=1)
def instants_skipped_without_a_word(right: Any, self: Occurrences) -> None:
    """Catch-up leaves instants out without a skip."""
    self.change.skips.clear()
    right(self)


@replaces_recurring(Occurrences, "add", seed=1)
def due_before_its_instant(right: Any, self: Any, schedule: Any, instant_ms: int, message: Any, **named: bool) -> None:
    """A row is due when it is made, ahead of its instant."""
    right(self, schedule, instant_ms, replace(message, eta_ms=instant_ms - 5), **named)


@replaces_recurring(_Alteration, "_write", seed=1)
def pause_without_its_beginning(right: Any, self: _Alteration, **changes: Any) -> None:
    """A resume does not know since when the schedule was paused."""
    right(self, **{**changes, "since_ms": None})


@replaces(ingest, "change_schedules", seed=33, world=RecurringRabbitWorld)
def change_that_is_overtaken(right: Any, *args: Any) -> Generator[str, None, bool]:
    """A command that has to wait is overtaken by later ones on its schedule."""
    yield from right(*args)
    return True


@replaces_recurring(Occurrences, "record", seed=3)
def end_of_a_replaced_run_is_lost(right: Any, self: Occurrences) -> None:
    """The runs that a later one replaces are cancelled; their ends are not stored."""
    self.change.run_ends.clear()
    right(self)


@replaces_recurring(model_history, "apply_schedules", seed=1)
def end_of_a_run_is_dropped(right: Any, data: ShardData, change_: Change) -> None:
    """The report of a worker is removed from the inbox, and nothing else."""
    change_.run_ends = [] if not change_.runs else change_.run_ends
    right(data, change_)


@replaces_recurring(Occurrences, "add", seed=0)
def trigger_without_a_row(right: Any, *args: Any, requested: bool = False) -> None:
    """A trigger is answered, and its task is not stored."""
    if not requested:
        right(*args, requested=False)


Restored = tuple[Schedule, list[Revision]]


@replaces_recurring(change, "restored", seed=3)
def import_that_begins_now(right: Any, name: str, document: Any, now_ms: int) -> Restored:
    """An imported schedule forgets its next instant: those since the drain are lost."""
    found, revisions = right(name, document, now_ms)
    return replace(found, next_ms=found.next_ms and max(found.next_ms, now_ms)), revisions


@replaces_recurring(change, "restored", seed=20)
def import_that_begins_at_the_last_instant(right: Any, *args: Any) -> Restored:
    """An imported schedule makes the last instant that the other store made once more."""
    found, revisions = right(*args)
    return replace(found, next_ms=found.next_ms and (found.last_ms or found.next_ms)), revisions


class BreakingWorld(RecurringWorld):
    """A schedule whose message cannot be made is broken at its first failure."""

    def run(self) -> World:
        with mock.patch.object(materialise, "BROKEN_AFTER_MS", 0):
            return super().run()


@replaces(Occurrences, "_break", seed=11, world=BreakingWorld)
def rows_again_after_an_error(right: Any, self: Occurrences, schedule: Schedule, error: Exception) -> None:
    """A schedule that stops at an error forgets that its next instants are rows."""
    right(self, schedule, error)
    self.change.schedules[-1].since_ms = self.times.now_ms


@replaces_recurring(runs, "released", seed=113)
def queued_instant_out_of_turn(
    _: Any, queued: Sequence[QueuedRow], _latest: object, _over: object, now_ms: int
) -> list[Row]:
    """The end of any run of the schedule releases the next queued instant."""
    return [row for row, _ in queued if row.due_ms > now_ms][:1]


@replaces(runs, "released", seed=13, world=BackfillWorld)
def queued_instant_behind_those_of_another_backfill(
    right: Any, queued: Sequence[QueuedRow], latest: object, over: object, now_ms: int
) -> list[Row]:
    """The end of a run releases the first row that waits, and no other."""
    first = [row for row, _ in queued if row.due_ms > now_ms][:1]
    return [row for row in right(queued, latest, over, now_ms) if row in first]


@replaces(runs, "released", seed=158, world=BackfillWorld)
def queued_instant_beside_an_overdue_run(
    right: Any, queued: Sequence[QueuedRow], latest: Iterable[KnownRun], *rest: Any
) -> list[Row]:
    """A run that is due and not yet published counts as over."""
    return right(queued, [one for one in latest if one.may_be_published], *rest)  # type: ignore[no-any-return]


@replaces_recurring(overlap, "resolve", seed=0)
def backfill_of_every_instant(right: Any, policy: str, buffer: Sequence[int], *, is_running: bool) -> Starts:
    """A backfill runs all its instants, whatever its policy."""
    found = right(policy, buffer, is_running=is_running)
    return replace(found, instants=buffer) if len(buffer) > 1 else found
