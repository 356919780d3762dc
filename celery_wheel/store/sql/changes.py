"""``apply_all``: write the changes of some shards to the tables, in a transaction that the caller begins and ends.

Each table has one statement's batch for the rows of all shards. A shard that is fenced has none among them.

The rows of ``wheel_timer`` are made column by column from new rows, blocks and rejects. CPU of a row in a block: 0.6 µs
beside 1.5 µs for zstd and 5 µs for the INSERT; of a row by itself, 2 µs.

A pending count names its queue and task by a route that has nothing else (``Route.named``): a row of integers costs
SQLite 12 µs where texts cost 23. Its sums, by hour, by day and by name, change with it. They are few whatever is
pending: 8,760 hours, 365 days and 100 names for a year of 100 tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, and_, bindparam, false, func, true, update

from celery_wheel.errors import Fenced, RequestWithdrawn, StoreRolledBack, WheelError
from celery_wheel.store import model
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.control import write_control
from celery_wheel.store.sql.dictionaries import Packed
from celery_wheel.store.sql.groups import write_groups
from celery_wheel.store.sql.holding import advance, fence
from celery_wheel.store.sql.intake import IntakeStatements
from celery_wheel.store.sql.schedules import write_schedules
from celery_wheel.store.sql.schema import (
    lane,
    outcome,
    settlement,
    tally,
    task_ids_to_bytes,
    timer,
    total,
    uuids_to_bytes,
)
from celery_wheel.store.sql.sealing import Seal
from celery_wheel.store.sql.statement import ObjectInsert, Statements

_OF_ROW = ("id", "lane", "due_ms", "seq", "accepted_ms")
_OF_MESSAGE = ("eta_ms", "key", "group", "expires_ms", "created_ms", "size", "misfire_ms")

_Columns = dict[str, Any]


class ChangeStatements:
    def __init__(self, statements: Statements) -> None:
        self.add_timer = statements.bulk(timer)
        self.add_outcome = ObjectInsert(statements.bulk(outcome), "shard")
        self.add_settlement = ObjectInsert(
            statements.bulk(settlement), "shard", "epoch", **_halves(**{"from": "from_", "to": "to"})
        )
        move = (
            update(timer)
            .where(timer.c.id == bindparam("moved"), timer.c.shard == bindparam("at_shard"))
            .values(
                lane=bindparam("lane"),
                due_ms=bindparam("due_ms"),
                seq=bindparam("seq"),
                eta_ms=func.coalesce(bindparam("eta_ms", type_=BigInteger), timer.c.eta_ms),
                line=bindparam("line"),
            )
        )
        self.move = ObjectInsert(statements(move), "at_shard", moved="id")
        ends = _halves(offset="offset", watermark="watermark")
        set_lane = statements.put(lane, ["shard", "lane"], [*ends, "target", "redelivered", "scope"], closed=false())
        self.set_lane = ObjectInsert(set_lane, "shard", **ends)
        closed = and_(lane.c.shard == bindparam("at_shard"), lane.c.lane == bindparam("at_lane"))
        self.close_lane = statements(update(lane).where(closed).values(closed=true()))
        self.add_tally = statements.sums(tally, "shard", "hour", "route")
        self.add_total = statements.sums(total, "kind", "number", "shard")


def _halves(**ends: str) -> dict[str, str]:
    """Return the columns of positions, with the attributes that they are of."""
    return {f"{end}_{half}": f"{attribute}.{half}" for end, attribute in ends.items() for half in ("due_ms", "seq")}


def write(
    connection: Connection,
    statements: Statements,
    catalogue: Catalogue,
    changes: Sequence[tuple[model.ShardChange, Packed]],
) -> dict[int, WheelError]:
    """Write all parts of the changes of some shards, each behind its own fence.

    Returns the errors of the shards that are fenced, by shard: nothing of their changes is written. ``Packed`` are the
    bytes of a change's new messages.
    """
    to, fenced = statements.of(ChangeStatements), dict[int, WheelError]()
    # The locks of shards come first, in the order of the shards, and then the routes, in their order: two transactions
    # that wait for each other would end.
    late = _fenced(connection, statements, sorted(one for one, _ in changes), fenced)
    changes = [each for each in changes if each[0].shard not in fenced]
    named = _routes_of(key for one, _ in changes for key in one.change.tally)
    routes = [_routes(one.change) for one, _ in changes]
    route_ids = catalogue.routes.ids(connection, [*chain.from_iterable(routes), *named.values()])
    timers, counts = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for ((shard, _, change), packed), of_change in zip(changes, routes, strict=True):
        if of_change:
            catalogue.dictionaries.check_floor(shard, packed)
            numbers = [route_ids[one] for one in of_change]
            timers += _tuples(change, packed, numbers, shard, to.add_timer.names)
            counts += _route_counts(shard, _counted(change, numbers))
    to.add_timer.many(connection, timers)
    to.add_total.many(connection, counts)
    shared = [one for one, _ in changes]
    to.move.each(connection, [((shard,), change.moves) for shard, _, change in shared])
    to.add_outcome.each(connection, [((shard,), _later(change.outcomes, late[shard])) for shard, _, change in shared])
    settlements = [((shard, epoch), _later(change.settlements, late[shard])) for shard, epoch, change in shared]
    to.add_settlement.each(connection, settlements)
    to.set_lane.each(connection, [((shard,), change.lanes) for shard, _, change in shared])
    closed = [{"at_shard": shard, "at_lane": number} for shard, _, change in shared for number in change.closed]
    to.close_lane.many_named(connection, closed)
    _add_tally(connection, to, [(shard, change.tally) for shard, _, change in shared], named, route_ids)
    intake = statements.of(IntakeStatements)
    for shard, _, change in shared:
        _take_items(connection, intake, catalogue.seal, shard, change)
        loaded = [{"chunk": chunk, "at_shard": shard} for chunk in change.loaded]
        intake.accept_chunk.many_named(connection, loaded)
        write_control(connection, statements, shard, change)
        write_schedules(connection, statements, catalogue.seal, shard, change)
        write_groups(connection, statements, shard, change)
    return fenced


def _fenced(
    connection: Connection,
    statements: Statements,
    changes: Sequence[model.ShardChange],
    fenced: dict[int, WheelError],
) -> dict[int, int]:
    """Fence each shard; returns the number to add to the history ids of its change, so that they exceed all committed
    numbers: threads take numbers before they have the shard's lock, so another one may have committed in between."""
    late = dict[int, int]()
    for shard, epoch, change in changes:
        try:
            late[shard] = _advanced(connection, statements, shard, epoch, change)
        except (Fenced, StoreRolledBack) as error:
            fenced[shard] = error
    return late


