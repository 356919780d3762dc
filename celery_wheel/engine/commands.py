"""Commands of the inbox, each with a result: tasks, keys, gates, limits of groups, the clock.

::

    find ─► under the lock: revise, reserve ─► commit: new positions, outcomes, the answer and the deletion of the inbox
            item, all or none ─► apply; a withdrawn request is no longer in the inbox, and is rolled back

    cancel, move      done      the task will not be published, and is announced; or it is due at the new time
                      already   the task was cancelled before
                      too_late  it was published or may have been, or its row is in lane STOPPED for another reason
                      unknown   there is no row of the task; a cancel leaves a tombstone, which cancels the task if its
                                message comes within a day, unless that message is behind the command in the inbox
    complete          done, too_late, by key: a published row is too late once, and then no longer watches
    requeue, replay   done: due now     too_late: pending, cancelled, unreadable or published a moment ago     unknown
                      a message that can be read by now, since a key was missing, is accepted as if it came now
    limit             done: the groups have these limits of their own     unknown: nothing to clear

A command stays in the inbox while a row of it moves to another lane, and, unless every result is ``done``, until every
message that was sent before it is accepted. Replayed rows have a lane of their own, and are too late for a cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from celery_wheel.engine.intake.admission import Claimants, admit, claimants
from celery_wheel.engine.intake.inbox import Command, Completion
from celery_wheel.engine.round import Context, make_call
from celery_wheel.engine.state.gates import ALL, GROUP, Place
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.store import model
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

DONE, ALREADY, TOO_LATE, UNKNOWN = "done", "already", "too_late", "unknown"

#: How long a tombstone keeps a cancelled id from being accepted.
TOMBSTONE_MS = 86_400_000


def cancel_or_move(
    ctx: Context, state: ShardState, command: Command, empty_at_ms: int | None, resent: Collection[str] = ()
) -> Generator[str, None, bool]:
    """Carry out a command on tasks; returns False where it has to stay in the inbox.

    ``empty_at_ms``: monotonic instant at which the wheel queue was peeked to its end; None: it had more messages.
    ``resent``: ids of tasks with a message behind the command in the inbox.
    """
    with state.active():
        mark = state.mark()
    found = ctx.store.find(ctx.shard, command.task_ids)
    known = {row.task_id for row in found}
    missing = [task_id for task_id in command.task_ids if task_id not in known]
    outcomes = ctx.store.last_outcomes(ctx.shard, command.task_ids)
    # Each scheduler writes the command of a revoke that it hears.
    repeated = ctx.store.tombstones(ctx.shard, command.task_ids) if command.for_good else ()
    yield "found"
    queue_is_empty = earlier_are_accepted(ctx, state, command.item_id, empty_at_ms)
    with state.active():
        pending = {row.task_id for row in found if not state.may_be_published(row)}
        if not queue_is_empty and not pending.issuperset(command.task_ids):
            return False
        if state.may_be_diverted(found, mark):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        done = _revise(work, command, found)
        results = dict.fromkeys(command.task_ids, TOO_LATE)
        results |= {task_id: UNKNOWN for task_id in missing if task_id not in outcomes}
        results |= dict.fromkeys(done, DONE)
        if command.kind == model.CANCEL:
            results |= {task_id: ALREADY for task_id in missing if outcomes.get(task_id) == "cancelled"}
        _record(work, command, results, resent, repeated)
        work.reserve()
    yield "reserved"
    if (yield from work.commit(ctx)):
        ctx.stats.add(**{"cancelled" if command.kind == model.CANCEL else "moved": len(work.rows)})
    return True


def earlier_are_accepted(ctx: Context, state: ShardState, item_id: int, empty_at_ms: int | None) -> bool:
    """Whether every message that was sent before the command is accepted; where a broker pushes, some may be under way
    while the queue looks empty: only a peek at least ``transit_ms`` after the command was first read counts."""
    if empty_at_ms is None or not ctx.delivery.transit_ms:
        return empty_at_ms is not None
    first_read_at_ms = state.first_read_at_ms.setdefault(item_id, ctx.clock.monotonic_ms())
    return empty_at_ms - first_read_at_ms >= ctx.delivery.transit_ms


def _revise(work: UnitOfWork, command: Command, found: Iterable[model.Row]) -> set[str]:
    """Cancel or move the pending rows; returns their task ids."""
    done: set[str] = set()
    for row in found:
        if not work.take_out(row):
            continue
        done.add(row.task_id)
        if command.kind == model.CANCEL:
            work.cancel(row, Retirement("cancelled", command.reason, command.actor))
        else:
            relocate(work, row, command.eta_ms, command.reason, command.actor)
    return done


def relocate(work: UnitOfWork, row: model.Row, eta_ms: int | None, reason: str, actor: str) -> None:
    """Give a row that was taken out another eta; None: now."""
    eta_ms = work.now_ms if eta_ms is None else eta_ms
    work.move(row, work.state.lanes.for_eta(eta_ms, work.now_ms), eta_ms, eta_ms)
    work.record_move(row, reason, actor)


def _record(
    work: UnitOfWork, command: Command, results: dict[str, str], resent: Collection[str], repeated: Collection[str]
) -> None:
    change, now_ms = work.change, work.now_ms
    work.answer(command, results | {one: ALREADY for one in repeated if results[one] in (UNKNOWN, TOO_LATE)})
    if command.kind == model.CANCEL:
        until_ms = now_ms + TOMBSTONE_MS
        with_tombstone = (UNKNOWN, TOO_LATE) if command.for_good else (UNKNOWN,)
        task_ids = [task_id for task_id, result in results.items() if result in with_tombstone]
        if not command.for_good:
            task_ids = [task_id for task_id in task_ids if task_id not in resent]
        change.tombstones = [model.Tombstone(task_id, until_ms, command.reason, command.actor) for task_id in task_ids]
        work.on_apply(lambda: work.state.tombstones.add(task_ids))


def complete(
    ctx: Context, state: ShardState, command: Completion, empty_at_ms: int | None
) -> Generator[str, None, bool]:
    """Complete keys; returns False where the command has to stay in the inbox, as ``cancel_or_move`` does."""
    if not earlier_are_accepted(ctx, state, command.item_id, empty_at_ms):
        return False
    watching = claimants(ctx, state, model.WATCH, command.keys)
    yield "watchers found"
    with state.active():
        if watching.are_stale(state):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        _complete_rows(work, command, watching)
        work.change.completed += watching.published(work.now_ms)  # its unique key may have a window
        work.answer(command, _counts(command, watching, work))
        work.reserve()
    yield "reserved"
    if (yield from work.commit(ctx)):
        ctx.stats.add(completed=len(work.rows))
    return True


def _complete_rows(work: UnitOfWork, command: Completion, watching: Claimants) -> None:
    rows: dict[int, tuple[str, model.Row]] = {}
    for claim, row in watching.found:
        rows.setdefault(row.id, (claim.key, row))  # the first of several keys completes a task
    for key, row in rows.values():
        if not work.take_out(row):
            continue
        reason = f"completed by the key {key!r}" + (f": {command.reason}" if command.reason else "")
        if command.run:
            relocate(work, row, None, reason, command.actor)
            work.change.completed.append(row.id)
        else:
            work.cancel(row, Retirement("cancelled", reason, command.actor))


def _counts(command: Completion, watching: Claimants, work: UnitOfWork) -> dict[str, dict[str, int]]:
    """Return key → result → number of tasks."""
    done = {row.id for row in work.rows}
    counts = {key: {DONE: 0, TOO_LATE: 0} for key in command.keys}
    for claim, row in watching.found:
        counts[claim.key][DONE if row.id in done else TOO_LATE] += 1
    return counts


def requeue_or_replay(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out a requeue or a replay; returns True, since it never stays in the inbox."""
    with state.history:
        if command.kind == model.REPLAY:
            rows, results = _replayable(ctx, command)
            readable = []
            redelivered = {row.id for row in rows}
        else:
            rows, redelivered, results = _requeueable(ctx, command)
            stopped = ctx.store.stopped_rows(ctx.shard, command.task_ids)
            readable = readable_among(ctx, [row for kind, row in stopped if kind == "rejected"])
            results |= {message.task_id: DONE for _, message in readable}
        with state.active():
            if command.kind == model.REPLAY:
                results.update({str(row.id): TOO_LATE for row in rows if not is_closed(state, row)})
                rows = [row for row in rows if results[str(row.id)] == DONE]
            work = UnitOfWork(state, ctx.clock.now_ms())
            publish_again(work, rows, redelivered, readable, command.reason, command.actor)
            work.answer(command, results)
            work.reserve()
        steps = work.commit(ctx)
        make_call(steps)  # the commit, before rows can be forgotten
    yield "committed under the history lock"
    if (yield from steps):
        ctx.stats.add(moved=len(rows))
    return True


