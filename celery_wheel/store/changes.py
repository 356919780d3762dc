"""``apply``: a ``Change`` as rows of the tables, in one transaction of which the caller has the ends.

::

    fence ─► timer, payload ─► moves ─► outcomes ─► batches ─► lanes ─► tally ─► inbox ─► loads ─► answers ─► watches …
      │                                 └ numbered in the order of commits       └ an item is gone: RequestWithdrawn;
      └ no row: another epoch holds the shard; raises Fenced,                      the caller rolls back
        and the caller rolls back
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from celery_wheel.errors import Fenced, RequestWithdrawn
from celery_wheel.store.model import REST, SHARD_BITS, Change, NewReject, NewRow
from celery_wheel.store.statements import Statements

_Tuples = list[tuple[Any, ...]]


def fence(connection: Connection, statements: Statements, shard: int, epoch: int, seq: int = 0) -> None:
    """Lock the shard for this transaction, if this epoch still holds it, and note the highest seq."""
    if statements.fence(connection, at_shard=shard, at_epoch=epoch, seq=seq).rowcount == 0:
        raise_fenced(connection, statements, shard, epoch)


def raise_fenced(connection: Connection, statements: Statements, shard: int, epoch: int) -> None:
    now = statements.epoch(connection, at_shard=shard).scalar()
    raise Fenced(
        f"shard {shard} is at epoch {now}, not {epoch}: another holder has taken it, or this one has taken it anew; "
        "nothing was written; what is in memory of the old term is to be dropped"
    )


def write(connection: Connection, statements: Statements, shard: int, epoch: int, change: Change) -> None:
    """All parts of the change, behind the fence."""
    late = _fenced(connection, statements, shard, epoch, change)
    _add(connection, statements, shard, change.rows, change.rejects)
    statements.move.many(connection, [(m.lane, m.due_ms, m.seq, m.eta_ms, m.id, shard) for m in change.moves])
    outcomes = [(o.id + late, shard, o.timer_id, o.kind, o.reason, o.actor, o.at_ms) for o in change.outcomes]
    statements.add_outcome.many(connection, outcomes)
    batches = [
        (b.id + late, shard, b.lane, *b.from_, *b.to, b.count, b.bytes, b.dispatched_ms, epoch) for b in change.batches
    ]
    statements.add_batch.many(connection, batches)
    weight = sum(b.bytes for b in change.batches)
    if weight:
        statements.weigh(connection, at_shard=shard, at_epoch=epoch, more=weight)
    lanes = [(shard, s.lane, *s.offset, *s.watermark, s.target, s.redelivered, s.scope) for s in change.lanes]
    statements.set_lane.many(connection, lanes)
    statements.add_tally.many(connection, [(shard, *key, n) for key, n in change.tally.items() if n])
    _take_in(connection, statements, shard, change.inbox)
    statements.loading.take_in.many(connection, [(chunk, shard) for chunk in change.loaded])
    answers = [(digits(one.id), shard, one.at_ms, json.dumps(one.verdicts)) for one in change.answers]
    statements.commanding.add_answer.many(connection, answers)
    tombstones = [(shard, one.task_id, one.until_ms, one.reason, one.actor) for one in change.tombstones]
    statements.commanding.add_tombstone.many(connection, tombstones)
    statements.commanding.complete.many(connection, [(one,) for one in change.completed])
    statements.commanding.unwatch.many(connection, [(one,) for one in change.unwatched])
    statements.commanding.add_watch.many(
        connection, [(shard, one.kind, one.key, one.timer_id) for one in change.watches]
    )
    gates = [(shard, g.scope, g.name, g.state, g.per_ms, g.reason, g.actor, g.at_ms) for g in change.gates]
    statements.commanding.open_gate.many(connection, [(shard, *one) for one in change.opened])
    statements.commanding.set_gate.many(connection, gates)


def _fenced(connection: Connection, statements: Statements, shard: int, epoch: int, change: Change) -> int:
    """Fence; returns by how much the numbers of the change's history have to be greater, to be so than all committed.

    A holder's threads give them before they have the shard's lock, so another may have had it in between.
    """
    first = min([*(one.id for one in change.outcomes), *(one.id for one in change.batches)], default=None)
    if first is None:
        fence(connection, statements, shard, epoch, change.seq)
        return 0
    fence(connection, statements, shard, epoch)  # the lock: as long as it is held, this is the last one
    last: int = statements.seq(connection, at_shard=shard).scalar_one()
    late = max(0, ((last >> SHARD_BITS) + 1 << SHARD_BITS | shard) - first)
    fence(connection, statements, shard, epoch, change.seq + late)
    return late


def _take_in(connection: Connection, statements: Statements, shard: int, items: Sequence[int]) -> None:
    """Whoever takes a command back says that nothing will happen: of the two, the one that comes first counts."""
    taken = statements.take_in.many(connection, [(item, shard) for item in items])
    if taken != len(items):
        raise RequestWithdrawn(
            f"of {len(items)} items of the inbox of shard {shard}, {taken} are still there; nothing was done"
        )


def _add(
    connection: Connection, statements: Statements, shard: int, rows: Iterable[NewRow], rejects: Iterable[NewReject]
) -> None:
    timers: _Tuples = [_timer(shard, row) for row in rows]
    payloads: _Tuples = [(row.id, row.message.headers, row.message.properties, row.message.body) for row in rows]
    timers += [_resting(shard, reject) for reject in rejects]
    payloads += [(reject.id, b"", b"", reject.unreadable.raw) for reject in rejects]
    statements.add_timer.many(connection, timers)
    statements.add_payload.many(connection, payloads)


def _timer(shard: int, row: NewRow) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    message = row.message
    return (
        row.id,
        shard,
        row.lane,
        row.due_ms,
        row.seq,
        message.eta_ms,
        digits(message.envelope_id),
        message.task_id,
        message.task,
        message.exchange,
        message.exchange_type,
        message.routing_key,
        message.queue,
        message.priority,
        message.key,
        message.expires_ms,
        message.queue_expires_ms,
        message.created_ms,
        row.accepted_ms,
        message.size,
        message.misfire_ms,
    )


def _resting(shard: int, reject: NewReject) -> tuple[Any, ...]:
    """Unreadable bytes have no task and no destination; they rest at (accepted_ms, id)."""
    at_ms, unreadable = reject.accepted_ms, reject.unreadable
    place = (reject.id, shard, REST, at_ms, reject.id)
    nowhere = ("", "", "", "", "", None, None, None, None, None)
    return (*place, at_ms, digits(unreadable.envelope_id), *nowhere, at_ms, at_ms, len(unreadable.raw), None)


def digits(uuid: str) -> str:
    """A UUID as the tables have it where the database knows no UUIDs: 32 hexadecimal digits."""
    return uuid.replace("-", "").lower()
