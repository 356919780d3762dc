"""A lane in a holder's memory: where it stands, what is ready, what is still open.

::

          settled     handed over        in memory, complete         only in the store
      ────────────┼────────────────┼───────────────────────────┼─────────────────────────►  position
                 offset             watermark      ▲       ▲          edge
                                        ready   open reservation (nothing at or after it may leave)

Promises, each a rule that closes a way to lose or to overtake a message

1. ``watermark`` lies before every open reservation, and never passes ``edge``.
2. Memory holds every live row in (watermark, edge], except those under an open reservation.
3. A row that comes late gets a position behind the watermark, so (…, watermark] never changes again.

A lane with a target is for what cannot leave at once: that of a gate (see ``gates``), which is closed or lets through
so many in a time; or that of a destination that did not take everything. What is refused goes there in order, what
becomes due for it meanwhile follows, and the lane tries again, later each time. Its chunk stays in flight until all of
it has been taken, so nothing overtakes; the other destinations leave from their lane as ever.

Where the broker keeps no offset, (offset, watermark] as stored is in doubt at adoption: ``doubt`` is its end, ``sent``
how much of it has been published again.

Lanes are made by the term under its lock; nothing here locks, reads a clock or does I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from celery_wheel.engine.gates import STAY, Place
from celery_wheel.engine.port import Since
from celery_wheel.store.model import HOUR_MS, ORIGIN, Position, Row

#: After every row: the edge of a lane whose every row is in memory.
END = Position(2**63 - 1, 2**63 - 1)

#: A destination that refuses is tried again after this time, twice as long after each time it refuses.
RETRY_FIRST_MS, RETRY_MAX_MS = 50, 2_000

#: It gets one at a time until it has taken so many: of several at once, a later one may be taken after an earlier one
#: was refused.
PROVEN_AFTER = 100


#: Where a row is to go, None to the broker.
Route = Callable[[Row], Place | None]


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that leave together: exactly the live rows in (from_, to], in order of position."""

    lane: int
    from_: Position
    to: Position
    rows: list[Row]
    bytes: int
    ids: int  #: the sum of the rows' ids
    diverted: list[tuple[Row, Place]] = field(default_factory=list)  #: were in the range, and go to another lane first
    missed: list[Row] = field(default_factory=list)  #: were found later than they may be, and are set aside first
    taken_ms: int = 0  #: by the wall clock
    announced: bool = False  #: the store knows how far it goes
    redelivered: bool = False  #: rows of it may be in their queues already
    taken: set[int] = field(default_factory=set)  #: ids of the rows about which nothing more is to be done
    failed: dict[int, str] = field(default_factory=dict)  #: those of them that cannot get to a queue, and why

    def left(self) -> list[Row]:
        """The rows still to be published."""
        return [row for row in self.rows if row.id not in self.taken] if self.taken else self.rows


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
    refused: list[Row] = field(default_factory=list)  #: to go to the lane of their target
    redelivered: bool = False  #: they may be in their queue already


