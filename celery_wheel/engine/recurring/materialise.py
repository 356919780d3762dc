"""Materialise: the instants of schedules that are due soon become messages, among the arrivals of a round of ingest.

::

    1 read       schedules with an instant up to the look-ahead, at most 1,000 and those that had to wait before
    2 decide     ``overlap``: some instants are made, some skipped; a guarded schedule waits for its instant and runs
    3 render     each instant that is made becomes a message, due at the instant and its jitter; after an error of the
                 project's code the schedule is tried again, with back-off, and is broken after BROKEN_AFTER_MS
    4 cancel     runs that a later one replaces (overlap "cancel_running"): before the commit, so after a crash again
    5 record     in ingest's unit of work: the run of each row, the steps, the skips; a schedule whose message is of a
                 group of another shard moves there, without a row (``location``)

An envelope id is made of schedule, revision and instant, with the store's secret: an instant that is made once more
becomes no second row, no two stores make the same id, and no producer can guess it.

A herd is more schedules, due at nearly the same time, than can be made in time: 64,000 that are due at 09:00:00 take
64 s at 1,000 a second. From 08:57:52 on, twice that time before, each round makes 100 of them, in a lane of their own.
Dispatch takes chunks of that lane and of the main lane by turns: other tasks do not wait for the herd.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace

from celery_wheel.engine.intake.inbox import ScheduleCommand
from celery_wheel.engine.recurring import overlap
from celery_wheel.engine.recurring.location import conclude, locate
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.engine.recurring.runs import read_occupied
from celery_wheel.engine.round import Context, Steps
from celery_wheel.engine.state.agenda import LOOK_MS
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import BrokerError, RecurrenceError, StoreError
from celery_wheel.recurring.definition import ALLOW, Definition, read_definition
from celery_wheel.store.model import Change, Message, with_header
from celery_wheel.store.ports import Store
from celery_wheel.store.schedule_model import AFTER, RUN, Run, RunEnd, Schedule, ScheduleStep
from celery_wheel.values.error_text import error_place
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import END_OF_TIME_MS

logger = get_logger(__name__)

#: A schedule whose messages cannot be made for so long is broken. It is longer than a deployment, a migration or a
#: failover of the project's database takes, and short enough that a mistake is found on the same day.
BROKEN_AFTER_MS = 3_600_000

#: A round tries no further schedule once its failed tries have taken so long: each may wait for a time-out of the
#: project, and the round has messages to accept.
FAILED_TRIES_MS = 1_000

#: The least milliseconds between two rounds of a herd.
HERD_ROUND_MS = 50

#: A round makes this many times its share of a herd's pace: rounds take time, and other work comes between them.
HERD_HASTE = 2

#: A herd has this many times the time that it takes at the pace.
HERD_EARLY = 2


def occurrence_id(store: Store, schedule: Schedule, instant_ms: int, request: int | None = None) -> str:
    """Return the envelope id of an occurrence; ``request`` is the inbox item that requested it."""
    return store.derived_id(f"occurrence {schedule.id} {schedule.revision} {instant_ms} {request}")


def materialise(
    ctx: Context, state: ShardState, requests: Sequence[ScheduleCommand]
) -> Generator[str, None, Occurrences]:
    """Return the occurrences of this round; ``requests`` are triggers and backfills from the inbox."""
    found = Occurrences(ctx, state)
    if ctx.renderer is not None and state.agenda.is_time(found.times.now_ms, ctx.clock.monotonic_ms()):
        yield from found.read()
    for request in requests:
        yield from found.answer(request)
    yield from found.cancel_replaced()
    return found


class Occurrences:
    """The occurrences of one round of ingest, and the rest of their unit of work."""

    def __init__(self, ctx: Context, state: ShardState) -> None:
        now_ms = ctx.clock.now_ms()
        self.ctx = ctx
        self.state = state
        self.times = overlap.Times(now_ms, now_ms + ctx.limits.look_ahead_ms, ctx.limits.late_ms)
        self.messages: list[Message] = []
        self.change = Change()  #: of ingest's unit of work
        self._apart = False  #: the rows go to a lane of their own: there are many
        self._replaced: list[str] = []  #: ids of tasks that a later run replaces
        self._waiting = 0  #: schedules that were read and have to wait
        self._ready_ms: int | None = None  #: the instant at which the next one is due; None: unknown
        self._more = False  #: schedules that are due were not made in this round
        self._failed_ms = 0  #: the time that failed tries have taken
        self._was_read = False
        self._moved: list[Schedule] = []  #: to other shards
        self._of: dict[str, Run] = {}  #: envelope id → the run, without its row
        self._reported: set[str] = set()  #: envelope ids of those whose workers report the end
        self._before: dict[str, str] = {}  #: envelope id → that of the run for which it waits; empty: none

    def __bool__(self) -> bool:
        change = self.change
        steps = change.schedules or change.schedule_steps or change.moved_schedules
        return bool(self.messages or steps or change.inbox or change.passed_on)

    # -- into ingest's unit of work ------------------------------------------------------------------

    def lane_apart(self) -> Collection[str]:
        """Return the envelope ids of the rows that go to a lane of their own."""
        return self._of.keys() if self._apart else ()

    def record(self) -> None:
        """Add the runs of the rows, which are accepted, to the change; the caller holds the lock."""
        change = self.change
        row_ids = {row.message.envelope_id: row.id for row in change.rows} if self._before else {}
        for row in change.rows:
            message = row.message
            if (run := self._of.get(message.envelope_id)) is not None:
                change.runs.append(replace(run, timer_id=row.id))
                if (before := row_ids.get(self._before.get(message.envelope_id, ""))) is not None:
                    message.headers = with_header(message.headers, AFTER, before)
                if message.envelope_id in self._reported:
                    message.headers = with_header(message.headers, RUN, row.id)

    def close(self) -> None:
        """Note in the agenda that the occurrences are committed."""
        for schedule in self._moved:
            self.state.agenda.has_left(schedule)
            self.state.failing.forget(schedule.id)
        if self._was_read:
            at_ms = 0 if self._more else self._ready_ms
            self.state.agenda.read(at_ms, self.ctx.clock.monotonic_ms(), self._waiting)

    # -- schedules that are due ----------------------------------------------------------------------

    def read(self) -> Steps:
        """Make the occurrences of schedules that are due, and some of a herd."""
        limits, times = self.ctx.limits, self.times
        most = limits.occurrence_count + self.state.agenda.waiting
        schedules = self.ctx.store.due_schedules(self.ctx.shard, times.upto_ms + LOOK_MS, most)
        yield "schedules read"
        self._was_read, self._more = True, len(schedules) >= most
        for schedule in sorted(schedules, key=lambda one: (one.next_ms or 0) < times.missed_before_ms):
            if len(self.messages) >= limits.occurrence_count:
                self._more = True
                break
            yield from self._make(schedule, times)
        self._apart = self._more
        if not self._more:
            yield from self._find_herd()
            if (herd_ms := self.state.agenda.herd_ms) is not None:
                yield from self._make_herd(replace(times, upto_ms=herd_ms))

    def _find_herd(self) -> Steps:
        """Note the instant up to which schedules are made until all of a herd is made; None where there is no herd."""
        agenda, limits, now_ms = self.state.agenda, self.ctx.limits, self.times.now_ms
        monotonic_ms = self.ctx.clock.monotonic_ms()
        if agenda.herd_ms is None and monotonic_ms >= agenda.herd_look_ms:
            agenda.herd_look_ms = monotonic_ms + LOOK_MS
            count = limits.herd_count
            while True:
                at_ms = self.ctx.store.next_schedule_ms(self.ctx.shard, count - 1)
                yield "herd looked for"
                if at_ms is None or at_ms > now_ms + limits.herd_ms:
                    break
                if at_ms - now_ms < HERD_EARLY * 1_000 * count // limits.herd_per_s:
                    agenda.herd_ms = at_ms
                count *= 2
        if agenda.herd_ms is not None and agenda.herd_ms <= now_ms + limits.look_ahead_ms:
            agenda.herd_ms = None

    def _make_herd(self, times: overlap.Times) -> Steps:
        """Make occurrences of some schedules of a herd; those of schedules that are due sooner are made by now."""
        agenda, renderer = self.state.agenda, self.ctx.renderer
        most = max(1, self.ctx.limits.herd_per_s * HERD_HASTE * HERD_ROUND_MS // 1_000)
        schedules = self.ctx.store.due_schedules(
            self.ctx.shard, times.upto_ms, most + self._waiting + agenda.herd_waiting
        )
        yield "herd read"
        before, waiting, moved = len(self.messages), self._waiting, len(self._moved)
        for schedule in schedules:
            if len(self.messages) >= before + most:
                break
            if (schedule.next_ms or 0) <= self.times.upto_ms:
                continue
            if renderer is not None and renderer.is_watched(schedule):
                self._waiting += 1
            else:
                yield from self._make(schedule, times)
        # Schedules that wait for their instants, at most so many, are read again in each round, before the others.
        waits, self._waiting = min(self._waiting - waiting, 1_000), waiting
        self._apart = True
        if len(self.messages) > before or len(self._moved) > moved or waits > agenda.herd_waiting:
            self._look_at(times.now_ms + HERD_ROUND_MS)
        else:
            agenda.herd_ms = None
        agenda.herd_waiting = waits

    def _make(self, schedule: Schedule, times: overlap.Times) -> Steps:
        """Make the occurrences of one schedule that are due."""
        began_ms = self.ctx.clock.monotonic_ms()
        if wait_ms := self.state.failing.wait_ms(schedule, began_ms):
            self._wait(times.now_ms + wait_ms)
            return
        if self._failed_ms >= FAILED_TRIES_MS:
            self._waiting, self._more = self._waiting + 1, True
            return
        try:
            definition = read_definition(schedule.definition)
        except RecurrenceError as error:
            self._break(schedule, error)
            return
        first, ahead_ms = schedule.next_ms or 0, 0 if definition.is_guarded else self.ctx.limits.look_ahead_ms
        if first > (times.now_ms if definition.is_guarded else times.upto_ms):
            self._wait(first - ahead_ms)
            return
        runs = None
        if definition.is_guarded:
            runs = yield from read_occupied(self.ctx, self.state, schedule.id, definition, times.now_ms)
        try:
            # 100 of one schedule in one round, so that a long catch-up holds up no other schedule.
            decision = overlap.decide(schedule, first, definition, times, 100, runs)
            messages = self._render(schedule, definition, decision)
        except RecurrenceError as error:  # a calendar that leaves nothing: no try can change that
            self._break(schedule, error)
            return
        except Exception as error:  # raised by code of the application, or an outage
            self._failed_ms += self.ctx.clock.monotonic_ms() - began_ms
            self._failed(schedule, error)
            return
        if self._has_left(schedule, messages):
            return
        if messages:
            self.state.failing.forget(schedule.id)
        self._step(schedule, decision, messages, ahead_ms)

    def _render(
        self, schedule: Schedule, definition: Definition, decision: overlap.Decision, item_id: int | None = None
    ) -> list[Message]:
        """Return the messages of the instants of a decision; ``item_id`` is that of a request."""
        if (renderer := self.ctx.renderer) is None:
            raise RecurrenceError("the scheduler that holds the shard runs no schedules")
        messages, previous_ms, before = list[Message](), schedule.last_ms, ""
        for number, instant_ms in enumerate(decision.make):
            if previous_ms is not None and previous_ms >= instant_ms:  # a backfill
                previous_ms = None
            if isinstance(decision, overlap.Requested):
                due_ms = min(decision.begin_ms + number * decision.every_ms, END_OF_TIME_MS - 1)
            else:
                due_ms = definition.call.due_ms(schedule.id, schedule.name, instant_ms)
            id_ = occurrence_id(self.ctx.store, schedule, instant_ms, item_id)
            is_queued = isinstance(decision, overlap.Requested) and decision.is_queued
            occurrence = Occurrence(self.ctx.shard, instant_ms, due_ms, previous_ms, id_, is_queued)
            message = renderer.render(schedule, definition, occurrence)
            message.envelope_id, message.eta_ms = id_, due_ms
            if definition.is_guarded or is_queued:
                self._reported.add(id_)
            if is_queued:
                self._before[id_] = before
            messages.append(message)
            previous_ms, before = instant_ms, id_
        return messages

    def _has_left(self, schedule: Schedule, messages: Sequence[Message]) -> bool:
        """Whether the schedule moves in this round; it does if its messages are of a group of another shard."""
        moved = self.change.moved_schedules
        if messages and schedule.id not in moved and self.state.agenda.may_leave(schedule):
            shard = self.ctx.shard_of(messages[0].group or schedule.name)
            if shard != self.ctx.shard:
                moved[schedule.id] = shard
                self._moved.append(schedule)
        return schedule.id in moved

    def _step(self, schedule: Schedule, decision: overlap.Decision, messages: Sequence[Message], ahead_ms: int) -> None:
        make, next_ms, change = decision.make, decision.next_ms, self.change
        if not make and not decision.skips and next_ms == schedule.next_ms:
            self._waiting += 1  # queued behind a run
            return
        self._add(schedule, decision, messages)
        made, last_ms = schedule.made + len(make), make[-1] if make else schedule.last_ms
        if schedule.is_failing and make:
            healed = replace(schedule, next_ms=next_ms, made=made, last_ms=last_ms, note="", since_ms=None)
            change.schedules.append(healed)
        else:
            change.schedule_steps.append(ScheduleStep(schedule.id, next_ms, made, last_ms))
        change.skips += decision.skips
        if next_ms is not None:
            self._look_at(next_ms - ahead_ms)

    def _add(self, schedule: Schedule, decision: overlap.Decision, messages: Sequence[Message]) -> None:
        """Add the messages of a decision, and end the runs that they replace."""
        asked = isinstance(decision, overlap.Requested)
        for instant_ms, message in zip(decision.make, messages, strict=True):
            self.add(schedule, instant_ms, message, requested=asked)
        self._replaced += decision.cancels
        self.change.run_ends += [RunEnd(run.timer_id, self.times.now_ms) for run in decision.cancels.values()]

    def add(self, schedule: Schedule, instant_ms: int, message: Message, *, requested: bool) -> None:
        self.messages.append(message)
        self._of[message.envelope_id] = Run(0, schedule.id, instant_ms, requested)

    def _wait(self, ready_ms: int) -> None:
        self._waiting += 1
        self._look_at(ready_ms)

    def _look_at(self, ready_ms: int) -> None:
        """Read the schedules again at an instant."""
        self._ready_ms = ready_ms if self._ready_ms is None else min(self._ready_ms, ready_ms)

    # -- errors --------------------------------------------------------------------------------------

    def _failed(self, schedule: Schedule, error: Exception) -> None:
        """Try a schedule again later whose message could not be made. An error may quote it: its text is not logged."""
        ctx, now_ms, is_outage = self.ctx, self.times.now_ms, isinstance(error, BrokerError)
        since_ms = schedule.since_ms if schedule.is_failing and schedule.since_ms is not None else now_ms
        if not is_outage:
            ctx.stats.add(schedule_errors=1)
            if now_ms - since_ms >= BROKEN_AFTER_MS:
                self._break(schedule, error)
                return
            if not schedule.is_failing:
                self.change.schedules.append(replace(schedule, note=reason_of(error), since_ms=now_ms))
        self._wait(now_ms + self.state.failing.failed(schedule, ctx.clock.monotonic_ms(), outage=is_outage))
        ctx.retries.write(
            logging.WARNING,
            error_place(error.__cause__ or error),
            "shard %d: the message of schedule %s cannot be made, and is tried again: %s",
            ctx.shard,
            schedule.name,
            error if is_outage else f"{error_place(error)}; `celery -A proj wheel schedules show` has the error",
            extra={"action": "schedule_waits", "shard": ctx.shard, "schedule": schedule.name},
        )

    def _break(self, schedule: Schedule, error: Exception) -> None:
        """Stop a schedule that cannot be read, or whose messages could not be made for BROKEN_AFTER_MS."""
        self.state.failing.forget(schedule.id)
        logger.error(
            "shard %d: schedule %s is broken and stops: %s; update it, or fix the cause and resume it",
            self.ctx.shard,
            schedule.name,
            error if isinstance(error, RecurrenceError) else error_place(error),
            extra={"action": "schedule_broken", "shard": self.ctx.shard, "schedule": schedule.name},
        )
        since_ms = schedule.decided_upto(self.times.now_ms)
        self.change.schedules.append(
            replace(schedule, broken=True, note=reason_of(error), next_ms=None, since_ms=since_ms)
        )

    # -- requests ------------------------------------------------------------------------------------

    def answer(self, request: ScheduleCommand) -> Steps:
        """Make the occurrences that a trigger or a backfill asks for."""
        schedules, elsewhere = locate(self.ctx, request)
        yield "requested schedules read"
        results, room, now_ms = dict[str, Mapping[str, object]](), overlap.MAX_BACKFILL, self.times.now_ms
        for name in request.names:
            if name in elsewhere:
                continue
            if (schedule := schedules.get(name)) is None:
                results[name] = {"result": "unknown"}
                continue
            try:
                definition = read_definition(schedule.definition)
                runs = overlap.Occupied()
                if definition.is_guarded and overlap.overlap_of(request, definition) != ALLOW:
                    runs = yield from read_occupied(self.ctx, self.state, schedule.id, definition, now_ms)
                wanted = overlap.requested(request, definition, unmade_since(schedule, now_ms), runs, now_ms, room)
                messages = self._render(schedule, definition, wanted, request.item_id)
            except StoreError:
                raise
            except Exception as error:
                results[name] = {"result": "refused", "reason": reason_of(error)}
                continue
            if self._has_left(schedule, messages):
                elsewhere[name] = self.change.moved_schedules[schedule.id]
                continue
            room -= len(messages)
            self._add(schedule, wanted, messages)
            of_all = f"{wanted.left_out} of {wanted.left_out + len(messages)} instants"
            task_ids = [message.task_id for message in messages]
            why = {"reason": f"the overlap policy of the backfill leaves out {of_all}"} if wanted.left_out else {}
            results[name] = {"result": "done", "task_ids": task_ids, **why}
        conclude(self.change, request, results, elsewhere, now_ms)

    def cancel_replaced(self) -> Steps:
        """Cancel the runs that later ones replace."""
        if not self._replaced or self.ctx.on_overlap is None:
            return
        try:
            self.ctx.on_overlap(self._replaced)
        except Exception:  # raised by code of the application
            logger.exception(
                "shard %d: %d runs were not cancelled, and go on beside the later ones; correct the error below",
                self.ctx.shard,
                len(self._replaced),
                extra={"action": "overlap", "shard": self.ctx.shard},
            )
        yield "earlier runs cancelled"


def unmade_since(schedule: Schedule, now_ms: int) -> int:
    """Return the instant up to now after which a schedule has made nothing."""
    return min(now_ms, schedule.decided_upto(now_ms))


def reason_of(error: Exception, failure: str = "no message can be made") -> str:
    """Return the text of an error for a schedule or an answer; ``failure`` begins that of an unexpected error."""
    is_known = isinstance(error, RecurrenceError | BrokerError)
    text = str(error) if is_known else f"{failure}: {type(error).__name__}: {error}"
    return text.replace("\0", "�").encode(errors="replace").decode()[:1_000]
