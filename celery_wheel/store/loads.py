"""``BulkLoads`` of a SQL store.

The fence of a part: its transaction locks the load's row (shared) and the part's; the load must be open, in the run in
which the part was claimed, and the part's attempt must be the last one that claimed it. So

    abort       changes the state first, which waits for transactions under way, and then deletes what they left: what
                comes later finds the state changed and writes nothing
    a retry     of a part claims it anew; an attempt that was thought dead writes nothing any more
    a new run   of the same name takes an open load over: a run that was thought dead writes nothing any more
    commit      takes exactly the parts that it is told of, of the attempts that it is told of, with as many messages

Short transactions, and not one a part: on SQLite one that lasts for a part's minutes would keep the scheduler from
writing for as long, and on PostgreSQL a process that hangs in one would keep its successor out. A chunk of a load that
is not committed is nothing to anybody, so it need not come with the others of its part.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, select, update

from celery_wheel.errors import LoadOver
from celery_wheel.store.database import Database
from celery_wheel.store.fields import columns_of
from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN
from celery_wheel.store.ports.loads import Chunk, Claim, Listed, Load, Slice, Written
from celery_wheel.store.schema import load, load_chunk, load_part

#: Chunks of a transaction that removes some.
CHUNKS_AT_ONCE = 500

_LOAD = columns_of(Load, load)


class SqlLoads:
    """Implements ``celery_wheel.store.ports.BulkLoads``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, name: str, now_ms: int) -> Load:
        with self._database.writing(durable=True) as connection:
            # SQLite: nobody else writes now. PostgreSQL: whoever comes at the same moment waits for this row.
            if not _of_name(connection, name):
                self._database.statements.loading.begin(connection, name=name, now_ms=now_ms)
            found = _of_name(connection, name)
            assert found is not None  # noqa: S101 - just made, by this process or another
            if not found.is_loaded:
                values = {"state": OPEN, "run": found.run + 1, "begun_ms": now_ms, "ended_ms": None}
                connection.execute(update(load).where(load.c.id == found.id).values(**values))
                found = _of_name(connection, name)
                assert found is not None  # noqa: S101
        return found

    def claim(self, load_id: int, run: int, part: int) -> tuple[Claim, dict[int, Slice]]:
        taken = Claim(load_id, run, part, uuid.uuid4().hex)
        with self._database.writing() as connection:
            _check_open(connection, taken)
            values = {"load": load_id, "part": part, "run": run, "attempt": taken.attempt}
            self._database.statements.loading.claim(connection, **values)
            here = and_(load_chunk.c.load == load_id, load_chunk.c.part == part)
            sums = select(load_chunk.c.number, func.min(load_chunk.c.digest), func.sum(load_chunk.c.rows))
            found = connection.execute(sums.where(here).group_by(load_chunk.c.number)).all()
        return taken, {number: Slice(digest, int(rows)) for number, digest, rows in found}

    def put(self, taken: Claim, chunks: Sequence[Chunk]) -> None:
        with self._database.writing() as connection:
            _fence(connection, taken)
            numbers = sorted({chunk.number for chunk in chunks})
            for start in range(0, len(numbers), CHUNKS_AT_ONCE):
                part = load_chunk.c.number.in_(numbers[start : start + CHUNKS_AT_ONCE])
                connection.execute(delete(load_chunk).where(*_of(taken), part))
            self._database.statements.loading.add_chunk.many(connection, chunks, taken.load, taken.part)
        self._database.tidy()

    def finish(self, taken: Claim, slices: int) -> None:
        with self._database.writing() as connection:
            _fence(connection, taken)
            connection.execute(delete(load_chunk).where(*_of(taken), load_chunk.c.number >= slices))

    def commit(self, load_id: int, run: int, parts: Mapping[int, Written], now_ms: int) -> Load:
        self._remove_others(load_id, run, parts)
        with self._database.writing(durable=True) as connection:
            found = connection.execute(select(*_LOAD).where(load.c.id == load_id).with_for_update()).one_or_none()
            if found is not None and found.run == run and found.state in (COMMITTED, DONE):
                return Load(*found)
            _check_open(connection, Claim(load_id, run, -1, ""))
            _check_parts(connection, load_id, parts)
            rows = sum(part.rows for part in parts.values())
            values = {"state": COMMITTED, "ended_ms": now_ms, "rows": rows}
            connection.execute(update(load).where(load.c.id == load_id).values(**values))
            return Load(*connection.execute(select(*_LOAD).where(load.c.id == load_id)).one())

    def _remove_others(self, load_id: int, run: int, parts: Mapping[int, Written]) -> None:
        """Chunks of parts that an earlier run had, and this one has not."""
        with self._database.reading() as connection:
            there = connection.execute(
                select(load_chunk.c.part).where(load_chunk.c.load == load_id).distinct()
            ).scalars()
            others = [part for part in there if part not in parts]
        for part in others:
            taken, _ = self.claim(load_id, run, part)
            self.finish(taken, 0)

    def abort(self, load_id: int, now_ms: int, run: int | None = None) -> bool:
        open_ = and_(load.c.id == load_id, load.c.state == OPEN, *([] if run is None else [load.c.run == run]))
        with self._database.writing(durable=True) as connection:
            ended = connection.execute(update(load).where(open_).values(state=ABORTED, ended_ms=now_ms)).rowcount > 0
        while self._clear(load_id):
            self._database.tidy()
        return ended

    def _clear(self, load_id: int) -> bool:
        """Remove some of what an aborted load has left; False when there is nothing more, or it was begun again."""
        aborted = select(load.c.id).where(load.c.id == load_id, load.c.state == ABORTED).with_for_update(read=True)
        with self._database.writing() as connection:
            if connection.execute(aborted).one_or_none() is None:
                return False
            some = select(load_chunk.c.id).where(load_chunk.c.load == load_id).order_by(load_chunk.c.id)
            ids = connection.execute(some.limit(CHUNKS_AT_ONCE)).scalars().all()
            connection.execute(delete(load_chunk).where(load_chunk.c.id.in_(ids)))
            if not ids:
                connection.execute(delete(load_part).where(load_part.c.load == load_id))
        return bool(ids)

    def listed(self, limit: int = 100) -> list[Listed]:
        with self._database.reading() as connection:
            found = connection.execute(select(*_LOAD).order_by(load.c.id.desc()).limit(limit)).all()
            sums = select(func.count(), func.coalesce(func.sum(load_chunk.c.rows), 0))
            return [
                Listed(Load(*one), *connection.execute(sums.where(load_chunk.c.load == one.id)).one()) for one in found
            ]

    def of_name(self, name: str) -> Load | None:
        with self._database.reading() as connection:
            row = connection.execute(select(*_LOAD).where(load.c.name == name)).one_or_none()
        return None if row is None else Load(*row)

    def unfinished(self) -> list[Load]:
        with self._database.reading() as connection:
            return unfinished_in(connection)

    def count_waiting(self) -> int:
        with self._database.reading() as connection:
            return count_waiting_in(connection)


