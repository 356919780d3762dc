"""Ingest: messages from the wheel queue, the inbox and bulk loads become rows, in group commits.

::

    1 read       items of the inbox, with packed messages; chunks of bulk loads
    2 peek       the oldest messages of the wheel queue, still in it; and occurrences of schedules that are due soon
    3 compare    messages that are in the store already are dropped (a crash came between 6 and 8)
    4 admit      each message gets a position; or an outcome by a tombstone, a revoked stamp or a unique key
    5 reserve    dispatch takes no row at or after the lowest of these positions
    6 commit     one transaction and one fsync for all of them
    7 apply      rows up to the horizon go into the window; the reservation ends
    8 trim       exactly the peeked messages are removed from the queue: they are acknowledged only now
    9 commands   of the inbox, one by one (see ``commands``)
   10 bulk       the next step of a bulk action (see ``bulk_action``)

A crash between any two steps leaves each message in the queue, in the store or in both, never in neither. The inbox is
read before the queue is peeked: every message that was sent before a command is in the store when the command gets its
answer. A message whose task an earlier command names waits for the next round: a task that is sent anew after its
cancel is not cancelled. A message costs 36 µs of CPU (``python -m tests.benchmarks budget``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from celery_wheel.engine.bulk_action import carry_on, change_bulk
from celery_wheel.engine.commands import (
    accept_clock,
    cancel_or_move,
    complete,
    limit_groups,
    pause_or_resume,
    requeue_or_replay,
)
from celery_wheel.engine.erasure import erase
from celery_wheel.engine.intake.admission import admit, claimants, unique_keys
from celery_wheel.engine.intake.inbox import (
    AnyCommand,
    BulkCommand,
    Command,
    Completion,
    Erasure,
    RunEnded,
    ScheduleCommand,
    parse,
    run_ended,
)
from celery_wheel.engine.intake.stored_form import unpack_chunk
from celery_wheel.engine.port import Peeked
from celery_wheel.engine.recurring.change import change_schedules
from celery_wheel.engine.recurring.materialise import Occurrences, materialise
from celery_wheel.engine.recurring.runs import end_runs
from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.stats import BY_SIGNATURE, BY_UNIQUE, OF_ANOTHER, UNREADABLE, UNSIGNED
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store import model
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from celery_wheel.values.ids import id_beside, is_derived

NOT_SIGNED = "it has no signature of wheel_signing_keys: its producer has no keys, or is none of yours"
SIGNED_FOR_ANOTHER = "it was signed for the wheel queue of another shard: somebody has copied it"

#: The result of a peek that was left out.
NOTHING = Peeked([], None, False)


@dataclass(slots=True)
class _Intake:
    """The items and messages that one round has read from the inbox, the bulk loads and the wheel queue."""

    chunks: list[model.BulkLoadChunk]
    peeked: Peeked
    peeked_at_ms: int  #: monotonic
    has_arrivals: bool  #: the inbox or a committed load had something for the shard, or a bulk action is running
    arrivals: list[model.Arrival] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  #: inbox items of messages among the arrivals
    commands: list[AnyCommand] = field(default_factory=list)
    resent: set[str] = field(default_factory=set)  #: tasks with a message that waits behind a command of the inbox
    requests: list[ScheduleCommand] = field(default_factory=list)  #: triggers and backfills
    ended: list[RunEnded] = field(default_factory=list)
    occurrences: Occurrences = field(init=False)


def ingest(ctx: Context, state: ShardState) -> RoundSteps:
    intake = yield from _read(ctx)
    waiting = {one.item_id for one in intake.commands}
    state.first_read_at_ms = {item: at_ms for item, at_ms in state.first_read_at_ms.items() if item in waiting}
    occurrences = intake.occurrences = yield from materialise(ctx, state, intake.requests)
    done = len(intake.accepted) + len(intake.peeked.arrivals) + len(intake.chunks) + bool(occurrences)
    done += len(intake.ended)
    if not done and not intake.commands:
        occurrences.close()
        yield Round.BUSY if intake.has_arrivals and (yield from carry_on(ctx, state)) else Round.IDLE
        return
    accepted = yield from _accept(ctx, state, intake)
    if accepted:
        occurrences.close()  # before ``end_runs``, which may open the agenda again
    if not accepted or not (yield from end_runs(ctx, state, intake.ended)):
        yield Round.BUSY  # not all was committed, so nothing is trimmed; the next round reads all of it again
        return
    if not intake.peeked.arrivals:
        state.alone = state.accepted
    else:
        # A trim that removes nothing loses nothing: the messages are peeked again and known then.
        if (yield from ctx.ask("trim", ctx.shard, state.epoch, intake.peeked.token, state.accepted)):
            state.alone = state.accepted
        yield "trimmed"
    staying: set[str] = set()  # schedules: later commands on them stay behind the one that stays
    for command in intake.commands:
        schedules = set(command.names) if isinstance(command, ScheduleCommand) else set()
        if schedules.isdisjoint(staying) and (yield from _carry_out(ctx, state, command, intake)):
            done += 1
        else:
            staying |= schedules
    if intake.has_arrivals and (yield from carry_on(ctx, state)):
        done += 1
    yield Round.BUSY if done else Round.IDLE


def _read(ctx: Context) -> Generator[str, None, _Intake]:
    limits = ctx.limits
    inbox: Sequence[model.InboxItem] = ()
    chunks: list[model.BulkLoadChunk] = []
    look = ctx.call("has_arrivals", ctx.store.has_arrivals, partial(_arrivals, ctx), (ctx.shard,))
    if has_arrivals := (yield from look):
        inbox = ctx.store.read_inbox(
            ctx.shard, min(limits.inbox_count, limits.intake_count), limits.intake_bytes, limits.bulk_count
        )
    yield "inbox read"
    if has_arrivals:
        chunks = ctx.store.read_loads(ctx.shard, min(limits.bulk_count, limits.intake_count))
    yield "loads read"
    peeked_at_ms = ctx.clock.monotonic_ms()
    intake = _Intake(chunks, NOTHING, peeked_at_ms, has_arrivals)
    if inbox or chunks or ctx.queue.may_have_messages():
        intake.peeked = yield from _peek(ctx)
    yield "peeked"
    _sort(ctx, intake, inbox)
    _judge_unsigned(ctx, intake.peeked.arrivals)
    for arrival in intake.peeked.arrivals:
        if not isinstance(arrival, model.Unreadable) and is_derived(arrival.envelope_id):
            # Only holders make such ids: the message must not stand in the place of an occurrence.
            arrival.envelope_id = ctx.store.derived_id(f"wheel queue {arrival.envelope_id}")
        meaning: model.Message | model.Unreadable | RunEnded = arrival
        if isinstance(arrival, model.Message) and arrival.task == RUN_ENDED_TASK:
            if arrival.refused is not None:  # no task, which could be requeued: its slot ends by max_runtime
                ctx.stats.rejections.add(BY_SIGNATURE, 1, arrival.refused, arrival.task, arrival.task_id)
                continue
            meaning = run_ended(arrival)
        if isinstance(meaning, RunEnded):
            intake.ended.append(meaning)
        else:
            intake.arrivals.append(meaning)
    for chunk in chunks:
        intake.arrivals += unpack_chunk(chunk, ctx.broker.decode, ctx.store.derived_id)
    return intake


def _judge_unsigned(ctx: Context, arrivals: Iterable[model.Arrival]) -> None:
    """Count, or refuse, messages of the wheel queue that no key of ``wheel_signing_keys`` has signed for it."""
    unsigned = [one for one in arrivals if isinstance(one, model.Message) and one.signed_for != ctx.shard]
    for one in unsigned:
        one.signed = False
    if not unsigned or ctx.limits.unsigned == "accept":
        return
    ctx.stats.add(unsigned=len(unsigned))
    if ctx.limits.unsigned == "refuse":
        for one in unsigned:
            one.refused = _why_unsigned(one)
    else:
        one = unsigned[0]
        ctx.stats.rejections.add(UNSIGNED, len(unsigned), _why_unsigned(one), one.task, one.task_id)


def _why_unsigned(one: model.Message) -> str:
    return NOT_SIGNED if one.signed_for is None else SIGNED_FOR_ANOTHER


def _arrivals(ctx: Context, shards: Sequence[tuple[int]]) -> list[bool]:
    found = ctx.store.arrivals([shard for (shard,) in shards])
    return [shard in found for (shard,) in shards]


def _peek(ctx: Context) -> Generator[str, None, Peeked]:
    ctx.queue.arrived.clear()  # before the peek: a message that comes after it sets the event again
    peeked: Peeked | None = None
    try:
        peeked = yield from ctx.ask("peek", ctx.shard, ctx.limits.intake_count, ctx.limits.intake_bytes)
    finally:
        if peeked is None or peeked.arrivals:
            ctx.queue.arrived.set()
        elif ctx.broker.can_wait:
            ctx.queue.emptied.set()
    return peeked


def _sort(ctx: Context, intake: _Intake, inbox: Sequence[model.InboxItem]) -> None:
    """Sort the items of the inbox into arrivals, commands, and those that wait for the next round."""
    named: set[str] = set()  # ids that earlier commands name
    schedules = _ScheduleCommands()
    for item in inbox:
        meaning = parse(item, ctx.broker.decode, ctx.store.derived_id, programs=ctx.limits.audit_programs)
        if isinstance(meaning, RunEnded):
            intake.ended.append(meaning)
        elif isinstance(meaning, ScheduleCommand):
            schedules.sort(intake, meaning)
        elif isinstance(meaning, BulkCommand):
            intake.commands.append(meaning)
        elif isinstance(meaning, Command | Completion | Erasure):
            named.update(meaning.task_ids if isinstance(meaning, Command) else ())
            if not _concerns(meaning, intake.resent):
                intake.commands.append(meaning)
        else:
            task_ids = _task_ids(meaning) if named else set()
            if named.isdisjoint(task_ids):
                intake.arrivals += meaning
                intake.accepted.append(item.id)
            else:
                intake.resent |= task_ids


class _ScheduleCommands:
    """Sorts the commands on schedules, so that those on one name keep their order.

    Triggers and backfills are answered with the arrivals, before the other commands: one of them behind a change of
    the same schedule waits for the next round, and later commands on that schedule wait with it.
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._waiting: set[str] = set()

    def sort(self, intake: _Intake, command: ScheduleCommand) -> None:
        behind = self._waiting | self._changed if command.is_request else self._waiting
        if not behind.isdisjoint(command.names):
            self._waiting.update(command.names)
        elif command.is_request:
            intake.requests.append(command)
        else:
            self._changed.update(command.names)
            intake.commands.append(command)


