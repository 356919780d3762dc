"""Materialise: the instants of schedules that are due soon become messages, among the arrivals of a round of ingest.

::

    1 read       schedules with an instant up to the look-ahead, at most 1,000 and those that had to wait before
    2 decide     ``instants``: some are made, some are skipped; a guarded schedule waits for its instant and its runs
    3 render     each instant that is made becomes a message, due at the instant and its jitter; after an error of the
                 project's code the schedule is tried again, with back-off, and is broken after BROKEN_AFTER_MS
    4 cancel     runs that a later one replaces (overlap "cancel_running"): before the commit, so after a crash again
    5 record     in ingest's unit of work: the run of each row, the steps, the skips

A round makes a limited number of occurrences, those that are on time first. A trigger or a backfill joins the same
unit of work, with its answer: its occurrences do not count towards the ``times`` of the recurrence. A trigger is due at
once, whatever the overlap policy. The instants of a backfill are due at once, or as its overlap policy says.

An envelope id is made of schedule, revision and instant, with the store's secret. So an instant that is made once more
becomes no second row, no two stores make the same id, and no producer can guess it.

Herds: schedules that are due at nearly the same time, more than can be made in time, are made ahead at an even pace.

::

    08:57:52    64,000 of the next schedules are due by 09:00:00; making them takes 64 s at 1,000 a second, and twice
                that time is left: they are a herd
    08:57:52 …  100 of them in a round, 20 rounds a second at most; between them ingest does its other work
    08:59:50    all are rows, in a lane of their own
    09:00:00    dispatch publishes a chunk of that lane and a chunk of the main lane by turns: tasks that are due
                meanwhile do not wait for the herd

A change of a schedule withdraws its row, however long ahead it was made. A schedule whose runs must not overlap is made
at its instant only, and one whose renderings the application watches (check-ins, traces) at its normal look-ahead.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from celery_wheel.engine.intake.inbox import ScheduleCommand, audit_entries
from celery_wheel.engine.recurring.occurrence import Occurrence, OccurrenceRenderer
from celery_wheel.engine.recurring.overlap import (
    MAX_BACKFILL,
    Decision,
    Occupied,
    Requested,
    Times,
    decide,
    overlap_of,
    requested,
)
from celery_wheel.engine.recurring.runs import occupied
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.agenda import LOOK_MS
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import BrokerError, RecurrenceError, StoreError
from celery_wheel.recurring.definition import ALLOW, CANCEL_RUNNING, Definition, read_definition
from celery_wheel.store.model import Answer, Change, Message
from celery_wheel.store.ports import Store
from celery_wheel.store.schedule_model import Run, RunEnd, Schedule, ScheduleStep
from celery_wheel.values.text import END_OF_TIME_MS

logger = logging.getLogger(__name__)

#: Occurrences of one schedule in one round, so that a long catch-up holds up no other schedule.
MAX_OF_ONE = 100

#: A schedule whose messages cannot be made for so long is broken. It is longer than a deployment, a migration or a
#: failover of the project's database takes, and short enough that a mistake is found on the same day.
BROKEN_AFTER_MS = 3_600_000

#: A round tries no further schedule once its failed tries have taken so long: each may wait for a time-out of the
#: project, and the round has messages to accept.
FAILED_TRIES_MS = 1_000

#: Most schedules of a herd that wait for their instants and are read again in each round, before the others.
MAX_WAITING = 1_000

#: The answer where the policy of a backfill leaves instants out.
LEFT_OUT = "the overlap policy of the backfill leaves out {} of {} instants"


@dataclass(slots=True)
class Occurrences:
    """Occurrences of one round, and the rest of their unit of work."""

    apart: bool = False  #: the rows go to a lane of their own: there are many
    messages: list[Message] = field(default_factory=list)
    change: Change = field(default_factory=Change)
    cancelled: list[str] = field(default_factory=list)  #: ids of tasks that a later run replaces
    waiting: int = 0  #: schedules that were read and have to wait
    ready_ms: int | None = None  #: the instant at which the next one is due; None: unknown
    more: bool = False  #: schedules that are due were not made in this round
    failed_ms: int = 0  #: the time that failed tries have taken
    was_read: bool = False
    _of: dict[str, tuple[int, int, bool]] = field(default_factory=dict)  #: envelope id → schedule, instant, requested

    def __bool__(self) -> bool:
        change = self.change
        return bool(self.messages or change.schedules or change.schedule_steps or change.inbox)

    def add(self, schedule: Schedule, instant_ms: int, message: Message, *, requested: bool = False) -> None:
        self.messages.append(message)
        self._of[message.envelope_id] = schedule.id, instant_ms, requested

    def cancel(self, running: Mapping[str, Run], now_ms: int) -> None:
        """Cancel runs, which are over now; they are named by their task ids."""
        self.cancelled += running
        self.change.run_ends += [RunEnd(run.timer_id, now_ms) for run in running.values()]

    def look_at(self, ready_ms: int) -> None:
        """Read the schedules again at an instant."""
        self.ready_ms = ready_ms if self.ready_ms is None else min(self.ready_ms, ready_ms)

    def lane_apart(self) -> Collection[str]:
        """Return the envelope ids of the rows that go to a lane of their own."""
        return self._of.keys() if self.apart else ()

    def record(self, work: UnitOfWork) -> None:
        """Add the runs, steps and skips to a unit of work whose rows are accepted; the caller holds the lock."""
        change, own = work.change, self.change
        rows = [(self._of[row.message.envelope_id], row) for row in change.rows if row.message.envelope_id in self._of]
        change.runs += [Run(id_, at_ms, row.id, requested=asked) for (id_, at_ms, asked), row in rows]
        change.run_ends += own.run_ends
        change.schedules += own.schedules
        change.schedule_steps += own.schedule_steps
        change.skips += own.skips
        change.inbox = change.inbox + own.inbox
        change.answers += own.answers
        change.audits += own.audits

    def close(self, state: ShardState, monotonic_ms: int) -> None:
        """Note in the agenda that the occurrences are committed."""
        if self.was_read:
            state.agenda.read(0 if self.more else self.ready_ms, monotonic_ms, self.waiting)


def occurrence_id(store: Store, schedule: Schedule, instant_ms: int, request: int | None = None) -> str:
    """Return the envelope id of an occurrence; ``request`` is the inbox item that requested it."""
    return store.derived_id(f"occurrence {schedule.id} {schedule.revision} {instant_ms} {request}")


def materialise(
    ctx: Context, state: ShardState, requests: Sequence[ScheduleCommand]
) -> Generator[str, None, Occurrences]:
    """Return the occurrences of this round.

    Args:
        requests: triggers and backfills from the inbox.
    """
    found, now_ms = Occurrences(), ctx.clock.now_ms()
    if ctx.renderer is not None and state.agenda.is_time(now_ms, ctx.clock.monotonic_ms()):
        yield from _read(ctx, state, ctx.renderer, found, now_ms)
    for request in requests:
        schedules = ctx.store.schedules_named(ctx.shard, request.names)
        yield "requested schedules read"
        yield from _answer(ctx, state, found, request, schedules, now_ms)
    if found.cancelled and ctx.on_overlap is not None:
        try:
            ctx.on_overlap(found.cancelled)
        except Exception:  # raised by code of the application
            logger.exception(
                "shard %d: %d runs were not cancelled, and go on beside the later ones; correct the error below",
                ctx.shard,
                len(found.cancelled),
                extra={"action": "overlap", "shard": ctx.shard},
            )
        yield "earlier runs cancelled"
    return found


def _read(
    ctx: Context, state: ShardState, renderer: OccurrenceRenderer, found: Occurrences, now_ms: int
) -> Generator[str, None, None]:
    limits, most = ctx.limits, ctx.limits.occurrence_count + state.agenda.waiting
    times = Times(now_ms, now_ms + limits.look_ahead_ms, limits.late_ms)
    schedules = ctx.store.due_schedules(ctx.shard, times.upto_ms + LOOK_MS, most)
    yield "schedules read"
    found.was_read, found.more = True, len(schedules) >= most
    for schedule in sorted(schedules, key=lambda one: (one.next_ms or 0) < times.missed_before_ms):
        if len(found.messages) >= limits.occurrence_count:
            found.more = True
            break
        yield from _make(ctx, state, renderer, found, schedule, times)
    found.apart = found.more
    if not found.more and (herd_ms := (yield from find_herd(ctx, state, now_ms))) is not None:
        yield from _make_herd(ctx, state, renderer, found, replace(times, upto_ms=herd_ms))


def _make_herd(
    ctx: Context, state: ShardState, renderer: OccurrenceRenderer, found: Occurrences, times: Times
) -> Generator[str, None, None]:
    """Make occurrences of some schedules of a herd; those of schedules that are due sooner are made by now."""
    agenda, most = state.agenda, herd_round(ctx)
    near_ms = times.now_ms + ctx.limits.look_ahead_ms
    schedules = ctx.store.due_schedules(ctx.shard, times.upto_ms, most + found.waiting + agenda.herd_waiting)
    yield "herd read"
    before, waiting = len(found.messages), found.waiting
    for schedule in schedules:
        if len(found.messages) >= before + most:
            break
        if (schedule.next_ms or 0) <= near_ms:
            continue
        if renderer.is_watched(schedule):
            found.waiting += 1
        else:
            yield from _make(ctx, state, renderer, found, schedule, times)
    # Schedules that wait for their instants are read again in each round, before the others.
    waits, found.waiting = min(found.waiting - waiting, MAX_WAITING), waiting
    found.apart = True
    if len(found.messages) > before or waits > agenda.herd_waiting:
        found.look_at(times.now_ms + ROUND_MS)
    else:
        agenda.herd_ms = None
    agenda.herd_waiting = waits


def _make(
    ctx: Context,
    state: ShardState,
    renderer: OccurrenceRenderer,
    found: Occurrences,
    schedule: Schedule,
    times: Times,
) -> Generator[str, None, None]:
    """Make the occurrences of one schedule that are due."""
    began_ms = ctx.clock.monotonic_ms()
    if wait_ms := state.failing.wait_ms(schedule, began_ms):
        found.waiting += 1
        found.look_at(times.now_ms + wait_ms)
        return
    if found.failed_ms >= FAILED_TRIES_MS:
        found.waiting, found.more = found.waiting + 1, True
        return
    try:
        definition = read_definition(schedule.definition)
    except RecurrenceError as error:
        _break(ctx, state, found, schedule, error, times.now_ms)
        return
    first, ahead_ms = schedule.next_ms or 0, 0 if definition.is_guarded else ctx.limits.look_ahead_ms
    if first > (times.now_ms if definition.is_guarded else times.upto_ms):
        found.waiting += 1
        found.look_at(first - ahead_ms)
        return
    runs = None
    if definition.is_guarded:
        runs = yield from occupied(ctx, state, schedule.id, definition, times.now_ms)
    try:
        decision = decide(schedule, first, definition, times, MAX_OF_ONE, runs)
        messages = _render(ctx, renderer, schedule, definition, decision.make)
    except RecurrenceError as error:  # a calendar that leaves nothing: no try can change that
        _break(ctx, state, found, schedule, error, times.now_ms)
        return
    except Exception as error:  # raised by code of the application, or an outage
        found.failed_ms += ctx.clock.monotonic_ms() - began_ms
        _failed(ctx, state, found, schedule, error, times.now_ms)
        return
    if messages:
        state.failing.forget(schedule.id)
    _step(found, schedule, definition, decision, messages, runs, times, ahead_ms)


def _render(
    ctx: Context,
    renderer: OccurrenceRenderer,
    schedule: Schedule,
    definition: Definition,
    instants: Sequence[int],
    request: Requested | None = None,
) -> list[Message]:
    """Return the messages of instants; those that a request asks for are due from its begin on."""
    messages, previous_ms, after_ms = [], schedule.last_ms, None
    for number, instant_ms in enumerate(instants):
        if previous_ms is not None and previous_ms >= instant_ms:  # a backfill
            previous_ms = None
        if request is None:
            due_ms = definition.call.due_ms(schedule.id, schedule.name, instant_ms)
        else:
            due_ms = min(request.begin_ms + number * request.every_ms, END_OF_TIME_MS - 1)
        id_ = occurrence_id(ctx.store, schedule, instant_ms, request.item_id if request else None)
        queue = (True, after_ms) if request is not None and request.is_queued else ()
        occurrence = Occurrence(ctx.shard, instant_ms, due_ms, previous_ms, id_, *queue)
        message = renderer.render(schedule, definition, occurrence)
        message.envelope_id, message.eta_ms = id_, due_ms
        messages.append(message)
        previous_ms = after_ms = instant_ms
    return messages


def _failed(
    ctx: Context, state: ShardState, found: Occurrences, schedule: Schedule, error: Exception, now_ms: int
) -> None:
    """Try a schedule again later whose message could not be made. An error may quote it, so its text is not logged."""
    is_outage = isinstance(error, BrokerError)
    since_ms = schedule.since_ms if schedule.is_failing and schedule.since_ms is not None else now_ms
    if not is_outage:
        ctx.stats.add(schedule_errors=1)
        if now_ms - since_ms >= BROKEN_AFTER_MS:
            _break(ctx, state, found, schedule, error, now_ms)
            return
        if not schedule.is_failing:
            found.change.schedules.append(replace(schedule, note=reason_of(error), since_ms=now_ms))
    wait_ms = state.failing.failed(schedule, ctx.clock.monotonic_ms(), outage=is_outage)
    found.waiting += 1
    found.look_at(now_ms + wait_ms)
    ctx.retries.write(
        logging.WARNING,
        place_of(error.__cause__ or error),
        "shard %d: the message of schedule %s cannot be made, and is tried again: %s",
        ctx.shard,
        schedule.name,
        error if is_outage else f"{place_of(error)}; `celery -A proj wheel schedules show` has the error",
        extra={"action": "schedule_waits", "shard": ctx.shard, "schedule": schedule.name},
    )


def place_of(error: BaseException) -> str:
    """Return the kind of an error and the line that raised it, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__qualname__}" + "".join(f" in {one.filename}, line {one.lineno}" for one in frames)


