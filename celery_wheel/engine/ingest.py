"""Ingest: messages from the wheel queue, the inbox and bulk loads become rows, in group commits.

::

    peek            the oldest messages, still in the queue
    compare         which of them are in the store already (a crash came between commit and trim)
    admit           what is to be the only one of its key waits, or not
    reserve         each gets its position; nothing at or after the lowest may leave
    commit          one transaction, one fsync for all that was waiting
    place           into the window, as far as it is near; the reservation closes
    trim            exactly what was peeked goes from the queue: acknowledged only now

Of the inbox, messages come before commands, but for one that a command before it names: what is sent anew after it was
cancelled is not cancelled. It waits for the next round, and commands behind it that may concern it wait with it.

Of bulk loads, some chunks a round, beside all else: neither commands nor messages queue behind ten million rows. So a
cancelled task of a load of which not all is taken in is ``unknown`` like one that was not sent yet, and its tombstone
meets it; a key completes those that were taken in. To be moved a task has to be here: that command waits for the load.

A crash between any two of them leaves the messages in the queue, or in the store, or in both; never in neither.
"""

from __future__ import annotations

from celery_wheel.engine.bulk import unpacked
from celery_wheel.engine.claims import admit, admitted, claimants, unique_keys
from celery_wheel.engine.commands import carry_out
from celery_wheel.engine.completion import complete
from celery_wheel.engine.context import Context, Round, RoundSteps, Steps
from celery_wheel.engine.gating import carry_out_gates
from celery_wheel.engine.inbox import Command, Completion, parse
from celery_wheel.engine.term import Term
from celery_wheel.store.model import CANCEL, PAUSE, RESUME, UNIQUE, Change, Message, Unreadable


def ingest(ctx: Context, term: Term) -> RoundSteps:
    limits = ctx.limits
    inbox = ctx.store.read_inbox(ctx.shard, min(limits.inbox_count, limits.intake_count), limits.intake_bytes)
    yield "inbox read"
    chunks = ctx.store.read_loads(ctx.shard, min(limits.bulk_count, limits.intake_count))
    yield "loads read"
    peeked = ctx.broker.peek(ctx.shard, limits.intake_count, limits.intake_bytes)
    yield "peeked"
    if not peeked.arrivals and not inbox and not chunks:
        yield Round.IDLE
        return
    arrivals: list[Message | Unreadable] = []
    commands: list[Command | Completion] = []
    taken: list[int] = []
    named: set[str] = set()  # by commands before
    anew: set[str] = set()  # tasks of messages that wait for such a command
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
    yield from _take_in(ctx, term, [*arrivals, *peeked.arrivals, *loaded], taken, [chunk.id for chunk in chunks])
    if peeked.arrivals:
        # A refusal is no loss: what is there is peeked again, and what is known is not taken in twice.
        ctx.broker.trim(ctx.shard, term.epoch, peeked.token)
        yield "trimmed"
    done = len(taken) + len(peeked.arrivals) + len(chunks)
    for command in commands:
        if isinstance(command, Completion):
            done += yield from complete(ctx, term, command, queue_is_empty=not peeked.more)
        elif command.kind in (PAUSE, RESUME):
            done += yield from carry_out_gates(ctx, term, command)
        else:
            waits = peeked.more or bool(chunks and command.kind != CANCEL)
            done += yield from carry_out(ctx, term, command, queue_is_empty=not waits, anew=anew)
    yield Round.BUSY if done else Round.IDLE


def _concerns(command: Command | Completion, anew: set[str]) -> bool:
    """Whether a command may be about a message before it that is not taken in yet; which keys that one watches is
    not looked at."""
    return bool(anew) and (isinstance(command, Completion) or not anew.isdisjoint(command.task_ids))


def _take_in(
    ctx: Context, term: Term, arrivals: list[Message | Unreadable], inbox: list[int], loaded: list[int]
) -> Steps:
    """Commit what is new of the arrivals, together with the removal of inbox items and chunks, and let it wait."""
    first = {arrival.envelope_id: arrival for arrival in reversed(arrivals)}
    known = ctx.store.known(ctx.shard, list(first)) if first else set()
    fresh = [a for a in arrivals if a.envelope_id not in known and first[a.envelope_id] is a]
    ctx.stats.known += len(arrivals) - len(fresh)
    yield "compared"
    if not fresh and not inbox and not loaded:
        return
    unique = None
    if keys := unique_keys(fresh):
        unique = claimants(ctx, term, UNIQUE, keys)
        yield "claimants found"
    with term.active():
        admission = admit(term, fresh, unique, ctx.clock.now_ms())
    change = admission.change
    change.inbox, change.loaded = inbox, loaded
    yield "reserved"
    ctx.store.apply(ctx.shard, term.epoch, change)
    yield "committed"
    with term.active():
        admitted(term, admission)
    ctx.wake.set()
    if change.watches:
        ctx.untold.set()
    _count(ctx, change)
    yield "placed"


def _count(ctx: Context, change: Change) -> None:
    ctx.stats.accepted += len(change.rows)
    kinds = [one.kind for one in change.outcomes]
    ctx.stats.rejected += kinds.count("rejected")
    ctx.stats.cancelled += kinds.count("cancelled")