def _requeueable(ctx: Context, command: Command) -> tuple[list[model.Row], set[int], dict[str, str]]:
    found = ctx.store.stopped_rows(ctx.shard, command.task_ids)
    stored = {row.task_id for row in (*ctx.store.find(ctx.shard, command.task_ids), *(row for _, row in found))}
    wanted = [
        (kind, row) for kind, row in found if kind in model.REQUEUABLE and (row.route.exchange or row.route.routing_key)
    ]
    results = {id_: TOO_LATE if id_ in stored else UNKNOWN for id_ in command.task_ids}
    results |= {row.task_id: DONE for _, row in wanted}
    in_doubt = ctx.delivery.prepares
    redelivered = {row.id for kind, row in wanted if in_doubt and kind == "rejected"}
    return [row for _, row in wanted], redelivered, results


def readable_among(ctx: Context, rows: Iterable[model.Row]) -> list[tuple[model.Row, model.Message]]:
    """Return the messages of rejected rows that can be read by now, and that the store has in no other row."""
    found = dict[str, tuple[model.Row, model.Message]]()
    for row in rows:
        if not (row.route.exchange or row.route.routing_key):
            message = ctx.broker.decode(row.parts().body)
            if isinstance(message, model.Message) and message.task_id == row.task_id:
                found[message.envelope_id] = row, message
    known = ctx.store.known(ctx.shard, list(found)) if found else {}
    return [one for envelope_id, one in found.items() if envelope_id not in known]