def _of_name(connection: Connection, name: str) -> Load | None:
    row = connection.execute(select(*_LOAD).where(load.c.name == name).with_for_update()).one_or_none()
    return None if row is None else Load(*row)


def _of(taken: Claim) -> tuple[Any, ...]:
    return load_chunk.c.load == taken.load, load_chunk.c.part == taken.part


def _check_open(connection: Connection, taken: Claim) -> None:
    """Shared with the other parts; whoever ends the load waits for them, and they for him."""
    here = select(load.c.name, load.c.state, load.c.run).where(load.c.id == taken.load).with_for_update(read=True)
    found = connection.execute(here).one_or_none()
    if found is None:
        raise LoadOver(f"load {taken.load} is not in the store any more; nothing of this was written")
    if found.state != OPEN:
        raise LoadOver(f"the load {found.name!r} is {found.state}; nothing more of it was written")
    if found.run != taken.run:
        raise LoadOver(
            f"the load {found.name!r} was begun again by another process (run {found.run}, this one is {taken.run}); "
            "nothing more of it was written from here; see that a load runs once at a time"
        )


def _fence(connection: Connection, taken: Claim) -> None:
    _check_open(connection, taken)
    own = and_(load_part.c.load == taken.load, load_part.c.part == taken.part)
    found = connection.execute(select(load_part.c.attempt).where(own).with_for_update()).scalar()
    if found != taken.attempt:
        raise LoadOver(f"part {taken.part} was taken over by a later attempt; nothing more was written by this one")


def _check_parts(connection: Connection, load_id: int, parts: Mapping[int, Written]) -> None:
    claims = select(load_part.c.part, load_part.c.attempt).where(load_part.c.load == load_id)
    attempts = {row.part: row.attempt for row in connection.execute(claims)}
    sums = select(load_chunk.c.part, func.sum(load_chunk.c.rows)).where(load_chunk.c.load == load_id)
    counts = {part: int(count) for part, count in connection.execute(sums.group_by(load_chunk.c.part))}
    for part, written in parts.items():
        if attempts.get(part) != written.attempt:
            raise LoadOver(
                f"part {part} was taken over by a later attempt than the one that is to be committed; nothing was "
                "loaded; load it again under the same name"
            )
        if counts.pop(part, 0) != written.rows:
            raise LoadOver(f"part {part} has not the {written.rows:,} messages it should; nothing was loaded")
    if counts:
        raise LoadOver(f"parts {sorted(counts)} are there and were not to be committed; nothing was loaded")


def unfinished_in(connection: Connection) -> list[Load]:
    """Loads that are open, or not all taken in."""
    left = exists().where(load_chunk.c.load == load.c.id)
    waits = (load.c.state == OPEN) | and_(load.c.state == COMMITTED, left)
    return [Load(*row) for row in connection.execute(select(*_LOAD).where(waits).order_by(load.c.id))]


def count_waiting_in(connection: Connection) -> int:
    """Messages of committed loads that no holder has taken in."""
    rows = select(func.coalesce(func.sum(load_chunk.c.rows), 0)).join(load, load.c.id == load_chunk.c.load)
    count: int = connection.execute(rows.where(load.c.state == COMMITTED)).scalar_one()
    return int(count)
