"""Bulk actions: the holder's look for the next tasks of its part, its part of ``apply``, and the pages of the actions.

::

    pending     lane 0, 1, …, and at last WAITING: a task on its way into a line is met there
                (due_ms, seq) in a lane ─► the index of positions
    stopped     (at_ms, id) of the outcomes of a kind, the last outcome of each row alone

A look reads LOOKED_AT rows of one lane at most, so that a filter with few tasks among very many costs no round more
than some 50 ms; the place after them is a part's progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, delete, exists, func, select, tuple_, union

from celery_wheel.store.bulk_model import (
    ASKED,
    KEPT_MS,
    BulkPart,
    BulkPlace,
    BulkProgress,
    BulkRequest,
    BulkRows,
    BulkShard,
)
from celery_wheel.store.model import MOVE, REQUEUE, STOPPED, WAITING, Change, Position, Row, StoredBulk
from celery_wheel.store.sql.browse.messages import lanes_of
from celery_wheel.store.sql.browse.pages import routes_of
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import bulk, inbox, outcome, shard, snapshot, timer
from celery_wheel.store.sql.statement import IN_PLACES, ROW, ObjectInsert, Statements, constant, names_of, numbered

#: Rows of a lane that one look reads.
LOOKED_AT = 20_000

#: Where a lane begins: before each of its positions.
_BEGIN = Position(0, -1)

_PART = (bulk.c.request, bulk.c.shard, bulk.c.state, bulk.c.progress, bulk.c.changed_ms)


class BulkStatements:
    def __init__(self, statements: Statements) -> None:
        here = bulk.c.shard == bindparam("shard")
        next_ = select(*_PART).where(here, bulk.c.stepped_ms.is_not(None)).order_by(bulk.c.stepped_ms, bulk.c.id)
        self.next = statements(next_.limit(constant(1)))
        self.named = statements(select(*_PART).where(here, bulk.c.action == bindparam("action")))
        put = statements.put(bulk, ["action", "shard"], names_of(StoredBulk)[1:])
        self.put = ObjectInsert(put, "shard")
        self.rows = statements(select(timer.c.task_id, *ROW).where(timer.c.id.in_(numbered("row", IN_PLACES))))
        before: Any = bindparam("before_ms", type_=BigInteger)
        recent = bulk.alias("recent")
        is_alive = recent.c.stepped_ms.is_not(None) | (recent.c.changed_ms >= before)
        is_kept = exists().where(recent.c.action == bulk.c.action, is_alive)
        self.forget = statements(delete(bulk).where(bulk.c.changed_ms < before, ~is_kept))
        # One statement, whatever the number of shards: an open page asks for it every second or two.
        of_shard = select(shard.c.shard, shard.c.holder, snapshot.c.at_ms, *_PART[:1], *_PART[2:], inbox.c.payload)
        joined = shard.outerjoin(snapshot, snapshot.c.shard == shard.c.shard)
        joined = joined.outerjoin(bulk, (bulk.c.shard == shard.c.shard) & (bulk.c.action == bindparam("action")))
        asked = (inbox.c.shard == shard.c.shard) & (inbox.c.bulk == bindparam("asked_action"))
        of_shard = of_shard.select_from(joined.outerjoin(inbox, asked)).order_by(shard.c.shard, inbox.c.id)
        self.shards = statements(of_shard)

    def expire(self, connection: Connection, now_ms: int) -> None:
        """Forget the actions of which nothing has changed for KEPT_MS, unless a shard is still at work on them."""
        self.forget(connection, before_ms=now_ms - KEPT_MS)


class SqlBulk(StorePart):
    @property
    def _bulk(self) -> BulkStatements:
        return self._statements.of(BulkStatements)

    # -- for the holder --------------------------------------------------------------------------------

    def next_bulk(self, shard: int, action: str | None = None) -> BulkPart | None:
        with self._database.reading() as connection:
            found = (
                self._bulk.next(connection, shard=shard)
                if action is None
                else self._bulk.named(connection, shard=shard, action=action)
            )
            row = found.one_or_none()
        return None if row is None else _part(*row)

    def bulk_rows(self, part: BulkPart, limit: int | None) -> BulkRows:
        with self._database.snapshot() as connection:
            for number, low, high in _ranges(connection, part):
                found = _look(connection, part, number, low, high, limit)
                if found is not None:
                    return found
        return BulkRows([], 0, None)

    def bulk_task_rows(self, row_ids: Sequence[int]) -> list[Row]:
        with self._database.reading() as connection:
            found = self._bulk.rows.each(connection, "row", row_ids)
            return self._catalogue.task_rows(connection, found)

    # -- for pages -------------------------------------------------------------------------------------

    def bulk_shards(self, action: str) -> list[BulkShard]:
        """Return the shards of the store with their parts of an action, and with the commands about it."""
        found = list[BulkShard]()
        with self._database.reading() as connection:
            rows = self._bulk.shards(connection, action=action, asked_action=action).all()
        for number, same in groupby(rows, itemgetter(0)):
            of_shard = list(same)
            _, holder, seen_ms, request, *more, _ = of_shard[0]
            part = None if request is None else _part(request, number, *more)
            asked = [self._asked(payload) for *_, payload in of_shard if payload is not None]
            if part is None and asked and asked[0]["do"] == "begin":
                part = BulkPart(BulkRequest.of_command(asked[0]), number, ASKED, BulkProgress(0), 0)
            found.append(BulkShard(number, holder, seen_ms, part, tuple(one["do"] for one in asked)))
        return found

    def bulk_actions(self, limit: int) -> list[str]:
        """Return the ids of the actions that the store knows, the latest first."""
        with self._database.reading() as connection:
            asked = select(inbox.c.bulk).where(inbox.c.bulk.is_not(None))
            both = union(select(bulk.c.action), asked).subquery()
            return list(connection.execute(select(both.c[0]).order_by(both.c[0].desc()).limit(limit)).scalars())

    def _asked(self, payload: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._catalogue.seal.payload(bytes(payload)))
        return fields


def _part(request: str, shard_: int, state: str, progress: str, changed_ms: int) -> BulkPart:
    return BulkPart(BulkRequest.read(request), shard_, state, BulkProgress.read(json.loads(progress)), changed_ms)


def write_bulk(connection: Connection, statements: Statements, of_shard: int, change: Change) -> None:
    """Write the part of a change that is about bulk actions, behind the fence."""
    if change.bulks:
        statements.of(BulkStatements).put.many(connection, change.bulks, of_shard)


# -- a look ------------------------------------------------------------------------------------------------


def _ranges(connection: Connection, part: BulkPart) -> Iterator[tuple[int, Position, Position]]:
    """Yield (lane, after, upto) of what is left, in the order of a part; outcomes are as one lane, STOPPED."""
    criteria, after = part.request.criteria, part.progress.after
    if part.request.verb == REQUEUE:
        offsets = {STOPPED: _BEGIN}
    else:
        lanes = lanes_of(connection, [part.shard], closed=False).values()
        offsets = {one.lane: one.offset for one in sorted(lanes, key=lambda one: (one.lane == WAITING, one.lane))}
    numbers = list(offsets)
    if after is not None and after.lane in offsets:
        numbers = numbers[numbers.index(after.lane) :]
    elif after is not None:  # the lane was closed meanwhile
        numbers = [one for one in numbers if one > after.lane or one == WAITING]
    for number in numbers:
        passed = Position(*after[1:]) if after is not None and after.lane == number else _BEGIN
        yield number, max(passed, offsets[number], criteria.first), criteria.last


def _look(
    connection: Connection, part: BulkPart, number: int, low: Position, high: Position, limit: int | None
) -> BulkRows | None:
    """Return matching rows of one range, or their number where ``limit`` is None; None where the range is empty."""
    table, key, where = _lines(part, number)
    within: list[Any] = [tuple_(*key) > tuple_(*low), tuple_(*key) <= tuple_(*high)]
    some = select(*key).where(*where, *within).order_by(*key)
    if low >= high or connection.execute(some.limit(1)).first() is None:
        return None
    end = connection.execute(some.limit(1).offset(LOOKED_AT - 1)).first()
    upto = high if end is None else Position(*end)
    within[1] = tuple_(*key) <= tuple_(*upto)
    matching: Select[Any] = select(timer.c.id, *key).select_from(table).where(*where, *within, *_matches(part))
    if limit is None:
        count = connection.scalar(select(func.count()).select_from(matching.subquery()))
        return BulkRows([], int(count or 0), BulkPlace(number, *upto))
    found = connection.execute(matching.order_by(*key).limit(limit)).all()
    ends = Position(*found[-1][1:]) if len(found) == limit else upto
    return BulkRows([one[0] for one in found], len(found), BulkPlace(number, *ends))


def _lines(part: BulkPart, number: int) -> tuple[Any, tuple[Any, ...], list[Any]]:
    """Return the table to select from, the key of its order, and the range's conditions beside those on the key."""
    if part.request.verb == REQUEUE:
        place = [outcome.c.shard == part.shard, outcome.c.kind == part.request.outcome]
        return outcome.join(timer, timer.c.id == outcome.c.timer_id), (outcome.c.at_ms, outcome.c.id), place
    return timer, (timer.c.due_ms, timer.c.seq), [timer.c.shard == part.shard, timer.c.lane == number]


def _matches(part: BulkPart) -> Iterable[Any]:
    """Yield the conditions of the filter, and those that leave later rows out."""
    criteria, upto = part.request.criteria, part.progress.upto
    yield from routes_of(criteria, timer.c.route)
    if criteria.key is not None:
        yield timer.c.key == criteria.key
    if criteria.group is not None:
        yield timer.c.group == criteria.group
    if part.request.verb == REQUEUE:
        later = outcome.alias("later")
        yield from (timer.c.lane == STOPPED, outcome.c.id <= upto)
        yield ~exists().where(later.c.timer_id == outcome.c.timer_id, later.c.id > outcome.c.id)
    elif part.request.verb == MOVE:  # a row that is moved gets a later seq: the action itself does not meet it again
        yield timer.c.seq <= upto
    else:
        yield timer.c.id <= upto
