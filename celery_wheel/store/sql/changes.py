"""``apply``: write a ``Change`` to the tables, in a transaction that the caller begins and ends.

::

    fence ─► routes, timers ─► moves ─► outcomes ─► batches ─► lanes ─► tally ─► inbox ─► loads ─► … ─► schedules
      │                                 └ numbered in the order of commits       └ an item is missing: RequestWithdrawn;
      └ no row: another epoch holds the shard; raises Fenced,                      the caller rolls back
        and the caller rolls back
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from sqlalchemy import Connection

from celery_wheel.errors import Fenced, RequestWithdrawn
from celery_wheel.store.model import SHARD_BITS, Change
from celery_wheel.store.sql import timers
from celery_wheel.store.sql.catalogue import Catalogue, Packed
from celery_wheel.store.sql.counts import add_tally, routes_of
from celery_wheel.store.sql.fields import in_order
from celery_wheel.store.sql.schedules import write_schedules
from celery_wheel.store.sql.statements import Statements
from celery_wheel.store.sql.statements.control import ControlStatements


def fence(connection: Connection, statements: Statements, shard: int, epoch: int) -> int:
    """Lock the shard for this transaction, where this epoch still holds it; returns the highest seq stored."""
    last: int | None = statements.fence(connection, at_shard=shard, at_epoch=epoch).scalar()
    if last is None:
        raise_fenced(connection, statements, shard, epoch)
    return last


def advance(
    connection: Connection, statements: Statements, shard: int, epoch: int, seq: int = 0, weight: int = 0
) -> None:
    """Fence, store a higher seq, and add the bytes of new batches: the one new version of the row in a transaction."""
    if statements.advance(connection, at_shard=shard, at_epoch=epoch, seq=seq, more=weight).rowcount == 0:
        raise_fenced(connection, statements, shard, epoch)


def raise_fenced(connection: Connection, statements: Statements, shard: int, epoch: int) -> NoReturn:
    now = statements.epoch(connection, at_shard=shard).scalar()
    raise Fenced(
        f"shard {shard} is at epoch {now}, not {epoch}: another holder took it, or this holder took it anew; "
        "nothing was written, and the memory of the former epoch is dropped; no action is needed"
    )


def write(
    connection: Connection,
    statements: Statements,
    catalogue: Catalogue,
    shard: int,
    epoch: int,
    change: Change,
    packed: Packed,
) -> None:
    """Write all parts of the change, behind the fence; ``packed`` are the bytes of its new messages."""
    late = _fenced(connection, statements, shard, epoch, change)
    named = routes_of(change.tally)
    route_ids = catalogue.route_ids(connection, [*timers.routes(change), *named.values()])
    if change.rows or change.blocks or change.rejects:
        insert = statements.add_timer
        insert.many(connection, timers.tuples(change, packed, route_ids, shard, insert.names))
    statements.move.many(connection, change.moves, shard)
    outcomes, batches = change.outcomes, change.batches
    if late:
        outcomes = [replace(one, id=one.id + late) for one in outcomes]
        batches = [replace(one, id=one.id + late) for one in batches]
    statements.add_outcome.many(connection, outcomes, shard)
    statements.add_batch.many(connection, batches, shard, epoch)
    statements.set_lane.many(connection, change.lanes, shard)
    closed = [{"at_shard": shard, "at_lane": number} for number in change.closed]
    statements.close_lane.many(connection, in_order(statements.close_lane, closed))
    add_tally(connection, statements, shard, change.tally, named, route_ids)
    _delete_items(connection, statements, shard, change.inbox)
    loaded = [{"chunk": chunk, "at_shard": shard} for chunk in change.loaded]
    statements.bulk_load.accept.many(connection, in_order(statements.bulk_load.accept, loaded))
    _write_control(connection, statements.control, shard, change)
    write_schedules(connection, statements.schedules, shard, change)


def _write_control(connection: Connection, control: ControlStatements, shard: int, change: Change) -> None:
    answers = [
        {"id": digits(one.id), "shard": shard, "at_ms": one.at_ms, "results": json.dumps(one.results)}
        for one in change.answers
    ]
    control.add_answer.many(connection, in_order(control.add_answer, answers))
    control.add_tombstone.many(connection, change.tombstones, shard)
    control.complete.many(connection, [(one,) for one in change.completed])
    control.unwatch.many(connection, [(one,) for one in change.unwatched])
    control.add_watch.many(connection, change.watches, shard)
    opened = [{"at_shard": shard, "at_scope": scope, "at_name": name} for scope, name in change.opened]
    control.remove_gate.many(connection, in_order(control.remove_gate, opened))
    control.set_gate.many(connection, change.gates, shard)
    control.add_audit.many(connection, change.audits, shard)


def _fenced(connection: Connection, statements: Statements, shard: int, epoch: int, change: Change) -> int:
    """Fence; returns the number to add to the change's history ids, so that they exceed all committed numbers.

    A holder's threads take numbers before they have the shard's lock, so another thread may have committed in between.
    """
    first = min([*(one.id for one in change.outcomes), *(one.id for one in change.batches)], default=None)
    if first is None and (change.rows or change.blocks or change.rejects):  # their seqs are new
        advance(connection, statements, shard, epoch, change.seq)
        return 0
    last = fence(connection, statements, shard, epoch)  # while the lock is held, no other thread commits a number
    late = 0 if first is None else max(0, ((last >> SHARD_BITS) + 1 << SHARD_BITS | shard) - first)
    if first is not None or change.seq > last:
        advance(connection, statements, shard, epoch, change.seq + late, sum(one.bytes for one in change.batches))
    return late


def _delete_items(connection: Connection, statements: Statements, shard: int, items: Sequence[int]) -> None:
    """Delete the inbox items; raises RequestWithdrawn for a missing item: its sender was promised no effect."""
    rows = [{"item": item, "at_shard": shard} for item in items]
    deleted = statements.delete_item.many(connection, in_order(statements.delete_item, rows))
    if deleted != len(items):
        raise RequestWithdrawn(
            f"{len(items) - deleted} of {len(items)} inbox items of shard {shard} were withdrawn; nothing was written; "
            "the remaining items are read again"
        )


def digits(uuid: str) -> str:
    """Return the 32 hexadecimal digits of a UUID: the form of a database without a type for UUIDs."""
    return uuid.replace("-", "").lower()
