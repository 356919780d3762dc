"""``forget``: remove history, oldest batch first, in small transactions.

::

    batch 1   batch 2   batch 3                   lane 0
    ├─────────┼─────────┼────────┤     offset
    └ too old, or too many bytes       │          never a row after the offset, whatever a batch says:
      rows first, then the batch                  a rollback moves the offset back over batches that stay

    lane STOPPED   ├── stopped before before_ms ──┤

    a timer goes with its outcomes, claims and run; skips of schedules go by their age

A settled row is anywhere in the tables, which are in the order of arrival: its removal writes a page of each table
and of each index but the position's. The ids of a transaction are therefore sorted, so that a page is visited once,
and a transaction is short, since every other writer waits for it.

The transactions need not be durable: history that comes back after a loss of power is forgotten again.

With ``archived_only`` only history that an archive has is removed (see ``archive_floor``), and a batch that must stay
keeps all younger batches.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import DAY_MS, HOUR_MS, MAX_SEQ, ORIGIN, STOPPED, Position
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql.archive_floor import ArchiveFloors
from celery_wheel.store.sql.changes import advance, fence
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.statements import Statements
from celery_wheel.store.sql.statements.clauses import IN_PLACES, in_parts, span

#: Rows of one transaction. From 250 to 5,000 a row costs the same (8,000 rows/s out of 2,000,000 at random due times,
#: warm; a quarter of that from a cold disk), since hardly two of them share a page. The number limits how long other
#: writers wait.
ROWS_AT_ONCE = 500
BATCHES_AT_ONCE = 200


class ForgetTransaction:
    """One transaction of ``forget``."""

    def __init__(
        self, connection: Connection, statements: Statements, floors: ArchiveFloors, shard: int, epoch: int, limit: int
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._floors = floors
        self._shard = shard
        self._epoch = epoch
        self._limit = limit
        self._ids: set[int] = set()
        self._batches: list[tuple[int]] = []
        self._highest = 0  #: of the numbers of forgotten events
        self._mark: int | None = None  #: events after it stay
        self._lowest: dict[int, Position] | None = None
        #: Whether this transaction may have left history to forget.
        self.more = False

    def run(self, retention: Retention) -> int:
        """Remove history; returns the number of removed rows."""
        fence(self._connection, self._statements, self._shard, self._epoch)
        self._collect_batches(retention)
        if not self.more:
            self._collect(STOPPED, ORIGIN, Position(retention.before_ms, 0))
        self._remove(retention.before_ms)
        self._remove_skips(retention.before_ms)
        return len(self._ids)

    def _collect_batches(self, retention: Retention) -> None:
        """Collect whole batches while they are to be removed, up to one that does not fit or is not archived."""
        connection, statements = self._connection, self._statements
        lanes = statements.all_lanes(connection, shard=self._shard)
        offsets = {row.lane: Position(row.offset_due_ms, row.offset_seq) for row in lanes}
        shard = statements.archive.marks(connection, at_shard=self._shard, at_epoch=self._epoch).one()
        self._mark = shard.archived if retention.archived_only else None
        freed = 0
        batches = statements.oldest_batches(connection, shard=self._shard, limit=BATCHES_AT_ONCE).all()
        for batch in batches:
            if batch.dispatched_ms >= retention.before_ms and shard.history_bytes - freed <= retention.max_bytes:
                break
            if self._mark is not None and not self._is_archived(batch, shard.seq):
                break
            end = min(Position(batch.to_due_ms, batch.to_seq), offsets.get(batch.lane, ORIGIN))
            if end > retention.upto.get(batch.lane, end):
                break
            before = len(self._ids)
            whole = self._collect(batch.lane, Position(batch.from_due_ms, batch.from_seq), end)
            if whole or len(self._ids) > before:
                self._highest = max(self._highest, batch.id)
            if not whole:
                break
            self._batches.append((batch.id,))
            freed += batch.bytes
        self.more |= len(self._batches) == BATCHES_AT_ONCE
        if freed:
            advance(connection, statements, self._shard, self._epoch, weight=-freed)

    def _is_archived(self, batch: Any, last: int) -> bool:
        """Whether an archive has the batch, and every later batch of the same positions."""
        mark: Any = self._mark
        if batch.id > mark:
            return False
        if self._lowest is None:
            self._lowest = self._floors.of(self._connection, self._statements.archive, self._shard, mark, last)
        to = Position(batch.to_due_ms, batch.to_seq)
        return to <= self._lowest.get(batch.lane, to)

    def _collect(self, lane: int, after: Position, upto: Position) -> bool:
        """Collect the rows of a range, up to the limit or one that is not archived; returns whether that was all."""
        room = self._limit - len(self._ids)
        values = {**span(self._shard, lane, after, upto), "limit": room + 1}
        if self._mark is None:
            found = free = self._statements.ids_in_range(self._connection, **values).scalars().all()
        else:
            rows = self._statements.archive.ids_in_range(self._connection, **values).all()
            found, free = [row.id for row in rows], [row.id for row in takewhile(lambda row: not row.waits, rows)]
        self._ids.update(free[:room])
        self.more |= len(free) > room
        return len(found) == len(free) <= room

    def _remove(self, before_ms: int) -> None:
        connection, statements = self._connection, self._statements
        removed = [(row_id,) for row_id in sorted(self._ids)]
        parts = in_parts(sorted(self._ids), IN_PLACES)
        last = [statements.archive.last_outcome.at(connection, (self._shard, *part)).scalar() or 0 for part in parts]
        if highest := max([self._highest, *last]):
            statements.archive.forgotten(connection, at_shard=self._shard, at_epoch=self._epoch, number=highest)
        of_timer = (statements.forget_timer, statements.forget_outcome)
        for statement in (*of_timer, statements.control.unwatch, statements.schedules.forget_run):
            statement.many(connection, removed)
        statements.forget_batch.many(connection, self._batches)
        if not self.more:
            statements.forget_tally(connection, shard=self._shard)
            # Sums of hours and days go once they are over: to find others, each shard would read those of all shards.
            over = {"hour": before_ms // HOUR_MS, "day": before_ms // DAY_MS, "name": MAX_SEQ}
            for kind, before in over.items():
                statements.forget_total(connection, shard=self._shard, kind=kind, before=before)
            statements.forget_lanes(connection, shard=self._shard)

    def _remove_skips(self, before_ms: int) -> None:
        """Remove the oldest skips of schedules; no archive has them."""
        statements = self._statements.schedules
        values = {"shard": self._shard, "before_ms": before_ms, "limit": ROWS_AT_ONCE}
        gone = statements.old_skips(self._connection, **values).scalars().all()
        statements.forget_skip.many(self._connection, [(skip,) for skip in sorted(gone)])
        self.more |= len(gone) == ROWS_AT_ONCE


def forget(database: Database, floors: ArchiveFloors, shard: int, epoch: int, retention: Retention, limit: int) -> int:
    """Remove up to ``limit`` rows, in as many transactions as that takes; returns how many."""
    removed = 0
    more = True
    while more and removed < limit:
        with database.writing(durable=False) as connection:
            part = ForgetTransaction(
                connection, database.statements, floors, shard, epoch, min(ROWS_AT_ONCE, limit - removed)
            )
            removed += part.run(retention)
            more = part.more
    return removed