def _concerns(command: Command | Completion | Erasure, resent: set[str]) -> bool:
    """Whether a command may be about a message before it that is not accepted yet; keys are not compared."""
    return bool(resent) and (not isinstance(command, Command) or not resent.isdisjoint(command.task_ids))


def _carry_out(ctx: Context, state: ShardState, command: AnyCommand, intake: _Intake) -> Generator[str, None, bool]:
    """Carry out a command; returns False where it stays in the inbox as it is."""
    if isinstance(command, ScheduleCommand):
        return (yield from change_schedules(ctx, state, command))
    if isinstance(command, BulkCommand):
        return (yield from change_bulk(ctx, state, command))
    empty_at_ms = None if intake.peeked.more else intake.peeked_at_ms
    if isinstance(command, Erasure):
        return (yield from erase(ctx, state, command, None if intake.chunks else empty_at_ms))
    if isinstance(command, Completion):
        return (yield from complete(ctx, state, command, empty_at_ms))
    if command.kind in (model.PAUSE, model.RESUME):
        return (yield from pause_or_resume(ctx, state, command))
    if command.kind == model.LIMIT:
        return (yield from limit_groups(ctx, state, command))
    if command.kind == model.ACCEPT_CLOCK:
        return (yield from accept_clock(ctx, state, command))
    if command.kind in (model.REQUEUE, model.REPLAY):
        return (yield from requeue_or_replay(ctx, state, command))
    if intake.chunks and command.kind != model.CANCEL:
        empty_at_ms = None  # a move waits until the bulk load is accepted
    return (yield from cancel_or_move(ctx, state, command, empty_at_ms, intake.resent))


