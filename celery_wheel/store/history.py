"""``forget``: removing history, oldest batch first, in small transactions.

::

    batch 1   batch 2   batch 3                   lane 0
    ├─────────┼─────────┼────────┤     hand
    └ too old, or too many bytes       │          never a row behind the hand, whatever a batch says:
      rows first, then the batch                  a rollback puts the hand back over batches that stay

    lane REST   ├───── came to rest before ──┤

A settled row lies anywhere in the tables, which are in the order of arrival: removing one writes a page of each
table and of each index but the position's. The ids of a transaction are therefore sorted, so that a page is
visited once, and a transaction is short, since everything else that writes waits for it.

It need not be durable: history that comes back after a loss of power is forgotten again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from celery_wheel.store.changes import fence
from celery_wheel.store.database import Database
from celery_wheel.store.model import ORIGIN, REST, Position
from celery_wheel.store.statements import Statements, span

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


class Forgetting:
    """One transaction's worth of forgetting."""

    def __init__(self, connection: Connection, statements: Statements, shard: int, epoch: int, limit: int) -> None:
        self._connection = connection
        self._statements = statements
        self._shard = shard
        self._epoch = epoch
        self._limit = limit
        self._ids: set[int] = set()
        self._batches: list[tuple[int]] = []
        #: Whether there may be more to forget than fitted into this transaction.
        self.more = False

    def run(self, retention: Retention) -> int:
        """Returns how many rows went."""
        fence(self._connection, self._statements, self._shard, self._epoch)
        if self._collect_batches(retention):
            self._collect(REST, ORIGIN, Position(retention.before_ms, 0))
        self._remove()
        return len(self._ids)

    def _collect_batches(self, retention: Retention) -> bool:
        """Take whole batches while they are to go; returns False when one did not fit."""
        connection, statements = self._connection, self._statements
        lanes = statements.lanes(connection, shard=self._shard)
        hands = {row.lane: Position(row.hand_due_ms, row.hand_seq) for row in lanes}
        weight = statements.history_bytes(connection, at_shard=self._shard, at_epoch=self._epoch).scalar_one()
        freed, whole = 0, True
        batches = statements.oldest_batches(connection, shard=self._shard, limit=BATCHES_AT_ONCE).all()
        for batch in batches:
            if batch.dispatched_ms >= retention.before_ms and weight - freed <= retention.max_bytes:
                break
            end = min(Position(batch.to_due_ms, batch.to_seq), hands.get(batch.lane, ORIGIN))
            whole = self._collect(batch.lane, Position(batch.from_due_ms, batch.from_seq), end)
            if not whole:
                break
            self._batches.append((batch.id,))
            freed += batch.bytes
        self.more |= len(self._batches) == BATCHES_AT_ONCE
        if freed:
            statements.weigh(connection, at_shard=self._shard, at_epoch=self._epoch, more=-freed)
        return whole

    def _collect(self, lane: int, after: Position, upto: Position) -> bool:
        """Take the rows of a range, up to the limit; returns whether that was all of them."""
        room = self._limit - len(self._ids)
        range_ = span(self._shard, lane, after, upto)
        ids = self._statements.ids_in_range(self._connection, **range_, limit=room + 1).scalars().all()
        self._ids.update(ids[:room])
        self.more |= len(ids) > room
        return len(ids) <= room

    def _remove(self) -> None:
        connection, statements = self._connection, self._statements
        gone = [(row_id,) for row_id in sorted(self._ids)]
        of_timer = (statements.forget_timer, statements.forget_payload, statements.forget_outcome)
        for statement in (*of_timer, statements.commanding.unwatch):
            statement.many(connection, gone)
        statements.forget_batch.many(connection, self._batches)
        if not self.more:
            statements.forget_tally(connection, shard=self._shard)


def forget(database: Database, shard: int, epoch: int, retention: Retention, limit: int) -> int:
    """Up to ``limit`` rows, in as many transactions as that takes; returns how many went."""
    gone = 0
    more = True
    while more and gone < limit:
        with database.writing(durable=False) as connection:
            part = Forgetting(connection, database.statements, shard, epoch, min(ROWS_AT_ONCE, limit - gone))
            gone += part.run(retention)
            more = part.more
    return gone