@dataclass(slots=True, eq=False)
class Lane:
    number: int
    offset: Position
    watermark: Position
    edge: Position
    in_store: bool = True  #: the lane has its row in the store
    in_broker: bool = True  #: the broker has an offset for it
    ready: list[tuple[int, int, int]] = field(default_factory=list)  #: a heap of (due_ms, seq, row id)
    reservations: dict[int, Position] = field(default_factory=dict)
    in_flight: Chunk | None = None  #: taken; whether the broker has it is not known yet
    unsettled: Unsettled | None = None
    settling: Unsettled | None = None  #: what was unsettled, on its way to the store
    target: str | None = None  #: what leaves from here: tasks of one destination, or of one gate
    scope: str | None = None  #: of a gate: queue or task
    redelivered: bool = False  #: rows that wait in it may be in their queue already
    top_ms: int = 0  #: nothing that was put into a lane with a target is due later, as far as this holder knows
    told: Position = ORIGIN  #: what the broker remembers of this lane's rows begins here
    sent: Position = ORIGIN  #: up to here the broker has what was in doubt
    doubt: Position = ORIGIN  #: up to here it was; not after ``sent``: there is none
    retry_at_ms: int = 0  #: monotonic: nothing is tried before
    retry_ms: int = RETRY_FIRST_MS
    proven: int = 0  #: how many rows its destination has taken since it last refused one
    _tokens: int = 0

    @property
    def place(self) -> Place | None:
        """What it is for; None: everything."""
        return None if self.target is None else (self.scope, self.target)

    @property
    def refusing(self) -> bool:
        """Whether it is for a destination that did not take everything."""
        return self.target is not None and self.scope is None

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

    def take(
        self,
        rows: dict[int, Row],
        now_ms: int,
        max_count: int,
        max_bytes: int,
        route: Route | None = None,
        ahead_ms: int = 0,
    ) -> Chunk | None:
        """The next chunk, moving the watermark to its end; None if nothing may leave.

        ``rows`` is the window: an entry of the heap whose row is gone from it, or moved, is stale.
        ``route`` says of each whether it is to leave from another lane. Due is what is due in ``ahead_ms``, too.
        """
        if self._failed():
            return None
        ready, taken, diverted, missed = self.ready, list[Row](), list[tuple[Row, Place]](), list[Row]()
        weight, ids, last = 0, 0, None
        # The clock may have been stepped back since a row was reaped; and what is reserved lies before.
        end = min((now_ms + ahead_ms + 1, 0), self.floor())
        left = max_count
        while ready and left > 0 and weight < max_bytes and ready[0] < end:
            _, seq, row_id = heapq.heappop(ready)
            row = rows.get(row_id)
            if row is None or row.seq != seq:
                continue
            late = row.misfire_ms is not None and now_ms - row.eta_ms > row.misfire_ms
            place = None if late or route is None else route(row)
            if place is STAY:
                self.push(row)
                break
            last = rows.pop(row_id)
            left -= 1
            weight += row.size
            if late:
                missed.append(row)
            elif place is not None:
                diverted.append((row, place))
            else:
                taken.append(row)
                ids += row_id
        if last is None:
            return None
        if diverted or missed:
            weight = sum([row.size for row in taken])
        chunk = Chunk(self.number, self.watermark, last.position, taken, weight, ids, diverted, missed, now_ms)
        self.watermark = chunk.to
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
        self.told = self.offset
        return Since(self.offset, rows, ids)

    @property
    def closed(self) -> Position:
        """Nobody asks for the rows up to here any more: they are settled, and in no range that the broker remembers."""
        open_ = self.in_flight or self.unsettled or self.settling
        return min(self.offset, self.told) if open_ else self.offset

    def _failed(self) -> bool:
        """The broker remembers only what its last chunk failed: the store has to know before the next one."""
        return any(done is not None and (done.failed or done.refused) for done in (self.settling, self.unsettled))

    def doubtful(self, rows: list[Row], to: Position) -> Chunk:
        """What the former holder may have sent, or not, up to ``to``."""
        weight, ids = sum(row.size for row in rows), sum(row.id for row in rows)
        self.in_flight = Chunk(self.number, self.sent, to, rows, weight, ids, announced=True, redelivered=True)
        return self.in_flight

    def refuse(self, chunk: Chunk, refused: Collection[int], now_ms: int) -> None:
        """Its queue did not take all of the chunk: the rest of it is tried again, and nothing goes before it."""
        chunk.taken.update(row.id for row in chunk.left() if row.id not in refused)
        self.proven = 0
        self.retry_at_ms = now_ms + self.retry_ms
        self.retry_ms = min(RETRY_MAX_MS, 2 * self.retry_ms)

    def at_once(self, max_count: int) -> int:
        """How many rows may go in one chunk."""
        return max_count if not self.refusing or self.proven >= PROVEN_AFTER else 1

    def busy(self, rows: dict[int, Row], now_ms: int) -> bool:
        """Whether rows that are due wait in this lane, in memory or, for all that is known, in the store."""
        if (
            self.in_flight
            or self.reservations
            or self.edge.due_ms <= now_ms
            or self.sent < self.doubt
            or self._failed()
        ):
            return True
        return self.next_due_ms(rows) is not None

    def confirm(self, chunk: Chunk, published_ms: int, refused: Collection[int] = ()) -> None:
        """The broker has the chunk, but for what failed or is refused: count it as unsettled."""
        failed = chunk.failed
        self.in_flight = None
        self.retry_ms = RETRY_FIRST_MS
        self.proven += len(chunk.rows)
        self.sent = max(self.sent, chunk.to)
        if self.unsettled is None:
            self.unsettled = Unsettled(chunk.from_, chunk.to)
        done = self.unsettled
        done.to = chunk.to
        done.published_ms = published_ms
        done.count += len(chunk.rows) - len(failed) - len(refused)
        done.failed.update(failed)
        done.bytes += chunk.bytes
        done.ids += chunk.ids
        rows = chunk.rows
        if refused:
            done.refused += [row for row in rows if row.id in refused]
            done.redelivered = chunk.redelivered
            done.bytes -= sum(row.size for row in done.refused)
            rows = [row for row in rows if row.id not in refused]
        tally = done.tally
        for row in rows:
            key = row.due_ms // HOUR_MS, row.queue or row.routing_key, row.task
            tally[key] = tally.get(key, 0) - 1
