"""Ingest: messages from the wheel queue, the inbox and bulk loads become rows, in group commits.

::

    read            items of the inbox and chunks of bulk loads
    peek            the oldest messages of the wheel queue, still in it
    compare         messages that are in the store already are dropped (a crash came between commit and trim)
    admit           each message gets a position, or an outcome where a tombstone, a revoked stamp or the unique key of
                    another task stands against it
    reserve         no row at or after the lowest position may be published
    commit          one transaction and one fsync for all of them
    apply           rows up to the horizon go into the window; the reservation ends
    trim            exactly the peeked messages are removed from the queue: they are acknowledged only now
    commands        of the inbox, one by one (see ``commands``)

Messages of the inbox are accepted before its commands are carried out, but a message of a task that an earlier command
names waits for the next round: a task that is sent anew after its cancel is not cancelled. Later commands that may
concern it wait with it.

A round takes a limited number of chunks of bulk loads, so neither commands nor messages queue behind ten million rows.
While a load is not accepted as a whole, a cancel answers ``unknown`` for its remaining tasks as for tasks not sent yet,
and leaves tombstones for them; a completion finds only the accepted tasks; a move waits until the load is accepted.

A crash between any two steps leaves each message in the queue, in the store or in both, never in neither.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.commands.accept_clock import accept_clock
from celery_wheel.engine.commands.cancel_move import carry_out
from celery_wheel.engine.commands.complete import complete
from celery_wheel.engine.commands.gates import carry_out_gates
from celery_wheel.engine.context import Context, Round, RoundSteps
from celery_wheel.engine.intake.inbox import Command, Completion, parse
from celery_wheel.engine.intake.load_chunks import unpacked
from celery_wheel.engine.intake.uniqueness import admit, claimants, unique_keys
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.work import UnitOfWork
from celery_wheel.store.model import ACCEPT_CLOCK, CANCEL, PAUSE, RESUME, UNIQUE, Change, Message, Tombstone, Unreadable


def ingest(ctx: Context, state: ShardState) -> RoundSteps:
    limits = ctx.limits
    inbox = ctx.store.read_inbox(ctx.shard, min(limits.inbox_count, limits.intake_count), limits.intake_bytes)
    yield "inbox read"
    chunks = ctx.store.read_loads(ctx.shard, min(limits.bulk_count, limits.intake_count))
    yield "loads read"
    peeked_at_ms = ctx.clock.monotonic_ms()
    peeked = ctx.broker.peek(ctx.shard, limits.intake_count, limits.intake_bytes)
    yield "peeked"
    if not peeked.arrivals and not inbox and not chunks:
        yield Round.IDLE
        return
    arrivals: list[Message | Unreadable] = []
    commands: list[Command | Completion] = []
    taken: list[int] = []
    named: set[str] = set()  # ids that earlier commands name
    anew: set[str] = set()  # ids of messages that wait for such a command
    for item in inbox:
        meaning = parse(item, ctx.broker.decode)
        if isinstance(meaning, Command | Completion):
            named.update(meaning.task_ids if isinstance(meaning, Command) else ())
            if not _concerns(meaning, anew):
                commands.append(meaning)
        elif isinstance(meaning, Unreadable) or meaning.task_id not in named:
            arrivals.append(meaning)
            taken.append(item.id)
        else:
            anew.add(meaning.task_id)
    loaded = [arrival for chunk in chunks for arrival in unpacked(chunk, ctx.broker.decode)]
    arrivals += [*peeked.arrivals, *loaded]
    if not (yield from _take_in(ctx, state, arrivals, taken, [chunk.id for chunk in chunks])):
        yield Round.BUSY  # an inbox item was withdrawn meanwhile; nothing was committed, so nothing is trimmed
        return
    if peeked.arrivals:
        # A trim that removes nothing loses nothing: the messages are peeked again and known then.
        ctx.broker.trim(ctx.shard, state.epoch, peeked.token)
        yield "trimmed"
    done = len(taken) + len(peeked.arrivals) + len(chunks)
    for command in commands:
        if isinstance(command, Completion):
            done += yield from complete(ctx, state, command, None if peeked.more else peeked_at_ms)
        elif command.kind in (PAUSE, RESUME):
            done += yield from carry_out_gates(ctx, state, command)
        elif command.kind == ACCEPT_CLOCK:
            done += yield from accept_clock(ctx, state, command)
        else:
            waits = peeked.more or bool(chunks and command.kind != CANCEL)
            done += yield from carry_out(ctx, state, command, None if waits else peeked_at_ms, anew)
    yield Round.BUSY if done else Round.IDLE


def _concerns(command: Command | Completion, anew: set[str]) -> bool:
    """Whether a command may be about a message before it that is not accepted yet; keys are not compared."""
    return bool(anew) and (isinstance(command, Completion) or not anew.isdisjoint(command.task_ids))


def _take_in(
    ctx: Context, state: ShardState, arrivals: list[Message | Unreadable], inbox: list[int], loaded: list[int]
) -> Generator[str, None, bool]:
    """Commit the new arrivals together with the deletion of inbox items and chunks.

    Returns False where an inbox item was withdrawn meanwhile, and nothing was committed.
    """
    first = {arrival.envelope_id: arrival for arrival in reversed(arrivals)}
    known = ctx.store.known(ctx.shard, list(first)) if first else set()
    fresh = [a for a in arrivals if a.envelope_id not in known and first[a.envelope_id] is a]
    ctx.stats.add(known=len(arrivals) - len(fresh))
    yield "compared"
    if not fresh and not inbox and not loaded:
        return True
    tombstones = _tombstones(ctx, state, fresh)
    unique = None
    if keys := unique_keys(fresh):
        unique = claimants(ctx, state, UNIQUE, keys)
        yield "claimants found"
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        admit(work, fresh, unique, tombstones)
        work.change.inbox, work.change.loaded = inbox, loaded
        work.reserve()
    yield "reserved"
    if not (yield from work.commit(ctx)):
        return False
    _count(ctx, work.change)
    return True


def _tombstones(ctx: Context, state: ShardState, fresh: list[Message | Unreadable]) -> dict[str, Tombstone]:
    """Return the tombstones of arrivals. Only this thread adds tombstones, by its commands, so none can be missed."""
    if not state.tombstones:
        return {}
    with state.active():
        candidates = state.tombstones.candidates({one.task_id for one in fresh if isinstance(one, Message)})
    return ctx.store.tombstones(ctx.shard, candidates) if candidates else {}


def _count(ctx: Context, change: Change) -> None:
    kinds = [one.kind for one in change.outcomes]
    ctx.stats.add(accepted=len(change.rows), rejected=kinds.count("rejected"), cancelled=kinds.count("cancelled"))