def _advanced(connection: Connection, statements: Statements, shard: int, epoch: int, change: model.Change) -> int:
    first = min([*(one.id for one in change.outcomes), *(one.id for one in change.settlements)], default=None)
    if first is None and (change.rows or change.blocks or change.rejects):  # their seqs are new
        advance(connection, statements, shard, epoch, change.seq, accepted=change.accepted, known=change.known)
        return 0
    # While the lock is held, no other thread commits a number.
    last = fence(connection, statements, shard, epoch, change.known)
    late = 0 if first is None else max(0, ((last >> model.SHARD_BITS) + 1 << model.SHARD_BITS | shard) - first)
    if first is not None or change.seq > last:
        weight = sum(one.bytes for one in change.settlements)
        advance(connection, statements, shard, epoch, change.seq + late, weight, accepted=change.accepted)
    return late


_Dated = TypeVar("_Dated", model.Outcome, model.Settlement)


def _later(some: Sequence[_Dated], late: int) -> Sequence[_Dated]:
    return [replace(one, id=one.id + late) for one in some] if late else some


def _take_items(connection: Connection, intake: IntakeStatements, seal: Seal, shard: int, change: model.Change) -> None:
    """Delete inbox items, or pass them on; raises RequestWithdrawn for a missing item: its sender was promised no
    effect."""
    rows = [{"item": item, "at_shard": shard} for item in change.inbox]
    taken = intake.delete_item.many_named(connection, rows)
    passed = [
        {"item": item, "at_shard": shard, "to": to, "payload": seal.encrypt(payload)}
        for item, to, payload in change.passed_on
    ]
    taken += intake.pass_on.many_named(connection, passed)
    if taken != (wanted := len(rows) + len(passed)):
        raise RequestWithdrawn(
            f"{wanted - taken} of {wanted} inbox items of shard {shard} were withdrawn; nothing was written; "
            "the remaining items are read again"
        )


