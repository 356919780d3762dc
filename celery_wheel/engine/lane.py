"""A lane in a holder's memory: where it stands, what is ready, what is still open.

::

          settled     handed over        in memory, complete         only in the store
      ────────────┼────────────────┼───────────────────────────┼─────────────────────────►  position
                 hand             cut      ▲       ▲          edge
                                        ready   open reservation (nothing at or after it may leave)

Promises, each a rule that closes a way to lose or to overtake a message

1. ``cut`` lies before every open reservation, and never passes ``edge``.
2. Memory holds every live row in (cut, edge], except those under an open reservation.
3. A row that comes late gets a position behind the cut, so (…, cut] never changes again.

Lanes are made by the term under its lock; nothing here locks, reads a clock or does I/O.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from celery_wheel.engine.port import Since
from celery_wheel.store.model import HOUR_MS, Position, Row

#: After every row: the edge of a lane whose every row is in memory.
END = Position(2**63 - 1, 2**63 - 1)


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that leave together: exactly the live rows in (from_, to], in order of position."""

    lane: int
    from_: Position
    to: Position
    rows: list[Row]
    bytes: int
    ids: int  #: the sum of the rows' ids


@dataclass(slots=True, eq=False)
class Unsettled:
    """Chunks that the broker has and the store does not know of yet."""

    from_: Position
    to: Position
    count: int = 0
    ids: int = 0  #: the sum of the rows' ids
    bytes: int = 0
    published_ms: int = 0
    tally: dict[tuple[int, str, str], int] = field(default_factory=dict)  #: by the fields of a TallyKey
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    number: int
    hand: Position
    cut: Position
    edge: Position
    in_store: bool = True  #: the lane has its row in the store
    in_broker: bool = True  #: the broker has a hand for it
    ready: list[tuple[int, int, int]] = field(default_factory=list)  #: a heap of (due_ms, seq, row id)
    reservations: dict[int, Position] = field(default_factory=dict)
    in_flight: Chunk | None = None  #: taken; whether the broker has it is not known yet
    unsettled: Unsettled | None = None
    settling: Unsettled | None = None  #: what was unsettled, on its way to the store
    _tokens: int = 0

    def reserve(self, lowest: Position) -> int:
        """Let nothing at or after ``lowest`` leave until the token is given back."""
        self._tokens += 1
        self.reservations[self._tokens] = lowest
        return self._tokens

    def release(self, token: int) -> None:
        del self.reservations[token]

    def floor(self) -> Position:
        """The lowest position that is reserved; END when none is."""
        return min(self.reservations.values(), default=END)

    def push(self, row: Row) -> None:
        heapq.heappush(self.ready, (row.due_ms, row.seq, row.id))

    def take(self, rows: dict[int, Row], now_ms: int, max_count: int, max_bytes: int) -> Chunk | None:
        """The next chunk, moving the cut to its end; None if nothing may leave.

        ``rows`` is the window: an entry of the heap whose row is gone from it, or moved, is stale.
        """
        if self._failed():
            return None
        ready, taken, weight, ids = self.ready, list[Row](), 0, 0
        # The clock may have been stepped back since a row was reaped; and what is reserved lies before.
        end = min((now_ms + 1, 0), self.floor())
        while ready and len(taken) < max_count and weight < max_bytes and ready[0] < end:
            _, seq, row_id = heapq.heappop(ready)
            row = rows.get(row_id)
            if row is None or row.seq != seq:
                continue
            del rows[row_id]
            taken.append(row)
            weight += row.size
            ids += row_id
        if not taken:
            return None
        chunk = Chunk(self.number, self.cut, taken[-1].position, taken, weight, ids)
        self.cut = chunk.to
        self.in_flight = chunk
        return chunk

    def next_due_ms(self, rows: dict[int, Row]) -> int | None:
        """When the first ready row may leave; None when none is ready, or it waits for the store."""
        if self._failed():
            return None
        while self.ready:
            due_ms, seq, row_id = self.ready[0]
            row = rows.get(row_id)
            if row is not None and row.seq == seq:
                return due_ms if (due_ms, seq) < self.floor() else None
            heapq.heappop(self.ready)
        return None

    def since(self, chunk: Chunk) -> Since:
        """What the broker has of this lane, once it has the chunk, and the store may not know of."""
        rows, ids = len(chunk.rows), chunk.ids
        for done in (self.settling, self.unsettled):
            if done is not None:
                rows += done.count + len(done.failed)
                ids += done.ids
        return Since(self.hand, rows, ids)

    def _failed(self) -> bool:
        """The broker remembers only what its last chunk failed: the store has to know before the next one."""
        return any(done is not None and done.failed for done in (self.settling, self.unsettled))

    def confirm(self, chunk: Chunk, failed: dict[int, str], published_ms: int) -> None:
        """The broker has the chunk: count it as unsettled."""
        self.in_flight = None
        if self.unsettled is None:
            self.unsettled = Unsettled(chunk.from_, chunk.to)
        done = self.unsettled
        done.to = chunk.to
        done.published_ms = published_ms
        done.count += len(chunk.rows) - len(failed)
        done.failed.update(failed)
        done.bytes += chunk.bytes
        done.ids += chunk.ids
        tally = done.tally
        for row in chunk.rows:
            key = row.due_ms // HOUR_MS, row.queue or row.routing_key, row.task
            tally[key] = tally.get(key, 0) - 1