def _accept(ctx: Context, state: ShardState, intake: _Intake) -> Generator[str, None, bool]:
    """Commit the new arrivals and the deletion of their items and chunks; returns False where nothing was committed."""
    occurrences = intake.occurrences
    fresh = _fresh(ctx, [*intake.arrivals, *occurrences.messages])
    yield "compared"
    if not fresh and not intake.accepted and not intake.chunks and not occurrences:
        return True
    tombstones = _tombstones(ctx, state, fresh)
    unique = None
    if keys := unique_keys(fresh):
        unique = claimants(ctx, state, model.UNIQUE, keys)
        yield "claimants found"
    with state.active():
        if unique is not None and unique.are_stale(state):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms(), occurrences.change, occurrences.lane_apart())
        admit(work, fresh, unique, tombstones)
        work.change.inbox += intake.accepted
        work.change.loaded = [chunk.id for chunk in intake.chunks]
        occurrences.record()
        work.reserve()
    yield "reserved"
    if not (yield from work.commit(ctx)):
        return False
    _count(ctx, work.change)
    return True


def _fresh(ctx: Context, arrivals: list[model.Arrival]) -> list[model.Arrival]:
    """Return the arrivals that are not in the store, each once; blocks are taken apart where some are. An unreadable
    one with a known id is taken for that message: without its key, a message that was accepted comes so again."""
    ids: list[str] = []
    for one in arrivals:
        ids += one.envelope_ids if isinstance(one, model.MessageBlock) else (one.envelope_id,)
    tasks = ctx.store.known(ctx.shard, ids) if ids else {}
    if not tasks and len(set(ids)) == len(ids):
        return arrivals
    fresh: list[model.Arrival] = []
    others: list[model.Arrival] = []
    for one in model.each(arrivals):
        of_task = tasks.get(one.envelope_id)
        if of_task is None:
            tasks[one.envelope_id] = "" if isinstance(one, model.Unreadable) else one.task_id
            fresh.append(one)
        elif not isinstance(one, model.Unreadable) and one.task_id != of_task:
            others.append(_beside(ctx, one, of_task))
    ctx.stats.add(known=len(ids) - len(fresh) - len(others))
    return fresh + _fresh(ctx, others) if others else fresh