# -- the pending counts -------------------------------------------------------------------------------------


def recount(
    connection: Connection, statements: Statements, catalogue: Catalogue, shard: int, more: Mapping[model.TallyKey, int]
) -> None:
    """Add to the pending counts in a transaction that adds no rows; negative numbers subtract."""
    named = _routes_of(more)
    route_ids = catalogue.routes.ids(connection, named.values())
    _add_tally(connection, statements.of(ChangeStatements), [(shard, more)], named, route_ids)


def count_routes(connection: Connection, statements: Statements, shard: int, more: Mapping[int, int]) -> None:
    """Add to the numbers of rows, pending or in the history, by the ids of their routes."""
    statements.of(ChangeStatements).add_total.many(connection, _route_counts(shard, more))


def _route_counts(shard: int, more: Mapping[int, int]) -> list[tuple[Any, ...]]:
    return [(shard, "route", number, n) for number, n in sorted(more.items())]


def _counted(change: model.Change, routes: Sequence[int]) -> Counter[int]:
    """Return the number of new rows by the ids of their routes."""
    counts = Counter(routes)
    for new, route in zip(change.blocks, routes[len(change.rows) :], strict=False):
        counts[route] += len(new.block) - 1
    return counts


def _routes_of(keys: Iterable[model.TallyKey]) -> dict[tuple[str, str], model.Route]:
    """Return (queue, task) → the route by which the two are counted."""
    return {name: model.Route.named(*name) for name in {(key.queue, key.task) for key in keys}}