def _replayable(ctx: Context, command: Command) -> tuple[list[model.Row], dict[str, str]]:
    rows = {row.id: row for row in ctx.store.rows(ctx.shard, [int(one) for one in command.task_ids])}
    known = [rows[int(one)] for one in command.task_ids if int(one) in rows]
    results = dict.fromkeys(command.task_ids, UNKNOWN) | {str(row.id): DONE for row in known}
    return known, results


def is_closed(state: ShardState, row: model.Row) -> bool:
    """Whether no later adoption needs the row; all rows of a closed lane are settled."""
    lane = state.lanes.get(row.lane)
    return row.lane >= 0 if lane is None else row.position <= lane.replayable


def publish_again(
    work: UnitOfWork,
    rows: Iterable[model.Row],
    redelivered: Collection[int],
    readable: Iterable[tuple[model.Row, model.Message]],
    reason: str,
    actor: str,
) -> None:
    """Make rows due now.

    Args:
        redelivered: the ids of rows that may be in their queue already.
        readable: rows that could not be read, with their messages by now.
    """
    for row in rows:
        work.rows.append(row)
        work.change.unwatched.append(row.id)  # no key completes the row any more, and it claims no unique key
        work.move(
            row, work.state.lanes.for_eta(work.now_ms, work.now_ms, row.id in redelivered), work.now_ms, work.now_ms
        )
        work.record_move(row, reason, actor)
    for row, message in readable:
        work.retire(row.id, "moved", "it was read anew", actor)
        admit(work, [message])


