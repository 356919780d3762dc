"""Bulk loads: any number of processes write messages, and all are accepted at once, or none.

::

    begin ─► load 7, run 3, open                       one process; or ``join``, by each process of the run
      part 0   claim ─► attempt ─► put ─ put ─ … ─ finish       each a transaction of its own, each behind the fence
    commit ─► committed ─► holders accept it (``intake``) ─► done       or abort ─► aborted, and its chunks are removed

The fence of a part: its transaction locks the load's row (shared) and the part's row; the load must be open, in the
run in which the part was claimed, and the attempt must be the last that claimed the part. So an earlier attempt or run
that still works writes nothing more, and ``abort``, which changes the state before it deletes chunks, leaves none.

A part has several short transactions: on SQLite, one transaction for the minutes of a part would stop the scheduler's
writes. A resumed load keeps the chunks of an earlier run or attempt where the digest of their slice is the same.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, exists, false, func, or_, select, true, update

from celery_wheel.errors import LoadEnded
from celery_wheel.store.audit_model import AuditEntry, Operator
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN
from celery_wheel.store.sql import audit
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import load, load_chunk, load_part
from celery_wheel.store.sql.sealing import Seal
from celery_wheel.store.sql.statement import ObjectInsert, Statements, columns_of, constant
from celery_wheel.store.store_model import BulkLoad, BulkLoadSummary, PartChunk, PartClaim, PartResult, WrittenSlice
from celery_wheel.values.ids import uuid7

#: A load's name cannot be loaded again for so long after its end: 366 days.
KEPT_MS = 366 * 86_400_000

#: Chunks or slices removed in one transaction or statement.
CHUNKS_AT_ONCE = 500
#: … and of those of an aborted load in a commit of a holder's, which other commits wait for.
CHUNKS_BESIDE = 20

_LOAD = select(*columns_of(BulkLoad, load))
_ROWS = func.coalesce(func.sum(load_chunk.c.rows), 0)


class LoadStatements:
    def __init__(self, statements: Statements) -> None:
        add = statements.bulk(load_chunk, "load", "part", "number", "shard", "rows", "digest", "payload")
        self.add_chunk = ObjectInsert(add, "load", "part")
        now: Any = bindparam("now_ms", type_=BigInteger)
        new = statements.insert_or(load).inline()
        new = new.values(name=bindparam("name"), state=constant(OPEN), run=constant(0), created_ms=now, begun_ms=now)
        new = new.values(rows=constant(0), origin=constant(""), actor=constant(""), audited=false())
        self.begin = statements(new.on_conflict_do_nothing(index_elements=["name"]))
        ended = load.c.state.in_([constant(COMMITTED), constant(ABORTED)])
        self.ended = statements(select(load).where(ended, ~load.c.audited).order_by(load.c.id))
        unaudited = load.c.id == bindparam("load"), ~load.c.audited
        self.audited = statements(update(load).where(*unaudited).values(audited=true()))
        self.claim = statements.put(load_part, ["load", "part"], ["run", "attempt"])
        left = exists().where(load_chunk.c.load == load.c.id)
        is_accepted = and_(load.c.state == constant(COMMITTED), ~left)
        self.finish = statements(update(load).where(is_accepted).values(state=constant(DONE)))
        is_over = select(load.c.id).where(load.c.state == constant(DONE))
        self.forget_parts = statements(delete(load_part).where(load_part.c.load.in_(is_over)))
        is_aborted = load.c.state == constant(ABORTED)
        has_parts = exists().where(load_part.c.load == load.c.id)
        self.aborted = statements(select(load.c.id).where(is_aborted, or_(left, has_parts)))
        self.lock_aborted = statements(
            select(load.c.id).where(load.c.id == bindparam("load"), is_aborted).with_for_update(read=True)
        )
        some = select(load_chunk.c.id).where(load_chunk.c.load == bindparam("load")).order_by(load_chunk.c.id)
        self.some_chunks = statements(some.limit(bindparam("limit")))
        self.remove_chunk = statements(delete(load_chunk).where(load_chunk.c.id == bindparam("chunk")))
        ended = load.c.state.in_([constant(DONE), constant(ABORTED)])
        self.forget = statements(delete(load).where(ended, ~left, ~has_parts, load.c.ended_ms < bindparam("before_ms")))

    def expire(self, connection: Connection, now_ms: int) -> None:
        """Mark wholly accepted loads as done, and forget what is over, also what a killed process has aborted."""
        for (load_id,) in self.aborted(connection).all():
            self.clear(connection, load_id, CHUNKS_BESIDE)
        self.finish(connection)
        self.forget_parts(connection)
        self.forget(connection, before_ms=now_ms - KEPT_MS)

    def clear(self, connection: Connection, load_id: int, limit: int) -> bool:
        """Remove some chunks of an aborted load, or the last and its parts; returns whether more may be left."""
        if self.lock_aborted(connection, load=load_id).one_or_none() is None:
            return False
        chunks = self.some_chunks(connection, load=load_id, limit=limit).all()
        self.remove_chunk.many(connection, [(chunk,) for (chunk,) in chunks])
        if len(chunks) == limit:
            return True
        connection.execute(delete(load_part).where(load_part.c.load == load_id))
        return False


class SqlLoads:
    """Every method raises StoreError where the store fails; each may be repeated when its answer was lost."""

    def __init__(self, database: Database, seal: Seal) -> None:
        self._database, self._seal = database, seal
        self._statements = database.statements.of(LoadStatements)

    def begin(self, name: str, now_ms: int) -> BulkLoad:
        """Open the load of that name, new or resumed; a committed load is returned as it is."""
        with self._database.writing(durable=True) as connection:
            found = self._lock(connection, name, now_ms)
            return found if found.is_loaded else _opened(connection, found.id, found.run + 1, now_ms)

    def join(self, name: str, run: int, now_ms: int) -> BulkLoad:
        """Open the load in this run, together with the other processes of the run, or return it where it is committed.

        Raises LoadEnded where a later run has begun, or this run was aborted.
        """
        with self._database.writing(durable=True) as connection:
            found = self._lock(connection, name, now_ms)
            if found.is_loaded:
                return found
            if found.run < run:
                return _opened(connection, found.id, run, now_ms)
            _check_open(connection, found.id, run)
            return found

    def _lock(self, connection: Connection, name: str, now_ms: int) -> BulkLoad:
        """Lock the load, which may be new: a process that begins the same load at once waits for its row."""
        locked = _LOAD.where(load.c.name == name).with_for_update()
        found = connection.execute(locked).one_or_none()
        if found is None:
            self._statements.begin(connection, name=name, now_ms=now_ms)
            found = connection.execute(locked).one()
        return BulkLoad(*found)

    def claim(self, load_id: int, run: int, part: int) -> tuple[PartClaim, dict[int, WrittenSlice]]:
        """Claim the part; returns the right to write it, and its existing slices by number. Raises LoadEnded."""
        claim = PartClaim(load_id, run, part, uuid.uuid4().hex)
        with self._database.writing() as connection:
            _check_open(connection, load_id, run)
            self._statements.claim(connection, load=load_id, part=part, run=run, attempt=claim.attempt)
            slices = select(load_chunk.c.number, func.min(load_chunk.c.digest), func.sum(load_chunk.c.rows))
            here = _is_of_part(load_id, part)
            found = connection.execute(slices.where(*here).group_by(load_chunk.c.number)).all()
        return claim, {number: WrittenSlice(digest, int(rows)) for number, digest, rows in found}

    def put(self, claim: PartClaim, chunks: Sequence[PartChunk]) -> None:
        """Write whole slices, each with all its chunks, in place of earlier ones of their numbers. Raises LoadEnded."""
        chunks = [chunk._replace(payload=self._seal.encrypt(chunk.payload)) for chunk in chunks]
        with self._database.writing() as connection:
            _fence(connection, claim)
            numbers = sorted({chunk.number for chunk in chunks})
            for start in range(0, len(numbers), CHUNKS_AT_ONCE):
                some = load_chunk.c.number.in_(numbers[start : start + CHUNKS_AT_ONCE])
                connection.execute(delete(load_chunk).where(*_is_of_part(claim.load, claim.part), some))
            self._statements.add_chunk.many(connection, chunks, claim.load, claim.part)
        self._database.tidy()

    def finish(self, claim: PartClaim, slices: int) -> None:
        """Keep the first ``slices`` slices of the part and remove all later ones. Raises LoadEnded."""
        with self._database.writing() as connection:
            _fence(connection, claim)
            later = load_chunk.c.number >= slices
            connection.execute(delete(load_chunk).where(*_is_of_part(claim.load, claim.part), later))

    def commit(self, load_id: int, run: int, parts: Mapping[int, PartResult], now_ms: int) -> BulkLoad:
        """Commit exactly ``parts``, for the holders to accept. Raises LoadEnded, and then nothing is loaded."""
        self._remove_other_parts(load_id, run, parts)
        with self._database.writing(durable=True) as connection:
            row = connection.execute(_LOAD.where(load.c.id == load_id).with_for_update()).one_or_none()
            found = None if row is None else BulkLoad(*row)
            if found is not None and found.run == run and found.is_loaded:
                return found
            _check_open(connection, load_id, run)
            _check_parts(connection, load_id, parts)
            rows = sum(part.rows for part in parts.values())
            committed = _changed(connection, load_id, state=COMMITTED, ended_ms=now_ms, rows=rows, **_by())
        self._database.ring()
        return committed

    def _remove_other_parts(self, load_id: int, run: int, parts: Mapping[int, PartResult]) -> None:
        """Remove the chunks of parts that only an earlier run had."""
        with self._database.reading() as connection:
            found = _rows_of_parts(connection, load_id)
        for part in found:
            if part not in parts:
                claim, _ = self.claim(load_id, run, part)
                self.finish(claim, 0)

    def abort(self, load_id: int, now_ms: int, run: int | None = None, by: Operator | None = None) -> bool:
        """Abort an open load (or only its run ``run``), and remove its chunks; returns False where it was not open."""
        with self._database.writing(durable=True) as connection:
            is_open = (load.c.id == load_id, load.c.state == OPEN, *([] if run is None else [load.c.run == run]))
            ended = update(load).where(*is_open).values(state=ABORTED, ended_ms=now_ms, **_by(by))
            aborted = connection.execute(ended).rowcount > 0
        while self._clear(load_id):
            self._database.tidy()
        return aborted

    def forget(self, load_ids: Sequence[int]) -> None:
        """Forget those of the loads that are done: their names may be loaded again."""
        with self._database.writing() as connection:
            is_over = and_(load.c.id.in_(load_ids), load.c.state == DONE)
            connection.execute(delete(load_part).where(load_part.c.load.in_(select(load.c.id).where(is_over))))
            connection.execute(delete(load).where(is_over))

    def _clear(self, load_id: int) -> bool:
        with self._database.writing() as connection:
            return self._statements.clear(connection, load_id, CHUNKS_AT_ONCE)

    def latest(self, limit: int = 100) -> list[BulkLoadSummary]:
        """Return the latest loads, newest first. An open load that began long ago was abandoned: resume or abort it."""
        figures = select(func.count(), _ROWS)
        with self._database.reading() as connection:
            loads = [BulkLoad(*row) for row in connection.execute(_LOAD.order_by(load.c.id.desc()).limit(limit)).all()]
            left = [connection.execute(figures.where(load_chunk.c.load == one.id)).one() for one in loads]
        return [BulkLoadSummary(one, *of_it) for one, of_it in zip(loads, left, strict=True)]

    def by_name(self, name: str) -> BulkLoad | None:
        with self._database.reading() as connection:
            row = connection.execute(_LOAD.where(load.c.name == name)).one_or_none()
        return None if row is None else BulkLoad(*row)

    def by_prefix(self, prefix: str) -> list[BulkLoad]:
        """Return the loads whose names begin so, the oldest first."""
        named = func.substr(load.c.name, 1, len(prefix)) == prefix
        with self._database.reading() as connection:
            return [BulkLoad(*row) for row in connection.execute(_LOAD.where(named).order_by(load.c.id))]

    def unfinished(self) -> list[BulkLoad]:
        """Return the loads that are open, or committed and not wholly accepted."""
        with self._database.reading() as connection:
            return unfinished_in(connection)

    def count_pending(self) -> int:
        """Return how many messages of committed loads no holder has accepted."""
        with self._database.reading() as connection:
            return count_pending_in(connection)


def _by(by: Operator | None = None) -> dict[str, Any]:
    return {**(by or Operator.of_process())._asdict(), "audited": False}


def record_ends(connection: Connection, statements: Statements, shard: int) -> None:
    """Record commits and aborts of loads in the audit log, behind the fence of a shard: the first holder that accepts
    messages of a load does so, since those who load may not have the right to write the log."""
    of = statements.of(LoadStatements)
    for one in of.ended(connection).all():
        if of.audited(connection, load=one.id).rowcount:  # no other shard has done so meanwhile
            action = "load" if one.state == COMMITTED else "abort_load"
            results = json.dumps({one.name: {"result": "done", "rows": one.rows}})
            entry = AuditEntry(uuid7(), one.ended_ms, one.origin, one.actor, action, "", "{}", None, results)
            audit.append(connection, statements, shard, [entry])


def _changed(connection: Connection, load_id: int, **values: Any) -> BulkLoad:
    connection.execute(update(load).where(load.c.id == load_id).values(**values))
    return BulkLoad(*connection.execute(_LOAD.where(load.c.id == load_id)).one())


def _opened(connection: Connection, load_id: int, run: int, now_ms: int) -> BulkLoad:
    return _changed(connection, load_id, state=OPEN, run=run, begun_ms=now_ms, ended_ms=None, audited=False)


def _is_of_part(load_id: int, part: int) -> tuple[Any, ...]:
    return load_chunk.c.load == load_id, load_chunk.c.part == part


def _check_open(connection: Connection, load_id: int, run: int) -> None:
    """Lock the load (shared with the other parts) until the end of the transaction; raises LoadEnded."""
    locked = select(load.c.name, load.c.state, load.c.run).where(load.c.id == load_id).with_for_update(read=True)
    found = connection.execute(locked).one_or_none()
    if found is None:
        raise LoadEnded(f"load {load_id} is no longer in the store; nothing was written; begin the load again")
    if found.state != OPEN:
        raise LoadEnded(
            f"the load {found.name!r} is {found.state}; nothing more of it was written; begin it again if it was "
            "aborted by mistake"
        )
    if found.run != run:
        raise LoadEnded(
            f"the load {found.name!r} was begun again by another process (run {found.run}, this process has run {run});"
            " nothing more of it was written from here; let one process at a time run a load"
        )


def _fence(connection: Connection, claim: PartClaim) -> None:
    _check_open(connection, claim.load, claim.run)
    here = (load_part.c.load == claim.load, load_part.c.part == claim.part)
    if connection.scalar(select(load_part.c.attempt).where(*here).with_for_update()) != claim.attempt:
        raise LoadEnded(
            f"a later attempt took over part {claim.part}; this attempt writes nothing more; wait for the later attempt"
        )


def _check_parts(connection: Connection, load_id: int, parts: Mapping[int, PartResult]) -> None:
    claimed = select(load_part.c.part, load_part.c.attempt).where(load_part.c.load == load_id)
    attempts = {row.part: row.attempt for row in connection.execute(claimed)}
    counts = _rows_of_parts(connection, load_id)
    remedy = "nothing was loaded; run the load again under the same name"
    for part, result in parts.items():
        if attempts.get(part) != result.attempt:
            raise LoadEnded(f"a later attempt than the one to commit took over part {part}; {remedy}")
        if counts.pop(part, 0) != result.rows:
            raise LoadEnded(f"part {part} does not have the {result.rows:,} messages of its attempt; {remedy}")
    if counts:
        raise LoadEnded(f"the load also has the parts {sorted(counts)}, which are not to be committed; {remedy}")


def _rows_of_parts(connection: Connection, load_id: int) -> dict[int, int]:
    rows = select(load_chunk.c.part, func.sum(load_chunk.c.rows)).where(load_chunk.c.load == load_id)
    return {part: int(count) for part, count in connection.execute(rows.group_by(load_chunk.c.part))}


def unfinished_in(connection: Connection) -> list[BulkLoad]:
    """Return the loads that are open, or committed and not wholly accepted, as the connection sees them."""
    waits = and_(load.c.state == COMMITTED, exists().where(load_chunk.c.load == load.c.id))
    found = _LOAD.where((load.c.state == OPEN) | waits).order_by(load.c.id)
    return [BulkLoad(*row) for row in connection.execute(found)]


def count_pending_in(connection: Connection) -> int:
    """Return the messages of committed loads that no holder has accepted, as the connection sees them."""
    rows = select(_ROWS).join(load, load.c.id == load_chunk.c.load).where(load.c.state == COMMITTED)
    return int(connection.execute(rows).scalar_one())
