"""Bulk loads: any number of processes write messages, and all are accepted at once, or none.

::

    begin ─► load 7, run 3, open                       one process; or ``join``, by each process of the run
      part 0   claim ─► attempt ─► put ─ put ─ … ─ finish                                     any number of processes
      part 1   claim ─► attempt ─► put ─ put ─ … ─ finish       each a transaction of its own, each behind the fence
    commit ─► committed ─► holders accept it (``intake``) ─► done       or abort ─► aborted, and its chunks are removed

The fence of a part: its transaction locks the load's row (shared) and the part's row; the load must be open, in the
run in which the part was claimed, and the attempt must be the last that claimed the part. Therefore

    abort       first changes the state, which waits for open transactions, and then deletes their chunks: a later
                transaction finds the changed state and writes nothing
    a retry     of a part claims it anew; an earlier attempt that still runs writes nothing any more
    a new run   of the same name takes over an open load; an earlier run that still runs writes nothing any more
    commit      commits exactly the parts in its argument, with their attempts and their numbers of messages

A part has several short transactions: on SQLite, one transaction for the minutes of a part would stop the scheduler's
writes, and on PostgreSQL a process that hangs in one would block its successor. No reader uses a chunk before its load
is committed, so the chunks of a part need not be committed together.

A resumed load keeps the chunks of an earlier run or attempt where the digest of their slice is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Update, and_, bindparam, delete, exists, func, insert, select, update

from celery_wheel.errors import LoadEnded
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import load, load_chunk, load_part
from celery_wheel.store.sql.statement import ObjectInsert, Statements, columns_of, constant, places
from celery_wheel.store.store_model import BulkLoad, BulkLoadSummary, PartChunk, PartClaim, PartResult, WrittenSlice

#: A load's name cannot be loaded again for so long after its end: 366 days.
KEPT_MS = 366 * 86_400_000

#: Chunks or slices removed in one transaction or statement.
CHUNKS_AT_ONCE = 500

_LOAD = select(*columns_of(BulkLoad, load))
_ROWS = func.coalesce(func.sum(load_chunk.c.rows), 0)
_THIS = load.c.id == bindparam("load")
_CHUNK_OF_LOAD = load_chunk.c.load == bindparam("load")
_CHUNK_OF_PART = and_(_CHUNK_OF_LOAD, load_chunk.c.part == bindparam("part"))
_HAS_CHUNKS = exists().where(load_chunk.c.load == load.c.id)

# -- loads ------------------------------------------------------------------------------------------

BY_ID = _LOAD.where(_THIS)
BY_NAME = _LOAD.where(load.c.name == bindparam("name"))
BY_PREFIX = _LOAD.where(func.substr(load.c.name, 1, bindparam("length")) == bindparam("prefix")).order_by(load.c.id)
LATEST = _LOAD.order_by(load.c.id.desc()).limit(bindparam("limit"))
UNFINISHED = _LOAD.where((load.c.state == OPEN) | and_(load.c.state == COMMITTED, _HAS_CHUNKS)).order_by(load.c.id)
#: The messages of committed loads.
PENDING_ROWS = select(_ROWS).join(load, load.c.id == load_chunk.c.load).where(load.c.state == COMMITTED)
LOCK_ABORTED = select(load.c.id).where(_THIS, load.c.state == ABORTED).with_for_update(read=True)
#: Locks the load, shared with the transactions of its other parts.
LOCK_RUN = select(load.c.name, load.c.state, load.c.run).where(_THIS).with_for_update(read=True)


def _change(load_id: int, **values: Any) -> Update:
    return update(load).where(load.c.id == load_id).values(**values)


def _aborting(load_id: int, now_ms: int, run: int | None) -> Update:
    """Abort the load where it is open, and in this run if ``run`` is given."""
    aborted = _change(load_id, state=ABORTED, ended_ms=now_ms).where(load.c.state == OPEN)
    return aborted if run is None else aborted.where(load.c.run == run)


# -- parts ------------------------------------------------------------------------------------------

_PART_OF_LOAD = load_part.c.load == bindparam("load")
LOCK_ATTEMPT = select(load_part.c.attempt).where(_PART_OF_LOAD, load_part.c.part == bindparam("part")).with_for_update()
ATTEMPTS = select(load_part.c.part, load_part.c.attempt).where(_PART_OF_LOAD)
DELETE_PARTS = delete(load_part).where(_PART_OF_LOAD)

_FORGOTTEN = and_(load.c.id.in_(bindparam("loads", expanding=True)), load.c.state == DONE)
FORGET_PARTS = delete(load_part).where(load_part.c.load.in_(select(load.c.id).where(_FORGOTTEN)))
FORGET = delete(load).where(_FORGOTTEN)

# -- chunks -----------------------------------------------------------------------------------------

_SLICE = (load_chunk.c.number, func.min(load_chunk.c.digest), func.sum(load_chunk.c.rows))
SLICES = select(*_SLICE).where(_CHUNK_OF_PART).group_by(load_chunk.c.number)
PART_ROWS = select(load_chunk.c.part, func.sum(load_chunk.c.rows)).where(_CHUNK_OF_LOAD).group_by(load_chunk.c.part)
#: (chunks, rows) of a load.
FIGURES = select(func.count(), _ROWS).where(_CHUNK_OF_LOAD)
CHUNK_IDS = select(load_chunk.c.id).where(_CHUNK_OF_LOAD).order_by(load_chunk.c.id).limit(bindparam("limit"))
DELETE_CHUNKS = delete(load_chunk).where(load_chunk.c.id.in_(bindparam("ids", expanding=True)))
DELETE_SLICES = delete(load_chunk).where(_CHUNK_OF_PART, load_chunk.c.number.in_(bindparam("numbers", expanding=True)))
DELETE_SLICES_FROM = delete(load_chunk).where(_CHUNK_OF_PART, load_chunk.c.number >= bindparam("slices"))

# -- prepared statements ----------------------------------------------------------------------------


class LoadStatements:
    def __init__(self, statements: Statements) -> None:
        chunk = places("load", "part", "number", "shard", "rows", "digest", "payload")
        add = statements.bulk(load_chunk, insert(load_chunk).inline().values(chunk))
        self.add_chunk = ObjectInsert(add, "load", "part")
        now: Any = bindparam("now_ms", type_=BigInteger)
        new = statements.insert_or(load).inline()
        new = new.values(name=bindparam("name"), state=constant(OPEN), run=constant(0), created_ms=now, begun_ms=now)
        self.begin = statements(new.values(rows=constant(0)).on_conflict_do_nothing(index_elements=["name"]))
        self.claim = statements.put(load_part, ["load", "part"], ["run", "attempt"])
        left = exists().where(load_chunk.c.load == load.c.id)
        is_accepted = and_(load.c.state == constant(COMMITTED), ~left)
        self.finish = statements(update(load).where(is_accepted).values(state=constant(DONE)))
        is_over = select(load.c.id).where(load.c.state == constant(DONE))
        self.forget_parts = statements(delete(load_part).where(load_part.c.load.in_(is_over)))
        ended = load.c.state.in_([constant(DONE), constant(ABORTED)])
        self.forget = statements(delete(load).where(ended, load.c.ended_ms < bindparam("before_ms")))

    def expire(self, connection: Connection, now_ms: int) -> None:
        """Mark wholly accepted loads as done, and forget what is over."""
        self.finish(connection)
        self.forget_parts(connection)
        self.forget(connection, before_ms=now_ms - KEPT_MS)


class SqlLoads:
    """Every method raises StoreError where the store fails; each may be repeated when its answer was lost."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.of(LoadStatements)

    def begin(self, name: str, now_ms: int) -> BulkLoad:
        """Open the load of that name, new or resumed; a committed load is returned as it is."""
        with self._database.writing(durable=True) as connection:
            load = self._lock(connection, name, now_ms)
            return load if load.is_loaded else _begin_run(connection, load, load.run + 1, now_ms)

    def join(self, name: str, run: int, now_ms: int) -> BulkLoad:
        """Open the load in this run, together with the other processes of the run, or return it where it is committed.

        Raises LoadEnded where a later run has begun, or this run was aborted.
        """
        with self._database.writing(durable=True) as connection:
            load = self._lock(connection, name, now_ms)
            if load.is_loaded:
                return load
            if load.run < run:
                return _begin_run(connection, load, run, now_ms)
            _check_open(connection, load.id, run)
            return load

    def _lock(self, connection: Connection, name: str, now_ms: int) -> BulkLoad:
        """Lock the load, which may be new.

        SQLite has one writer. On PostgreSQL a process that begins the same load at once waits for its row.
        """
        locked = BY_NAME.with_for_update()
        found = connection.execute(locked, {"name": name}).one_or_none()
        if found is None:
            self._statements.begin(connection, name=name, now_ms=now_ms)
            found = connection.execute(locked, {"name": name}).one()
        return BulkLoad(*found)

    def claim(self, load_id: int, run: int, part: int) -> tuple[PartClaim, dict[int, WrittenSlice]]:
        """Claim the part; returns the right to write it, and its existing slices by number. Raises LoadEnded."""
        claim = PartClaim(load_id, run, part, uuid.uuid4().hex)
        with self._database.writing() as connection:
            _check_open(connection, load_id, run)
            self._statements.claim(connection, load=load_id, part=part, run=run, attempt=claim.attempt)
            found = connection.execute(SLICES, {"load": load_id, "part": part}).all()
        return claim, {number: WrittenSlice(digest, int(rows)) for number, digest, rows in found}

    def put(self, claim: PartClaim, chunks: Sequence[PartChunk]) -> None:
        """Write whole slices, each with all its chunks, in place of earlier ones of their numbers. Raises LoadEnded."""
        with self._database.writing() as connection:
            _fence(connection, claim)
            numbers = sorted({chunk.number for chunk in chunks})
            for start in range(0, len(numbers), CHUNKS_AT_ONCE):
                some = numbers[start : start + CHUNKS_AT_ONCE]
                values = {"load": claim.load, "part": claim.part, "numbers": some}
                connection.execute(DELETE_SLICES, values)
            self._statements.add_chunk.many(connection, chunks, claim.load, claim.part)
        self._database.tidy()

    def finish(self, claim: PartClaim, slices: int) -> None:
        """Keep the first ``slices`` slices of the part and remove all later ones. Raises LoadEnded."""
        with self._database.writing() as connection:
            _fence(connection, claim)
            values = {"load": claim.load, "part": claim.part, "slices": slices}
            connection.execute(DELETE_SLICES_FROM, values)

    def commit(self, load_id: int, run: int, parts: Mapping[int, PartResult], now_ms: int) -> BulkLoad:
        """Commit exactly ``parts``, for the holders to accept. Raises LoadEnded, and then nothing is loaded."""
        self._remove_other_parts(load_id, run, parts)
        with self._database.writing(durable=True) as connection:
            found = connection.execute(BY_ID.with_for_update(), {"load": load_id}).one_or_none()
            load = None if found is None else BulkLoad(*found)
            if load is not None and load.run == run and load.is_loaded:
                return load
            _check_open(connection, load_id, run)
            _check_parts(connection, load_id, parts)
            rows = sum(part.rows for part in parts.values())
            connection.execute(_change(load_id, state=COMMITTED, ended_ms=now_ms, rows=rows))
            committed = BulkLoad(*connection.execute(BY_ID, {"load": load_id}).one())
        self._database.ring()
        return committed

    def _remove_other_parts(self, load_id: int, run: int, parts: Mapping[int, PartResult]) -> None:
        """Remove the chunks of parts that only an earlier run had."""
        with self._database.reading() as connection:
            found = connection.execute(PART_ROWS, {"load": load_id}).all()
        for part, _ in found:
            if part not in parts:
                claim, _ = self.claim(load_id, run, part)
                self.finish(claim, 0)

    def abort(self, load_id: int, now_ms: int, run: int | None = None) -> bool:
        """Abort an open load and remove its chunks; returns False where it was not open.

        Args:
            run: abort only this run; None: any run.
        """
        with self._database.writing(durable=True) as connection:
            aborted = connection.execute(_aborting(load_id, now_ms, run)).rowcount > 0
        while self._clear(load_id):
            self._database.tidy()
        return aborted

    def forget(self, load_ids: Sequence[int]) -> None:
        """Forget those of the loads that are done: their names may be loaded again."""
        with self._database.writing() as connection:
            for query in (FORGET_PARTS, FORGET):
                connection.execute(query, {"loads": list(load_ids)})

    def _clear(self, load_id: int) -> bool:
        """Remove some chunks of an aborted load; returns False where none is left, or the load was begun again."""
        with self._database.writing() as connection:
            if connection.execute(LOCK_ABORTED, {"load": load_id}).one_or_none() is None:
                return False
            ids = connection.execute(CHUNK_IDS, {"load": load_id, "limit": CHUNKS_AT_ONCE}).scalars().all()
            if ids:
                connection.execute(DELETE_CHUNKS, {"ids": ids})
            else:
                connection.execute(DELETE_PARTS, {"load": load_id})
        return bool(ids)

    def latest(self, limit: int = 100) -> list[BulkLoadSummary]:
        """Return the latest loads, newest first. An open load that began long ago was abandoned: resume or abort it."""
        with self._database.reading() as connection:
            return [
                BulkLoadSummary(BulkLoad(*row), *connection.execute(FIGURES, {"load": row.id}).one())
                for row in connection.execute(LATEST, {"limit": limit}).all()
            ]

    def by_name(self, name: str) -> BulkLoad | None:
        with self._database.reading() as connection:
            row = connection.execute(BY_NAME, {"name": name}).one_or_none()
        return None if row is None else BulkLoad(*row)

    def by_prefix(self, prefix: str) -> list[BulkLoad]:
        """Return the loads whose names begin so, the oldest first."""
        with self._database.reading() as connection:
            found = connection.execute(BY_PREFIX, {"prefix": prefix, "length": len(prefix)})
            return [BulkLoad(*row) for row in found]

    def unfinished(self) -> list[BulkLoad]:
        """Return the loads that are open, or committed and not wholly accepted."""
        with self._database.reading() as connection:
            return unfinished_in(connection)

    def count_pending(self) -> int:
        """Return how many messages of committed loads no holder has accepted."""
        with self._database.reading() as connection:
            return count_pending_in(connection)