def _step(
    found: Occurrences,
    schedule: Schedule,
    definition: Definition,
    decision: Decision,
    messages: Iterable[Message],
    runs: Occupied | None,
    times: Times,
    ahead_ms: int,
) -> None:
    if not decision.make and not decision.skips and decision.next_ms == schedule.next_ms:
        found.waiting += 1  # queued behind a run
        return
    for instant_ms, message in zip(decision.make, messages, strict=True):
        found.add(schedule, instant_ms, message)
    made, last_ms = schedule.made + len(decision.make), decision.make[-1] if decision.make else schedule.last_ms
    if schedule.is_failing and decision.make:
        healed = replace(schedule, next_ms=decision.next_ms, made=made, last_ms=last_ms, note="", since_ms=None)
        found.change.schedules.append(healed)
    else:
        found.change.schedule_steps.append(ScheduleStep(schedule.id, decision.next_ms, made, last_ms))
    found.change.skips += decision.skips
    if runs is not None and decision.make and definition.overlap == CANCEL_RUNNING:
        found.cancel(runs.running, times.now_ms)
    if decision.next_ms is not None:
        found.look_at(decision.next_ms - ahead_ms)


def _break(
    ctx: Context, state: ShardState, found: Occurrences, schedule: Schedule, error: Exception, now_ms: int
) -> None:
    """Stop a schedule that cannot be read, or whose messages could not be made for BROKEN_AFTER_MS."""
    state.failing.forget(schedule.id)
    logger.error(
        "shard %d: schedule %s is broken and stops: %s; update it, or fix the cause and resume it",
        ctx.shard,
        schedule.name,
        error if isinstance(error, RecurrenceError) else place_of(error),
        extra={"action": "schedule_broken", "shard": ctx.shard, "schedule": schedule.name},
    )
    since_ms = schedule.decided_upto(now_ms)
    found.change.schedules.append(
        replace(schedule, broken=True, note=reason_of(error), next_ms=None, since_ms=since_ms)
    )


