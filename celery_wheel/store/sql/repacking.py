"""Repacking: rows of a shard get the present dictionary and key, after a change of the key or an erasure.

::

    1 begin        from now on no thread of the holder writes messages by an earlier dictionary
    2 messages     by envelope id, which never changes: each that an earlier dictionary packed is packed anew
    3 schedules    by id: each definition that another key has encrypted, or none
    4 floor        in the shard's row: nothing of the shard needs an earlier dictionary any more
    5 all texts    by id, of all shards: definitions, of which one may have moved to another shard meanwhile, and
                   revisions; by the holder of shard 0, once all shards have the floor: no holder writes one by another
                   key then
    6 a minute later, it deletes the dictionaries that no shard needs; their key may leave the setting then

A step is a transaction behind the fence with at most ``STEP`` rows, so dispatch and intake go on between two. Where it
had come to is in memory: a new holder begins anew, and reads again what is done already.

Promises: a row is readable at each moment. No dictionary is deleted that a row needs: only the holder packs rows of its
shard, and it refuses bytes that were packed by an earlier dictionary, from before the first row is read anew.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, select, true, update

from celery_wheel.store.model import PLAIN
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import fence
from celery_wheel.store.sql.schema import dictionary, revision, schedule, shard, timer
from celery_wheel.store.sql.sealing import sealed_in
from celery_wheel.store.sql.statement import Prepared, Statements, in_order
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.keyring import key_of

#: Rows, and bytes before they are packed, of one transaction.
STEP, STEP_BYTES = 1_000, 16 * 2**20

#: A process may have read a row a moment ago, and look up its dictionary now.
KEPT_S = 60.0

#: Before every envelope id, and before every id.
_FIRST: Any = "00000000-0000-0000-0000-000000000000"
_FIRST_ID = -1

MESSAGES, SCHEDULES, WAITING, ALL_SCHEDULES, REVISIONS, DONE = range(6)

#: Statements, each with the values of the rows that it writes.
Rewrites = list[tuple[Prepared, list[tuple[Any, ...]]]]


class RepackStatements:
    def __init__(self, statements: Statements) -> None:
        here = and_(timer.c.id == bindparam("at_id"), timer.c.shard == bindparam("at_shard"))
        set_: Any = {"packing": bindparam("to"), "message": bindparam("packed")}
        self.set_message = statements(update(timer).where(here).values(set_))
        #: By the column's name, the statement that replaces a text, unless it was changed meanwhile.
        self.set_text = dict[str, Prepared]()
        for column in (schedule.c.definition, revision.c.before):
            is_same = and_(column.table.c.id == bindparam("at_id"), column == bindparam("was"))
            new: Any = update(column.table).where(is_same).values({column.name: bindparam("text")})
            self.set_text[column.name] = statements(new)


@dataclass(slots=True)
class _Pass:
    """A pass through the rows of one shard."""

    epoch: int  #: of the holder: a shard that was acquired anew is begun anew
    to: int  #: number of the dictionary that replaces all before it
    phase: int
    after: Any = _FIRST  #: envelope id or id of the last row that was read
    read: int = 0  #: rows
    ended_s: float | None = None  #: monotonic; dictionaries before ``to`` are not deleted yet


class Repacking:
    """Repacks the shards that this process holds; ``step`` is called by one thread of a shard at a time."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database, self._catalogue = database, catalogue
        self._passes: dict[int, _Pass] = {}
        self.step_rows, self.kept_s = STEP, KEPT_S

    def step(self, number: int, epoch: int) -> int | None:
        """Repack some rows of a shard; returns how many it has read so far, None where nothing is to be repacked.

        Raises StoreError, also where a key is missing, and Fenced.
        """
        to, own = self._catalogue.dictionaries.replacing(), self._passes.get(number)
        if own is None or (own.epoch, own.to) != (epoch, to):
            own = self._passes[number] = self._begin(number, epoch, to)
        if own.phase == WAITING and self._lowest() >= to:
            own.phase = ALL_SCHEDULES
        if own.phase in (WAITING, DONE):
            self._clean(own)
            return None
        with self._database.reading() as connection:
            rows, changes = self._found(connection, number, own)
        phase = own.phase + (not rows)
        with self._database.writing(durable=False) as connection:
            fence(connection, self._database.statements, number, epoch)
            for statement, values in changes:
                statement.many(connection, values)
            if phase == WAITING:
                connection.execute(update(shard).where(shard.c.shard == number).values(packing=to))
        if phase == own.phase:
            own.after, own.read = rows[-1][1], own.read + len(rows)
        else:
            own.phase, own.after = phase, _FIRST_ID
            if phase == DONE:
                own.ended_s = time.monotonic()
            elif phase == WAITING and number:  # a revision has no shard
                own.phase = DONE
        return own.read

    def _begin(self, number: int, epoch: int, to: int) -> _Pass:
        with self._database.reading() as connection:
            floor: int = connection.execute(select(shard.c.packing).where(shard.c.shard == number)).scalar_one()
            is_clean = connection.scalar(select(func.min(dictionary.c.id))) >= to
        self._catalogue.dictionaries.floors[number] = max(floor, to)
        if floor >= to:
            return _Pass(epoch, to, DONE if number or is_clean else WAITING, _FIRST_ID)
        with self._database.writing(durable=False) as connection:
            # A thread may have packed messages before, and have the lock: they are committed before any row is read.
            fence(connection, self._database.statements, number, epoch)
        return _Pass(epoch, to, MESSAGES)

    def _lowest(self) -> int:
        """Return the number of the first dictionary that a shard may need."""
        with self._database.reading() as connection:
            found: int = connection.scalar(select(func.min(shard.c.packing))) or 0
        return found

    def _clean(self, own: _Pass) -> None:
        if own.ended_s is None or time.monotonic() < own.ended_s + self.kept_s:
            return
        own.ended_s = None
        needed = select(func.min(shard.c.packing)).scalar_subquery()
        with self._database.writing(durable=False) as connection:
            connection.execute(delete(dictionary).where(dictionary.c.id < needed))

    def _found(self, connection: Connection, number: int, own: _Pass) -> tuple[Sequence[Any], Rewrites]:
        """Return the next rows of a pass, each with its place second; and what is to be written."""
        if own.phase == MESSAGES:
            return self._messages(connection, number, own)
        seal = self._catalogue.seal
        if own.phase in (SCHEDULES, ALL_SCHEDULES):
            here = schedule.c.shard == number if own.phase == SCHEDULES else true()
            rows = _next(connection, schedule.c.definition, own, here, self.step_rows)
            return rows, self._texts(rows, schedule.c.definition, seal.seal_definition)
        rows = _next(connection, revision.c.before, own, revision.c.before != "", self.step_rows)
        return rows, self._texts(rows, revision.c.before, seal.seal_text)

    def _messages(self, connection: Connection, number: int, own: _Pass) -> tuple[Sequence[Any], Rewrites]:
        later = and_(timer.c.shard == number, timer.c.envelope_id > own.after)
        page = select(timer.c.id, timer.c.envelope_id, timer.c.packing, timer.c.size).where(later)
        rows = connection.execute(page.order_by(timer.c.envelope_id).limit(self.step_rows)).all()
        rows = rows[: 1 + bisect_right(list(accumulate(row.size for row in rows)), STEP_BYTES)]
        unencrypted = self._catalogue.dictionaries.present().key is None
        old = [row.id for row in rows if row.packing < own.to and not (unencrypted and row.packing == PLAIN.number)]
        if not old:
            return rows, []
        found = select(timer.c.id, timer.c.packing, timer.c.message).where(timer.c.id.in_(old))
        plain, damaged = dict[int, bytes](), dict[int, bytes]()
        for row_id, packing, message in connection.execute(found):
            try:
                plain[row_id] = self._catalogue.dictionaries.packing(connection, packing).unpack(bytes(message))
            except Malformed:  # it stays so, and its dictionary may be deleted
                damaged[row_id] = bytes(message)
        packings, messages, _ = self._catalogue.dictionaries.pack_known(list(plain.values()))
        values = list(zip(plain, packings, messages, strict=True))
        values += [
            (row_id, self._catalogue.dictionaries.present().number, message) for row_id, message in damaged.items()
        ]
        statement = self._database.statements.of(RepackStatements).set_message
        names = ("at_shard", "at_id", "to", "packed")
        named = [dict(zip(names, (number, *one), strict=True)) for one in values]
        return rows, [(statement, in_order(statement, named))]

    def _texts(self, rows: Sequence[Any], column: Any, sealed: Callable[[str], str]) -> Rewrites:
        seal, found = self._catalogue.seal, list[dict[str, Any]]()
        for text, row_id in rows:
            if key_of(sealed_in(text) or b"") != seal.present:
                found.append({"at_id": row_id, "was": text, "text": sealed(seal.open_text(text))})
        statement = self._database.statements.of(RepackStatements).set_text[column.name]
        return [(statement, in_order(statement, found))]


def _next(connection: Connection, column: Any, own: _Pass, where: ColumnElement[bool], limit: int) -> Sequence[Any]:
    """Return (text, id) of the next rows of a table."""
    id_ = column.table.c.id
    return connection.execute(select(column, id_).where(where, id_ > own.after).order_by(id_).limit(limit)).all()