def _begin_run(connection: Connection, load: BulkLoad, run: int, now_ms: int) -> BulkLoad:
    values = {"state": OPEN, "run": run, "begun_ms": now_ms, "ended_ms": None}
    connection.execute(_change(load.id, **values))
    return BulkLoad(*connection.execute(BY_ID, {"load": load.id}).one())


def _check_open(connection: Connection, load_id: int, run: int) -> None:
    """Lock the load (shared with the other parts) until the end of the transaction; raises LoadEnded."""
    found = connection.execute(LOCK_RUN, {"load": load_id}).one_or_none()
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
    place = {"load": claim.load, "part": claim.part}
    if connection.execute(LOCK_ATTEMPT, place).scalar() != claim.attempt:
        raise LoadEnded(
            f"a later attempt took over part {claim.part}; this attempt writes nothing more; wait for the later attempt"
        )


def _check_parts(connection: Connection, load_id: int, parts: Mapping[int, PartResult]) -> None:
    attempts = {row.part: row.attempt for row in connection.execute(ATTEMPTS, {"load": load_id})}
    counts = {part: int(count) for part, count in connection.execute(PART_ROWS, {"load": load_id})}
    remedy = "nothing was loaded; run the load again under the same name"
    for part, result in parts.items():
        if attempts.get(part) != result.attempt:
            raise LoadEnded(f"a later attempt than the one to commit took over part {part}; {remedy}")
        if counts.pop(part, 0) != result.rows:
            raise LoadEnded(f"part {part} does not have the {result.rows:,} messages of its attempt; {remedy}")
    if counts:
        raise LoadEnded(f"the load also has the parts {sorted(counts)}, which are not to be committed; {remedy}")


def unfinished_in(connection: Connection) -> list[BulkLoad]:
    """Return the loads that are open, or committed and not wholly accepted, as the connection sees them."""
    return [BulkLoad(*row) for row in connection.execute(UNFINISHED)]


def count_pending_in(connection: Connection) -> int:
    """Return the messages of committed loads that no holder has accepted, as the connection sees them."""
    return int(connection.execute(PENDING_ROWS).scalar_one())
