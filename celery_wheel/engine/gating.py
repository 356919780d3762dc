"""Pause and resume: gates that people set and open, each durable before it is answered.

::

    pause    closed in memory: from here on no chunk takes what stands behind it ─► the gate is in the store
    resume   the gate is gone from the store, or slow for a time ─► what had gathered leaves, in order

    done        so it is now          a chunk that was on its way may still arrive
    unknown     of a resume: it was not paused
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.context import Context
from celery_wheel.engine.gates import ALL, Place
from celery_wheel.engine.inbox import Command
from celery_wheel.engine.term import Term
from celery_wheel.errors import RequestWithdrawn
from celery_wheel.store.model import MAX_SEQ, PAUSE, PAUSED, SLOW, Answer, Change, Gate, Position


def carry_out_gates(ctx: Context, term: Term, command: Command) -> Generator[str, None, bool]:
    """Returns True: it was."""
    now_ms = ctx.clock.now_ms()
    there = {(gate.scope, gate.name): gate for gate in ctx.store.gates(ctx.shard)}
    yield "gates read"
    change, verdicts = Change(inbox=[command.item_id]), dict[str, str]()
    for name in command.task_ids:
        place = place_of(name)
        verdicts[name] = "done"
        if command.kind == PAUSE:
            change.gates.append(Gate(*place, PAUSED, 0, command.reason, command.actor, now_ms))
        elif place not in there:
            verdicts[name] = "unknown"
        elif command.per_ms:
            change.gates.append(Gate(*place, SLOW, command.per_ms, command.reason, command.actor, now_ms))
        else:
            change.opened.append(place)
    backlogs = [_backlog(ctx, term, gate, now_ms) for gate in change.gates]
    yield "backlog counted"
    if command.answer_to is not None:
        change.answers = [Answer(command.answer_to, verdicts, now_ms)]
    with term.active():
        for gate in change.gates:
            if gate.state == PAUSED:  # before anybody can read that it is
                term.gates.set(gate, 0, now_ms, ctx.clock.monotonic_ms())
    yield "gates closed"
    try:
        ctx.store.apply(ctx.shard, term.epoch, change)
    except RequestWithdrawn:
        before = {place: _backlog(ctx, term, gate, now_ms) for place, gate in there.items()}
        yield "command taken back"
        with term.active():
            for place in [(gate.scope, gate.name) for gate in change.gates]:
                term.gates.open(place)
                if place in there:
                    term.gates.set(there[place], before[place], now_ms, ctx.clock.monotonic_ms())
        ctx.wake.set()
        return True
    yield "command committed"
    with term.active():
        for gate, backlog in zip(change.gates, backlogs, strict=True):
            term.gates.set(gate, backlog, now_ms, ctx.clock.monotonic_ms())
        for place in change.opened:
            term.gates.open(place)
        for lane in term.lanes.values():
            if not lane.refusing:
                lane.retry_at_ms = 0  # it may have waited for a gate
    ctx.wake.set()
    yield "command done"
    return True


def place_of(name: str) -> tuple[str, str]:
    """``queue:mail`` as it is kept."""
    scope, _, rest = name.partition(":")
    return scope, rest


def _backlog(ctx: Context, term: Term, gate: Gate, now_ms: int) -> int:
    """How many stand behind a gate that is to be slow."""
    if gate.state == PAUSED:
        return 0
    place: Place = (gate.scope, gate.name)
    lanes = [lane for lane in term.lanes.values() if gate.scope == ALL or lane.place == place]
    due = Position(now_ms, MAX_SEQ)
    return sum(ctx.store.count(ctx.shard, lane.number, lane.watermark, max(lane.watermark, due)) for lane in lanes)