def unmade_since(schedule: Schedule, now_ms: int) -> int:
    """Return the instant up to now after which a schedule has made nothing."""
    return min(now_ms, schedule.decided_upto(now_ms))


def reason_of(error: Exception, failure: str = "no message can be made") -> str:
    """Return the text of an error for a schedule or an answer; ``failure`` begins that of an unexpected error."""
    text = str(error) if isinstance(error, RecurrenceError | BrokerError) else f"{failure}: {error!r}"
    return text.replace("\0", "�").encode(errors="replace").decode()[:1_000]


def _answer(
    ctx: Context,
    state: ShardState,
    found: Occurrences,
    request: ScheduleCommand,
    schedules: Iterable[Schedule],
    now_ms: int,
) -> Generator[str, None, None]:
    """Make the occurrences that a trigger or a backfill asks for."""
    named = {one.name: one for one in schedules}
    results, room = dict[str, dict[str, object]](), MAX_BACKFILL
    for name in request.names:
        schedule = named.get(name)
        if schedule is None:
            results[name] = {"result": "unknown"}
            continue
        if ctx.renderer is None:
            results[name] = {"result": "refused", "reason": "the scheduler that holds the shard runs no schedules"}
            continue
        try:
            definition = read_definition(schedule.definition)
            runs = Occupied()
            if definition.is_guarded and overlap_of(request, definition) != ALLOW:
                runs = yield from occupied(ctx, state, schedule.id, definition, now_ms)
            wanted = requested(request, definition, unmade_since(schedule, now_ms), runs, now_ms, room)
            messages = _render(ctx, ctx.renderer, schedule, definition, wanted.instants, wanted)
        except StoreError:
            raise
        except Exception as error:
            results[name] = {"result": "refused", "reason": reason_of(error)}
            continue
        room -= len(messages)
        if wanted.cancels:
            found.cancel(runs.running, now_ms)
        for instant_ms, message in zip(wanted.instants, messages, strict=True):
            found.add(schedule, instant_ms, message, requested=True)
        results[name] = {"result": "done", "task_ids": [message.task_id for message in messages]}
        if wanted.left_out:
            results[name]["reason"] = LEFT_OUT.format(wanted.left_out, wanted.left_out + len(messages))
    found.change.inbox.append(request.item_id)
    if request.answer_to is not None:
        found.change.answers.append(Answer(request.answer_to, results, now_ms))
    found.change.audits += audit_entries(request, results, now_ms)


