"""Pause and resume: close and open gates; the change is durable before the answer.

::

    pause    the gate closes in memory: no later chunk takes a row behind it ─► the gate is in the store
    resume   the gate is deleted from the store, or slow for a time ─► its backlog is published in order

    done        the gate is as requested; after a pause, a chunk that is being published may still arrive
    unknown     resume: the gate was not set
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.gates import ALL, Place
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.model import MAX_SEQ, PAUSE, PAUSED, SLOW, Gate, Position

logger = logging.getLogger(__name__)


def pause_or_resume(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out a pause or a resume; returns True, since it never stays in the inbox."""
    now_ms = ctx.clock.now_ms()
    existing = {(gate.scope, gate.name): gate for gate in ctx.store.gates(ctx.shard)}
    yield "gates read"
    work, results = UnitOfWork(state, now_ms), dict[str, str]()
    for name in command.task_ids:
        place = place_of(name)
        results[name] = "done"
        if command.kind == PAUSE:
            work.change.gates.append(Gate(*place, PAUSED, 0, command.reason, command.actor, now_ms))
        elif place not in existing:
            results[name] = "unknown"
        elif command.per_ms:
            work.change.gates.append(Gate(*place, SLOW, command.per_ms, command.reason, command.actor, now_ms))
        else:
            work.change.opened.append(place)
    work.answer(command, results)
    before = [existing[place] for gate in work.change.gates if (place := (gate.scope, gate.name)) in existing]
    backlogs = {id(gate): _backlog(ctx, state, gate, now_ms) for gate in (*work.change.gates, *before)}
    yield "backlog counted"
    with state.active():
        _build(ctx, work, before, backlogs)
        work.reserve()
    yield "gates closed"
    if (yield from work.commit(ctx)):
        for name in [name for name, result in results.items() if result == "done"]:
            _log(ctx, command, name)
    ctx.wake.set()
    ctx.room.set()
    return True


def _log(ctx: Context, command: Command, name: str) -> None:
    scope, of = place_of(name)
    over = f" over {command.per_ms / 1_000:g} s" if command.per_ms else ""
    logger.info(
        "shard %d: %s is %sd%s%s%s",
        ctx.shard,
        "everything" if scope == ALL else f"{scope} {of}",
        command.kind,
        over,
        f" by {command.actor}" if command.actor else "",
        f": {command.reason}" if command.reason else "",
        extra={
            "action": command.kind,
            "shard": ctx.shard,
            "gate": name,
            "per_ms": command.per_ms,
            "actor": command.actor,
            "reason": command.reason,
        },
    )


def _build(ctx: Context, work: UnitOfWork, before: list[Gate], backlogs: dict[int, int]) -> None:
    """Close gates at once, before any process can read that they are closed; the rest takes effect with the commit."""
    state, change = work.state, work.change

    def set_gates(gates: list[Gate]) -> None:
        for gate in gates:
            state.gates.set(gate, backlogs[id(gate)], work.now_ms, ctx.clock.monotonic_ms())

    def apply() -> None:
        for place in change.opened:
            state.gates.open(place)
        set_gates(change.gates)
        for lane in state.lanes:
            if not lane.refusing:
                lane.retry_at_ms = 0  # the lane may have waited for a gate

    def roll_back() -> None:
        for gate in change.gates:
            state.gates.open((gate.scope, gate.name))
        set_gates(before)

    set_gates([gate for gate in change.gates if gate.state == PAUSED])
    work.on_apply(apply)
    work.on_roll_back(roll_back)


def place_of(name: str) -> tuple[str, str]:
    """Return (scope, name) of a gate's name such as ``queue:mail``."""
    scope, _, rest = name.partition(":")
    return scope, rest


def _backlog(ctx: Context, state: ShardState, gate: Gate, now_ms: int) -> int:
    """Return how many rows wait behind a gate; 0 for a pause, which needs no count."""
    if gate.state == PAUSED:
        return 0
    place: Place = (gate.scope, gate.name)
    with state.active():
        lanes = [(lane.number, lane.watermark) for lane in state.lanes if gate.scope == ALL or lane.place == place]
    due = Position(now_ms, MAX_SEQ)
    return sum(ctx.store.count(ctx.shard, number, after, max(after, due)) for number, after in lanes)
