"""``forget``: removing history, oldest batch first, in small transactions.

::

    batch 1   batch 2   batch 3                   lane 0
    ├─────────┼─────────┼────────┤     offset
    └ too old, or too many bytes       │          never a row behind the offset, whatever a batch says:
      rows first, then the batch                  a rollback moves the offset back over batches that stay

    lane REST   ├───── came to rest before ──┤

A settled row lies anywhere in the tables, which are in the order of arrival: removing one writes a page of each
table and of each index but the position's. The ids of a transaction are therefore sorted, so that a page is
visited once, and a transaction is short, since everything else that writes waits for it.

It need not be durable: history that comes back after a loss of power is forgotten again.

With ``archived_only`` nothing goes of which an archive has not everything (``archived`` says how that is known), and
what cannot go holds up what is younger.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.archived import Floors
from celery_wheel.store.changes import fence
from celery_wheel.store.database import Database
from celery_wheel.store.model import ORIGIN, REST, Position
from celery_wheel.store.statements import Statements
from celery_wheel.store.statements.parts import IN_PLACES, in_parts, span

#: Rows of one transaction. From 250 to 5,000 a row costs the same (8,000 rows/s out of 2,000,000 at random due times,
#: warm; a quarter of that from a cold disk), since hardly two of them share a page; so it is chosen for how long
#: everything else has to wait.
ROWS_AT_ONCE = 500
BATCHES_AT_ONCE = 200


@dataclass(slots=True)
class Retention:
    """What is history's to lose."""

    before_ms: int
    max_bytes: int
    archived_only: bool = False


class Forgetting:
    """One transaction's worth of forgetting."""

    def __init__(
        self, connection: Connection, statements: Statements, floors: Floors, shard: int, epoch: int, limit: int
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._floors = floors
        self._shard = shard
        self._epoch = epoch
        self._limit = limit
        self._ids: set[int] = set()
        self._batches: list[tuple[int]] = []
        self._highest = 0  #: number of what is forgotten, in part or whole
        self._mark: int | None = None  #: nothing beyond it goes
        self._lowest: dict[int, Position] | None = None
        #: Whether there may be more to forget than fitted into this transaction.
        self.more = False

    def run(self, retention: Retention) -> int:
        """Returns how many rows went."""
        fence(self._connection, self._statements, self._shard, self._epoch)
        self._collect_batches(retention)
        if not self.more:
            self._collect(REST, ORIGIN, Position(retention.before_ms, 0))
        self._remove()
        return len(self._ids)

    def _collect_batches(self, retention: Retention) -> None:
        """Take whole batches while they are to go, up to one that does not fit or is not archived."""
        connection, statements = self._connection, self._statements
        lanes = statements.all_lanes(connection, shard=self._shard)
        offsets = {row.lane: Position(row.offset_due_ms, row.offset_seq) for row in lanes}
        shard = statements.archived.marks(connection, at_shard=self._shard, at_epoch=self._epoch).one()
        self._mark = shard.archived if retention.archived_only else None
        freed = 0
        batches = statements.oldest_batches(connection, shard=self._shard, limit=BATCHES_AT_ONCE).all()
        for batch in batches:
            if batch.dispatched_ms >= retention.before_ms and shard.history_bytes - freed <= retention.max_bytes:
                break
            if self._mark is not None and not self._archived(batch, shard.seq):
                break
            end = min(Position(batch.to_due_ms, batch.to_seq), offsets.get(batch.lane, ORIGIN))
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
            statements.weigh(connection, at_shard=self._shard, at_epoch=self._epoch, more=-freed)

    def _archived(self, batch: Any, last: int) -> bool:
        """Whether an archive has the batch, and whatever left from the same positions later."""
        mark: Any = self._mark
        if batch.id > mark:
            return False
        if self._lowest is None:
            self._lowest = self._floors.of(self._connection, self._statements.archived, self._shard, mark, last)
        to = Position(batch.to_due_ms, batch.to_seq)
        return to <= self._lowest.get(batch.lane, to)

    def _collect(self, lane: int, after: Position, upto: Position) -> bool:
        """Take the rows of a range, up to the limit and to one that is not archived; returns whether that was all."""
        room = self._limit - len(self._ids)
        values = {**span(self._shard, lane, after, upto), "limit": room + 1}
        if self._mark is None:
            found = free = self._statements.ids_in_range(self._connection, **values).scalars().all()
        else:
            rows = self._statements.archived.ids_in_range(self._connection, **values).all()
            found, free = [row.id for row in rows], [row.id for row in takewhile(lambda row: not row.waits, rows)]
        self._ids.update(free[:room])
        self.more |= len(free) > room
        return len(found) == len(free) <= room

    def _remove(self) -> None:
        connection, statements = self._connection, self._statements
        gone = [(row_id,) for row_id in sorted(self._ids)]
        parts = in_parts(sorted(self._ids), IN_PLACES)
        last = [statements.archived.last_outcome.at(connection, (self._shard, *part)).scalar() or 0 for part in parts]
        if highest := max([self._highest, *last]):
            statements.archived.forgotten(connection, at_shard=self._shard, at_epoch=self._epoch, number=highest)
        of_timer = (statements.forget_timer, statements.forget_payload, statements.forget_outcome)
        for statement in (*of_timer, statements.commanding.unwatch):
            statement.many(connection, gone)
        statements.forget_batch.many(connection, self._batches)
        if not self.more:
            statements.forget_tally(connection, shard=self._shard)
            statements.forget_lanes(connection, shard=self._shard)


def forget(database: Database, floors: Floors, shard: int, epoch: int, retention: Retention, limit: int) -> int:
    """Up to ``limit`` rows, in as many transactions as that takes; returns how many went."""
    gone = 0
    more = True
    while more and gone < limit:
        with database.writing(durable=False) as connection:
            part = Forgetting(connection, database.statements, floors, shard, epoch, min(ROWS_AT_ONCE, limit - gone))
            gone += part.run(retention)
            more = part.more
    return gone