#: The least milliseconds between two rounds of a herd.
ROUND_MS = 50

#: A round makes this many times its share of the pace: rounds take time, and other work comes between them.
HASTE = 2

#: A herd has this many times the time that it takes at the pace.
EARLY = 2


def herd_round(ctx: Context) -> int:
    """Return the most occurrences of one round of a herd."""
    return max(1, ctx.limits.herd_per_s * HASTE * ROUND_MS // 1_000)


def find_herd(ctx: Context, state: ShardState, now_ms: int) -> Generator[str, None, int | None]:
    """Return the instant up to which schedules are to be made now; None where there is no herd.

    A herd that was found is kept until all of it is made; otherwise the store is read once in LOOK_MS.
    """
    agenda, limits, monotonic_ms = state.agenda, ctx.limits, ctx.clock.monotonic_ms()
    if agenda.herd_ms is None and monotonic_ms >= agenda.herd_look_ms:
        agenda.herd_look_ms = monotonic_ms + LOOK_MS
        count = limits.herd_count
        while True:
            at_ms = ctx.store.next_schedule_ms(ctx.shard, count - 1)
            yield "herd looked for"
            if at_ms is None or at_ms > now_ms + limits.herd_ms:
                break
            if at_ms - now_ms < EARLY * 1_000 * count // limits.herd_per_s:
                agenda.herd_ms = at_ms
            count *= 2
    if agenda.herd_ms is not None and agenda.herd_ms <= now_ms + limits.look_ahead_ms:
        agenda.herd_ms = None
    return agenda.herd_ms