def _add_tally(
    connection: Connection,
    to: ChangeStatements,
    tallies: Iterable[tuple[int, Mapping[model.TallyKey, int]]],
    named: Mapping[tuple[str, str], model.Route],
    ids: Mapping[model.Route, int],
) -> None:
    """Add to the pending counts of some shards and to their sums, in the same statements' batch."""
    numbers = {name: ids[route] for name, route in named.items()}
    counts, totals = list[tuple[int, ...]](), list[tuple[Any, ...]]()
    for shard, more in tallies:
        hours, days, names = Counter[int](), Counter[int](), Counter[int]()
        for (hour, queue, task), n in more.items():
            if n:
                route = numbers[queue, task]
                counts.append((shard, hour, route, n))
                hours[hour] += n
                days[hour // (model.DAY_MS // model.HOUR_MS)] += n
                names[route] += n
        sums = (("shard", Counter({0: names.total()})), ("hour", hours), ("day", days), ("name", names))
        totals += [(shard, kind, number, n) for kind, sum_ in sums for number, n in sum_.items() if n]
    to.add_tally.many(connection, counts)
    to.add_total.many(connection, totals)


# -- the rows of wheel_timer --------------------------------------------------------------------------------


def plain(change: model.Change) -> list[bytes]:
    """Return the messages to pack, in the order of their rows."""
    found = [model.join(one.message.headers, one.message.properties, one.message.body) for one in change.rows]
    for new in change.blocks:
        found += new.block.plain
    return found + [model.join(b"", b"", one.unreadable.raw) for one in change.rejects]


def _routes(change: model.Change) -> list[model.Route]:
    """Return the routes of the rows, of the blocks and of the rejects."""
    found = [model.Route.of(row.message) for row in change.rows] + [new.block.route for new in change.blocks]
    return found + [_nowhere(one) for one in change.rejects]


def _tuples(
    change: model.Change, packed: Packed, routes: Sequence[int], shard: int, names: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the rows of the table, with the values of ``names`` in their order; ``routes`` as ``_routes``, by id."""
    start, found = 0, list[tuple[Any, ...]]()
    rest = routes[len(change.rows) :]
    groups: list[tuple[int, _Columns]] = [(len(change.rows), _of_rows(change.rows, routes))] if change.rows else []
    groups += [(len(one.block), _of_block(one, route)) for one, route in zip(change.blocks, rest, strict=False)]
    for count, columns in groups:
        end = start + count
        columns |= {"shard": repeat(shard), "packing": packed[0][start:end], "message": packed[1][start:end]}
        found += zip(*[columns[name] for name in names], strict=False)  # constants are repeated without an end
        start = end
    of_rejects = rest[len(change.blocks) :], packed[0][start:], packed[1][start:]
    for reject, route, number, message in zip(change.rejects, *of_rejects, strict=True):
        row = _of_reject(reject) | {"route": route, "shard": shard, "packing": number, "message": message}
        found.append(tuple([row[name] for name in names]))
    return found


def _of_rows(rows: Sequence[model.StoredMessage], routes: Sequence[int]) -> _Columns:
    messages = [one.message for one in rows]
    columns: _Columns = {name: map(attrgetter(name), rows) for name in _OF_ROW}
    columns |= {name: map(attrgetter(name), messages) for name in _OF_MESSAGE}
    columns["line"] = repeat(None)
    envelope_ids = [one.envelope_id for one in messages]
    ids = _ids(envelope_ids, [one.task_id for one in messages])
    return columns | ids | {"route": routes}


def _of_block(new: model.NewBlock, route: int) -> _Columns:
    block = new.block
    return _ids(block.envelope_ids, block.task_ids) | {
        "id": new.ids,
        "seq": new.ids,
        "lane": repeat(new.lane),
        "due_ms": new.due_ms,
        "accepted_ms": repeat(new.accepted_ms),
        "eta_ms": block.eta_ms,
        "key": block.keys,
        "group": block.groups,
        "expires_ms": block.expires_ms,
        "created_ms": block.created_ms,
        "size": block.sizes,
        "misfire_ms": repeat(block.like.misfire_ms),
        "line": repeat(None),
        "route": repeat(route),
    }


def _ids(envelope_ids: Sequence[str], task_ids: Sequence[str]) -> _Columns:
    """Return the ids of the envelopes and of the tasks, which are mostly one UUID each."""
    as_bytes = uuids_to_bytes(envelope_ids)
    same = task_ids == envelope_ids
    return {"envelope_id": as_bytes, "task_id": as_bytes if same else task_ids_to_bytes(task_ids)}


def _nowhere(reject: model.NewReject) -> model.Route:
    """Return the route of unreadable bytes: they have no destination."""
    return model.Route.make(reject.unreadable.of[0], "", "", "", None, None, None, None, False)


def _of_reject(reject: model.NewReject) -> _Columns:
    """Return the row at (accepted_ms, id) of lane STOPPED."""
    instants = dict.fromkeys(("due_ms", "eta_ms", "created_ms", "accepted_ms"), reject.accepted_ms)
    place = {"id": reject.id, "lane": model.STOPPED, "seq": reject.id}
    ids = {
        "envelope_id": uuids_to_bytes([reject.unreadable.envelope_id])[0],
        "task_id": task_ids_to_bytes([reject.unreadable.of[1]])[0],
    }
    return {
        **instants,
        **place,
        **ids,
        "size": len(reject.unreadable.raw),
        **dict.fromkeys(("key", "group", "line", "expires_ms", "misfire_ms")),
    }