def _beside(ctx: Context, one: model.Message, of_task: str) -> model.Message:
    """Give a message whose id another task has an id of its own."""
    own = id_beside(one.envelope_id, one.task_id)
    ctx.stats.rejections.add(OF_ANOTHER, 1, f"task {of_task} has the id {one.envelope_id} too", one.task, one.task_id)
    one.envelope_id = own
    return one


def _task_ids(arrivals: Iterable[model.Arrival]) -> set[str]:
    found: set[str] = set()
    for one in arrivals:
        if not isinstance(one, model.Unreadable):
            found.update(one.task_ids if isinstance(one, model.MessageBlock) else (one.task_id,))
    return found


def _tombstones(ctx: Context, state: ShardState, fresh: list[model.Arrival]) -> dict[str, model.Tombstone]:
    """Return the tombstones of arrivals; none is missed, since only commands, in this round, add tombstones."""
    if not state.tombstones:
        return {}
    with state.active():
        candidates = state.tombstones.candidates(_task_ids(fresh))
    return ctx.store.tombstones(ctx.shard, candidates) if candidates else {}


def _count(ctx: Context, change: model.Change) -> None:
    kinds = [one.kind for one in change.outcomes]
    rejected, unreadable = kinds.count("rejected"), len(change.rejects)
    if unreadable:
        first = change.rejects[0].unreadable
        ctx.stats.rejections.add(UNREADABLE, unreadable, first.reason, *first.of)
    reasons = {one.timer_id: one.reason for one in change.outcomes if one.kind == "rejected"}
    refused = [row.message for row in change.rows if row.message.refused] if len(reasons) > unreadable else []
    for one in refused[:1]:
        ctx.stats.rejections.add(BY_SIGNATURE, len(refused), _why_unsigned(one), one.task, one.task_id)
    if unique := rejected - unreadable - len(refused):
        row = next(row for row in change.rows if row.id in reasons and not row.message.refused)
        ctx.stats.rejections.add(BY_UNIQUE, unique, reasons[row.id], row.message.task, row.message.task_id)
    ctx.stats.add(
        accepted=change.accepted - unreadable,
        rejected=rejected,
        rejected_unreadable=unreadable,
        rejected_unique=unique,
        rejected_signature=len(refused),
        cancelled=kinds.count("cancelled"),
    )
