"""``BulkLoads`` of a SQL store.

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
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from celery_wheel.errors import LoadEnded
from celery_wheel.store.model import COMMITTED, OPEN
from celery_wheel.store.ports.bulk_loads import (
    BulkLoad,
    BulkLoadSummary,
    PartChunk,
    PartClaim,
    PartResult,
    WrittenSlice,
)
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.queries import bulk_loads as queries

#: Chunks or slices removed in one transaction or statement.
CHUNKS_AT_ONCE = 500


class SqlLoads:
    """Implements ``celery_wheel.store.ports.BulkLoads``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = database.statements.bulk_load

    def begin(self, name: str, now_ms: int) -> BulkLoad:
        with self._database.writing(durable=True) as connection:
            load = self._lock(connection, name, now_ms)
            return load if load.is_loaded else _begin_run(connection, load, load.run + 1, now_ms)

    def join(self, name: str, run: int, now_ms: int) -> BulkLoad:
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
        locked = queries.BY_NAME.with_for_update()
        found = connection.execute(locked, {"name": name}).one_or_none()
        if found is None:
            self._statements.begin(connection, name=name, now_ms=now_ms)
            found = connection.execute(locked, {"name": name}).one()
        return BulkLoad(*found)

    def claim(self, load_id: int, run: int, part: int) -> tuple[PartClaim, dict[int, WrittenSlice]]:
        claim = PartClaim(load_id, run, part, uuid.uuid4().hex)
        with self._database.writing() as connection:
            _check_open(connection, load_id, run)
            self._statements.claim(connection, load=load_id, part=part, run=run, attempt=claim.attempt)
            found = connection.execute(queries.SLICES, {"load": load_id, "part": part}).all()
        return claim, {number: WrittenSlice(digest, int(rows)) for number, digest, rows in found}

    def put(self, claim: PartClaim, chunks: Sequence[PartChunk]) -> None:
        with self._database.writing() as connection:
            _fence(connection, claim)
            numbers = sorted({chunk.number for chunk in chunks})
            for start in range(0, len(numbers), CHUNKS_AT_ONCE):
                some = numbers[start : start + CHUNKS_AT_ONCE]
                values = {"load": claim.load, "part": claim.part, "numbers": some}
                connection.execute(queries.DELETE_SLICES, values)
            self._statements.add_chunk.many(connection, chunks, claim.load, claim.part)
        self._database.tidy()

    def finish(self, claim: PartClaim, slices: int) -> None:
        with self._database.writing() as connection:
            _fence(connection, claim)
            values = {"load": claim.load, "part": claim.part, "slices": slices}
            connection.execute(queries.DELETE_SLICES_FROM, values)

    def commit(self, load_id: int, run: int, parts: Mapping[int, PartResult], now_ms: int) -> BulkLoad:
        self._remove_other_parts(load_id, run, parts)
        with self._database.writing(durable=True) as connection:
            found = connection.execute(queries.BY_ID.with_for_update(), {"load": load_id}).one_or_none()
            load = None if found is None else BulkLoad(*found)
            if load is not None and load.run == run and load.is_loaded:
                return load
            _check_open(connection, load_id, run)
            _check_parts(connection, load_id, parts)
            rows = sum(part.rows for part in parts.values())
            connection.execute(queries.change(load_id, state=COMMITTED, ended_ms=now_ms, rows=rows))
            committed = BulkLoad(*connection.execute(queries.BY_ID, {"load": load_id}).one())
        self._database.ring()
        return committed

    def _remove_other_parts(self, load_id: int, run: int, parts: Mapping[int, PartResult]) -> None:
        """Remove the chunks of parts that only an earlier run had."""
        with self._database.reading() as connection:
            found = connection.execute(queries.PART_ROWS, {"load": load_id}).all()
        for part, _ in found:
            if part not in parts:
                claim, _ = self.claim(load_id, run, part)
                self.finish(claim, 0)

    def abort(self, load_id: int, now_ms: int, run: int | None = None) -> bool:
        with self._database.writing(durable=True) as connection:
            aborted = connection.execute(queries.abort(load_id, now_ms, run)).rowcount > 0
        while self._clear(load_id):
            self._database.tidy()
        return aborted

    def forget(self, load_ids: Sequence[int]) -> None:
        with self._database.writing() as connection:
            for query in (queries.FORGET_PARTS, queries.FORGET):
                connection.execute(query, {"loads": list(load_ids)})

    def _clear(self, load_id: int) -> bool:
        """Remove some chunks of an aborted load; returns False where none is left, or the load was begun again."""
        with self._database.writing() as connection:
            if connection.execute(queries.LOCK_ABORTED, {"load": load_id}).one_or_none() is None:
                return False
            ids = connection.execute(queries.CHUNK_IDS, {"load": load_id, "limit": CHUNKS_AT_ONCE}).scalars().all()
            if ids:
                connection.execute(queries.DELETE_CHUNKS, {"ids": ids})
            else:
                connection.execute(queries.DELETE_PARTS, {"load": load_id})
        return bool(ids)

    def latest(self, limit: int = 100) -> list[BulkLoadSummary]:
        with self._database.reading() as connection:
            return [
                BulkLoadSummary(BulkLoad(*row), *connection.execute(queries.FIGURES, {"load": row.id}).one())
                for row in connection.execute(queries.LATEST, {"limit": limit}).all()
            ]

    def by_name(self, name: str) -> BulkLoad | None:
        with self._database.reading() as connection:
            row = connection.execute(queries.BY_NAME, {"name": name}).one_or_none()
        return None if row is None else BulkLoad(*row)

    def by_prefix(self, prefix: str) -> list[BulkLoad]:
        with self._database.reading() as connection:
            found = connection.execute(queries.BY_PREFIX, {"prefix": prefix, "length": len(prefix)})
            return [BulkLoad(*row) for row in found]

    def unfinished(self) -> list[BulkLoad]:
        with self._database.reading() as connection:
            return unfinished_in(connection)

    def count_pending(self) -> int:
        with self._database.reading() as connection:
            return count_pending_in(connection)


def _begin_run(connection: Connection, load: BulkLoad, run: int, now_ms: int) -> BulkLoad:
    values = {"state": OPEN, "run": run, "begun_ms": now_ms, "ended_ms": None}
    connection.execute(queries.change(load.id, **values))
    return BulkLoad(*connection.execute(queries.BY_ID, {"load": load.id}).one())


def _check_open(connection: Connection, load_id: int, run: int) -> None:
    """Lock the load (shared with the other parts) until the end of the transaction; raises LoadEnded."""
    found = connection.execute(queries.LOCK_RUN, {"load": load_id}).one_or_none()
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
    if connection.execute(queries.LOCK_ATTEMPT, place).scalar() != claim.attempt:
        raise LoadEnded(
            f"a later attempt took over part {claim.part}; this attempt writes nothing more; wait for the later attempt"
        )


def _check_parts(connection: Connection, load_id: int, parts: Mapping[int, PartResult]) -> None:
    attempts = {row.part: row.attempt for row in connection.execute(queries.ATTEMPTS, {"load": load_id})}
    counts = {part: int(count) for part, count in connection.execute(queries.PART_ROWS, {"load": load_id})}
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
    return [BulkLoad(*row) for row in connection.execute(queries.UNFINISHED)]


def count_pending_in(connection: Connection) -> int:
    """Return the messages of committed loads that no holder has accepted, as the connection sees them."""
    return int(connection.execute(queries.PENDING_ROWS).scalar_one())