def pause_or_resume(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out a pause or a resume; returns True, since it never stays in the inbox."""
    now_ms = ctx.clock.now_ms()
    existing = {(gate.scope, gate.name): gate for gate in ctx.store.gates(ctx.shard)}
    yield "gates read"
    work, results = UnitOfWork(state, now_ms), dict[str, str]()
    for name in command.task_ids:
        place = gate_place(name)
        results[name] = DONE
        if command.kind == model.PAUSE:
            work.change.gates.append(model.Gate(*place, model.PAUSED, 0, command.reason, command.actor, now_ms))
        elif place not in existing:
            results[name] = UNKNOWN
        elif command.per_ms:
            work.change.gates.append(
                model.Gate(*place, model.SLOW, command.per_ms, command.reason, command.actor, now_ms)
            )
        else:
            work.change.opened.append(place)
    work.answer(command, results)
    before = [existing[place] for gate in work.change.gates if (place := (gate.scope, gate.name)) in existing]
    backlogs = {id(gate): _backlog(ctx, state, gate, now_ms) for gate in (*work.change.gates, *before)}
    yield "backlog counted"
    with state.active():
        _set_gates(ctx, work, before, backlogs)
        work.reserve()
    yield "gates closed"
    if (yield from work.commit(ctx)):
        for name in [name for name, result in results.items() if result == DONE]:
            _log_gate(ctx, command, name)
    ctx.wake.set()
    ctx.freed.set()
    ctx.room.set()
    return True


def _log_gate(ctx: Context, command: Command, name: str) -> None:
    scope, of = gate_place(name)
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


def _set_gates(ctx: Context, work: UnitOfWork, before: list[model.Gate], backlogs: dict[int, int]) -> None:
    """Close gates at once, before any process can read that they are closed; the rest takes effect with the commit."""
    state, change = work.state, work.change

    def set_gates(gates: list[model.Gate]) -> None:
        for gate in gates:
            state.gates.set(gate, backlogs[id(gate)], work.now_ms, ctx.clock.monotonic_ms())

    def apply() -> None:
        for place in change.opened:
            state.gates.open(place)
        set_gates(change.gates)
        let_groups_pass()
        for lane in state.lanes:
            if not lane.refusing:
                lane.retry_at_ms = 0  # the lane may have waited for a gate

    def roll_back() -> None:
        for gate in change.gates:
            state.gates.open((gate.scope, gate.name))
        set_gates(before)
        let_groups_pass()

    def let_groups_pass() -> None:
        for scope, name in {*change.opened, *((gate.scope, gate.name) for gate in change.gates)}:
            if scope == GROUP:
                state.groups.gate_opened(name)

    set_gates([gate for gate in change.gates if gate.state == model.PAUSED])
    work.on_apply(apply)
    work.on_roll_back(roll_back)


def gate_place(name: str) -> tuple[str, str]:
    """Return (scope, name) of a gate's name such as ``queue:mail``."""
    scope, _, rest = name.partition(":")
    return scope, rest


def _backlog(ctx: Context, state: ShardState, gate: model.Gate, now_ms: int) -> int:
    """Return how many rows wait behind a gate; 0 for a pause, which needs no count."""
    if gate.state == model.PAUSED:
        return 0
    if gate.scope == GROUP:
        with state.active():
            return state.groups.waiting(gate.name)
    place: Place = (gate.scope, gate.name)
    with state.active():
        lanes = [(lane.number, lane.watermark) for lane in state.lanes if gate.scope == ALL or lane.place == place]
    due = model.Position(now_ms, model.MAX_SEQ)
    return sum(ctx.store.count(ctx.shard, number, after, max(after, due)) for number, after in lanes)


def limit_groups(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Set or clear the own limits of groups; returns True, since the command never stays in the inbox."""
    results = dict.fromkeys(command.task_ids, DONE)
    if command.limits is None:
        known = {one.group for one in ctx.store.limits(ctx.shard, command.task_ids)}
        results |= {group: UNKNOWN for group in command.task_ids if group not in known}
    yield "limits read"
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        _set_limits(ctx, work, command)
        work.answer(command, results)
        work.reserve()
    yield "reserved"
    if (yield from work.commit(ctx)):
        _log_limits(ctx, command)
    ctx.freed.set()
    return True


def _set_limits(ctx: Context, work: UnitOfWork, command: Command) -> None:
    change, groups = work.change, work.state.groups
    if command.limits is None:
        change.unlimited = command.task_ids
    else:
        change.limits = [
            model.GroupLimit(group, **command.limits, actor=command.actor, at_ms=work.now_ms)
            for group in command.task_ids
        ]

    def apply() -> None:
        for limit in change.limits:
            groups.set_limit(limit)
        for group in change.unlimited:
            groups.clear_limit(group)

    if not ctx.limits.ahead_ms:  # a drain publishes every pending row, whatever is limited
        work.on_apply(apply)


def _log_limits(ctx: Context, command: Command) -> None:
    limits = {name: value for name, value in (command.limits or {}).items() if value is not None}
    logger.info(
        "shard %d: %s own limits of %s%s%s%s",
        ctx.shard,
        "set" if limits else "cleared",
        ", ".join(command.task_ids[:5]),
        " and others" if len(command.task_ids) > 5 else "",
        f" by {command.actor}" if command.actor else "",
        f": {command.reason}" if command.reason else "",
        extra={"action": command.kind, "shard": ctx.shard, "groups": command.task_ids, "limits": limits}
        | {"actor": command.actor, "reason": command.reason},
    )


ACCEPTED, AGREED, REFUSED = "accepted", "agreed", "refused"


def accept_clock(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out the command; returns True, since it never stays in the inbox."""
    disputed_ms = ctx.clock.disputed_ms
    result = AGREED if not disputed_ms else ACCEPTED if ctx.clock.is_acceptable() else REFUSED
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        work.answer(command, dict.fromkeys(command.task_ids, result))
        work.reserve()
    if (yield from work.commit(ctx)) and result == ACCEPTED:
        ctx.clock.accept()
        logger.warning(
            "shard %d: due time follows the wall clock by %+d ms, as %s accepted",
            ctx.shard,
            disputed_ms,
            command.actor,
            extra={"action": "clock_accepted", "shard": ctx.shard, "step_ms": disputed_ms},
        )
        ctx.wake.set()
        ctx.room.set()
    return True
