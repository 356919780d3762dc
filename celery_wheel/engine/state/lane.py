"""A lane in a holder's memory: it owns the lane's offset, watermark, ready rows, chunk and settlement.

docs/architecture.md draws the positions and the states. Invariants, each checked where it could break (InvariantBroken)

1. ``offset <= watermark``; the watermark lies before every open reservation and never passes the horizon.
2. Memory holds every live row in (watermark, horizon], except rows under an open reservation.
3. A late row gets a position after the watermark, so (…, watermark] never changes again.
4. At most one chunk is in flight and one settlement under way: of two, the later answer would move the offset back.

A lane with a place is for rows of a gate, or of a destination that refused rows: later rows for that destination follow
them in order, and the lane tries again, later each time. ``Lanes`` finds a row's lane::

    0            None                  the main lane: every row that need not wait in another lane; it never sleeps
    1 536        ("queue", "mail")     rows for queue mail, paused or over its rate; 1 536 is the seq at its opening
    2 048        (None, "reports")     rows that queue reports has refused, and later rows for it
    2 560        None                  new rows while due time is behind the main lane's watermark; replays; a herd

A round visits awake lanes only. A lane wakes with the first reservation in it; a row enters through one only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from celery_wheel.engine.port import RangeChecksum
from celery_wheel.engine.state.gates import STAY, Place
from celery_wheel.errors import InvariantBroken
from celery_wheel.store.model import HOUR_MS, ORIGIN, LaneState, Position, Route, Row
from celery_wheel.timing import Backoff

#: The number of the main lane, from which every row is published that need not wait in another lane.
MAIN = 0

#: After every row: the horizon of a lane whose every row is in memory.
END = Position(2**63 - 1, 2**63 - 1)

#: A destination that refuses rows is tried again after this time, which doubles with each refusal.
RETRY_FIRST_MS, RETRY_MAX_MS = 50, 2_000

#: A refusing destination gets one row at a time until it has accepted this many: of several rows at once, it may accept
#: a later row after it has refused an earlier row.
PROVEN_AFTER = 100

#: Returns where a row goes; None is the broker.
PlaceOf = Callable[[Row], Place | None]

#: Returns the reason why rows of a route may not be published; an empty text where they may.
Refusal = Callable[[Route], str]


class Most(NamedTuple):
    """The most that one chunk takes: so many rows, and no more after so many bytes; those due within ``ahead_ms``."""

    max_count: int
    max_bytes: int
    ahead_ms: int = 0
    refusal: Refusal | None = None


@dataclass(slots=True, eq=False)
class InFlight:
    """A chunk: the live rows in (after, upto] in order of position, less those diverted, expired or rejected."""

    lane: int
    after: Position
    upto: Position
    rows: list[Row] = field(default_factory=list)
    bytes: int = 0
    ids: int = 0  #: the sum of the rows' ids
    diverted: list[tuple[Row, Place]] = field(default_factory=list)  #: rows of the range that move to another lane
    misfired: list[Row] = field(default_factory=list)  #: rows of the range that are later than their misfire option
    refused: list[tuple[Row, str]] = field(default_factory=list)  #: rows of the range with a destination of no task
    taken_ms: int = 0  #: due time; 0 for rows in doubt
    prepared: bool = False  #: the store has the end of the chunk, or learns it in a commit that has begun
    redelivered: bool = False  #: rows of the chunk may be in their queues already
    first_number: int = 0  #: number of the first try to publish the chunk; 0 before that
    settled: Position = ORIGIN  #: the lane's offset at the last try: the start of the range of the checksum
    done: set[int] = field(default_factory=set)  #: ids of the rows that need no further try
    failed: dict[int, str] = field(default_factory=dict)  #: id → reason, of rows that cannot reach a queue

    def unconfirmed(self) -> list[Row]:
        """Return the rows that are still to be published."""
        return [row for row in self.rows if row.id not in self.done] if self.done else self.rows

    @property
    def changes_store(self) -> bool:
        """Whether rows of the range have to move, or get an outcome, in the store before the chunk is published."""
        return bool(self.diverted or self.misfired or self.refused)

    def unpublished(self) -> list[Row]:
        """Return the rows of the range that are not published from here."""
        return [*self.misfired, *(row for row, _ in chain(self.diverted, self.refused))]


@dataclass(slots=True, eq=False)
class Unsettled:
    """Chunks that the broker has confirmed and the store has not recorded yet."""

    after: Position
    upto: Position
    count: int = 0
    ids: int = 0  #: the sum of the rows' ids
    bytes: int = 0
    published_ms: int = 0
    tally: dict[tuple[int, Route], int] = field(default_factory=dict)  #: by hour and route
    failed: dict[int, str] = field(default_factory=dict)
    refused: list[Row] = field(default_factory=list)  #: rows that move to the lane of their destination
    runs: dict[int, tuple[str, int]] = field(default_factory=dict)  #: row id → group and until_ms, of limited groups
    rates: dict[str, int] = field(default_factory=dict)  #: group → when its rate is as unused, in due time
    redelivered: bool = False  #: refused rows may be in their queue already


@dataclass(slots=True, eq=False)
class Lane:
    number: int
    offset: Position = ORIGIN
    watermark: Position = ORIGIN
    horizon: Position = END
    place: Place | None = None  #: the gate or destination that its rows wait for; None: any row
    redelivered: bool = False  #: rows that wait in it may be in their queue already
    in_store: bool = False  #: the lane has its row in the store
    in_broker: bool = False  #: the broker has an offset for it
    ready: list[tuple[int, int, int]] = field(default_factory=list)  #: a heap of (due_ms, seq, row id)
    in_flight: InFlight | None = None  #: the chunk that was taken and that the broker has not confirmed yet
    unsettled: Unsettled | None = None
    settling: Unsettled | None = None  #: the part that is being committed to the store
    checksum_after: Position = ORIGIN  #: start of the range of the checksum that the broker has
    in_doubt_after: Position = ORIGIN  #: rows in (in_doubt_after, in_doubt_upto] are in doubt
    in_doubt_upto: Position = ORIGIN
    last_due_ms: int = 0  #: of a lane with a place: latest due time of its rows, as far as this holder knows
    retry_at_ms: int = 0  #: monotonic: no chunk is taken before
    idle_since_ms: int | None = None  #: monotonic; None while the lane is awake
    _backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_FIRST_MS / 1_000, RETRY_MAX_MS / 1_000))
    _proven: int = 0  #: number of rows that its destination has accepted since it last refused a row
    _reservations: dict[int, Position] = field(default_factory=dict)
    _tokens: int = 0

    @property
    def refusing(self) -> bool:
        """Whether the lane is for a destination that refused rows."""
        return self.place is not None and self.place[0] is None

    def state(self, offset: Position | None = None) -> LaneState:
        """Return the lane's row for the store, once the lane is settled up to ``offset``.

        The store does not learn the end of a chunk before the commit that prepares it: rows of the chunk that move or
        expire are still in its range, and the next holder would publish them as rows in doubt.
        """
        scope, target = self.place or (None, None)
        offset = self.offset if offset is None else offset
        flight = self.in_flight
        watermark = self.watermark if flight is None or flight.prepared else flight.after
        return LaneState(self.number, offset, max(offset, watermark), target, self.redelivered, scope)

    # -- reserve -----------------------------------------------------------------------------------

    def reserve(self, lowest: Position) -> int:
        """Keep rows at or after ``lowest`` from being taken until the returned token is released."""
        if lowest <= self.watermark:
            raise InvariantBroken(f"{lowest} is to be reserved at or before the watermark {self.watermark}")
        self._tokens += 1
        self._reservations[self._tokens] = lowest
        return self._tokens

    def release(self, token: int) -> None:
        del self._reservations[token]

    def floor(self) -> Position:
        """Return the lowest reserved position; END where none is reserved."""
        return min(self._reservations.values(), default=END)

    def late_due_ms(self, eta_ms: int) -> int:
        """Return the due time of a row with this eta: with a new seq, its position is after the watermark."""
        return max(eta_ms, self.watermark.due_ms)

    def may_be_published(self, position: Position) -> bool:
        """Whether a row at this position was published, or may have been."""
        return position <= self.watermark or self.redelivered

    def push(self, row: Row) -> None:
        """Add a row of the window to the ready rows."""
        heapq.heappush(self.ready, (row.due_ms, row.seq, row.id))

    # -- take --------------------------------------------------------------------------------------

    def take(self, rows: dict[int, Row], now_ms: int, most: Most, route: PlaceOf | None = None) -> InFlight | None:
        """Take the next chunk; the watermark moves to its end. None if no row may be taken.

        ``rows`` is the window; a heap entry whose row is gone from it, or has another seq, is stale.
        """
        if self.in_flight is not None:
            raise InvariantBroken(f"lane {self.number} has another chunk in flight")
        if self._waits_to_be_settled():
            return None
        after = self.watermark
        flight = InFlight(self.number, after, after, taken_ms=now_ms, redelivered=self.redelivered)
        # Due time may have gone back since a row was reaped, so its due time is compared once more. No reserved
        # position is passed.
        end = min((now_ms + most.ahead_ms + 1, 0), self.floor())
        if not self._fill(flight, rows, end, most, route):
            return None
        if not after < flight.upto <= self.horizon:
            raise InvariantBroken(
                f"a chunk of lane {self.number} ends at {flight.upto}, which is not in memory as a whole"
            )
        self.in_flight, self.watermark = flight, flight.upto
        return flight

    def _fill(
        self, flight: InFlight, rows: dict[int, Row], end: tuple[int, int], most: Most, route: PlaceOf | None
    ) -> bool:
        """Move ready rows before ``end`` from the window into a chunk that ends with the last; False if none may go."""
        ready, now_ms, last = self.ready, flight.taken_ms, None
        left, max_bytes, _, refusal = most
        weight, ids = 0, 0
        while ready and left > 0 and weight < max_bytes and ready[0] < end:
            _, seq, row_id = heapq.heappop(ready)
            row = rows.get(row_id)
            if row is None or row.seq != seq:
                continue
            late = row.misfire_ms is not None and now_ms - row.eta_ms > row.misfire_ms
            refused = "" if late or refusal is None else refusal(row.route)
            place = None if late or refused or route is None else route(row)
            if place is STAY:
                self.push(row)
                break
            last = rows.pop(row_id)
            left -= 1
            weight += row.size
            if late:
                flight.misfired.append(row)
            elif refused:
                flight.refused.append((row, refused))
            elif place is not None:
                flight.diverted.append((row, place))
            else:
                flight.rows.append(row)
                ids += row_id
        if last is None:
            return False
        flight.upto, flight.ids = last.position, ids
        flight.bytes = sum([row.size for row in flight.rows]) if flight.changes_store else weight
        return True

    def take_doubtful(self, rows: list[Row], upto: Position, refusal: Refusal | None = None) -> None:
        """Take the rows in doubt up to ``upto``: the former holder may have published them."""
        weight, ids, after = sum(row.size for row in rows), sum(row.id for row in rows), self.in_doubt_after
        self.in_flight = flight = InFlight(self.number, after, upto, rows, weight, ids, prepared=True, redelivered=True)
        if refusal is not None:  # the broker keeps no offset, so such a row may still fail by what is known here
            flight.failed = {row.id: why for row in rows if (why := refusal(row.route))}
            flight.done = set(flight.failed)

    def checksum(self, flight: InFlight) -> RangeChecksum:
        """Return the checksum that the broker keeps with its offset: of the unsettled rows, this chunk included."""
        rows, ids = len(flight.rows), flight.ids
        for done in (self.settling, self.unsettled):
            if done is not None:
                rows += done.count + len(done.failed)
                ids += done.ids
        return RangeChecksum(flight.settled, rows, ids)

    def chunk_limit(self, max_count: int) -> int:
        """Return how many rows one chunk may have."""
        return max_count if not self.refusing or self._proven >= PROVEN_AFTER else 1

    # -- confirm, refuse ---------------------------------------------------------------------------

    def confirm(self, flight: InFlight, published_ms: int, refused: Collection[int] = ()) -> None:
        """Count a chunk that the broker has confirmed as unsettled; its failed and refused rows are noted there."""
        self.in_flight = None
        self.checksum_after = flight.settled
        self._backoff.succeeded()
        self._proven += len(flight.rows)
        self.in_doubt_after = max(self.in_doubt_after, flight.upto)
        if self.unsettled is None:
            self.unsettled = Unsettled(flight.after, flight.upto)
        done = self.unsettled
        done.upto = flight.upto
        done.published_ms = published_ms
        done.count += len(flight.rows) - len(flight.failed) - len(refused)
        done.failed.update(flight.failed)
        done.bytes += flight.bytes
        done.ids += flight.ids
        rows = flight.rows
        if refused:
            done.refused += [row for row in rows if row.id in refused]
            done.redelivered = flight.redelivered
            done.bytes -= sum(row.size for row in done.refused)
            rows = [row for row in rows if row.id not in refused]
        tally = done.tally
        for row in rows:
            key = row.due_ms // HOUR_MS, row.route
            tally[key] = tally.get(key, 0) - 1

    def refuse(self, flight: InFlight, refused: Collection[int], now_ms: int) -> None:
        """Keep the refused rows of a chunk in flight: they are published again before any other row of the lane."""
        flight.done.update(row.id for row in flight.unconfirmed() if row.id not in refused)
        self._proven = 0
        self.retry_at_ms = now_ms + round(self._backoff.failed() * 1_000)

    def distrust(self) -> None:
        """Publish one row at a time again: the destination has refused a row."""
        self._proven = 0

    # -- settle ------------------------------------------------------------------------------------

    def leaving(self) -> Iterator[Row]:
        """Yield the rows that the next settlement moves to other lanes."""
        if self.in_flight is not None:
            yield from (row for row, _ in self.in_flight.diverted)
        for done in (self.unsettled, self.settling):
            if done is not None:
                yield from done.refused

    def begin_settling(self) -> Unsettled | None:
        """Return the unsettled chunks to commit; None where there are none, or a settlement is under way."""
        if self.settling is not None or self.unsettled is None:
            return None
        self.unsettled, self.settling = None, self.unsettled
        return self.settling

    def hold_settling(self) -> bool:
        """Keep settlements out while the lane's row is written as it is; False where one is under way."""
        if self.settling is not None:
            return False
        self.settling = Unsettled(self.offset, self.offset)
        return True

    def settled(self, offset: Position) -> None:
        """Move the offset: the settlement is committed."""
        if not self.offset <= offset <= self.watermark:
            raise InvariantBroken(f"the offset of lane {self.number} cannot go from {self.offset} to {offset}")
        self.offset, self.settling = offset, None

    @property
    def replayable(self) -> Position:
        """Return up to where rows may be replayed or forgotten: settled, and in no range that an adoption compares."""
        open_ = self.in_flight or self.unsettled or self.settling
        return min(self.offset, self.checksum_after) if open_ else self.offset

    def _waits_to_be_settled(self) -> bool:
        """Whether failed or refused rows are unsettled: the broker remembers those of its last chunk only."""
        return any(done is not None and (done.failed or done.refused) for done in (self.settling, self.unsettled))

    # -- the next ready row ------------------------------------------------------------------------

    def next_due_ms(self, rows: Mapping[int, Row]) -> int | None:
        """Return when the first ready row is due; None where none is ready, or it has to wait for the store."""
        if self._waits_to_be_settled():
            return None
        while self.ready:
            due_ms, seq, row_id = self.ready[0]
            row = rows.get(row_id)
            if row is not None and row.seq == seq:
                return due_ms if (due_ms, seq) < self.floor() else None
            heapq.heappop(self.ready)
        return None

    @property
    def is_in_doubt(self) -> bool:
        """Whether rows may have been published by a former holder and have not been published again."""
        return self.in_doubt_after < self.in_doubt_upto

    def has_open(self) -> bool:
        """Whether anything is under way: a chunk, a reservation, rows in doubt, or failed or refused rows."""
        return bool(self.in_flight or self._reservations or self.is_in_doubt or self._waits_to_be_settled())

    def is_idle(self) -> bool:
        """Whether nothing is under way and no row is only in the store."""
        return not self.has_open() and self.horizon == END and self.unsettled is None and self.settling is None


class Lanes:
    """The lanes of one shard's state; ``next_number`` returns the number for a lane that is opened."""

    def __init__(self, lanes: Iterable[Lane], next_number: Callable[[], int]) -> None:
        self.all = {lane.number: lane for lane in lanes}
        self.awake = dict(self.all)
        self._next_number = next_number
        self._of_place = {lane.place: lane for lane in self.all.values() if lane.place is not None}
        self.busy: set[Place] = set()  #: places that may have rows waiting, as of this round

    def __getitem__(self, number: int) -> Lane:
        return self.all[number]

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over a copy of the awake lanes, since lanes may open meanwhile."""
        return iter(list(self.awake.values()))

    def get(self, number: int) -> Lane | None:
        return self.all.get(number)

    @property
    def are_alone(self) -> bool:
        """Whether only the main lane has anything to do."""
        return len(self.awake) == 1 and MAIN in self.awake

    def for_eta(self, eta_ms: int, now_ms: int, redelivered: bool = False, apart: bool = False) -> Lane:
        """Return the lane in which a new row is due at its own eta: the main lane, unless due time is behind it, the
        row may be in its queue already, or it goes ``apart``: one of many due at once, behind which no other waits."""
        main = self.all[MAIN]
        if main.watermark.due_ms <= max(eta_ms, now_ms) and not redelivered and not apart:
            return main
        for lane in self.all.values():
            serves = lane.place is None and lane.redelivered == redelivered and not (apart and lane is main)
            if serves and lane.watermark.due_ms <= max(eta_ms, now_ms):
                return lane
        return self._open(None, redelivered)

    def for_place(self, place: Place) -> Lane:
        """Return the lane in which rows wait for a gate or for a destination that refused rows."""
        return self._of_place.get(place) or self._open(place)

    def _open(self, place: Place | None, redelivered: bool = False) -> Lane:
        lane = Lane(self._next_number(), place=place, redelivered=redelivered)
        self.all[lane.number] = lane
        if place is not None:
            self._of_place[place] = lane
        return lane

    def wake(self, lane: Lane) -> None:
        """Wake a lane: a row is about to enter it."""
        self.awake[lane.number] = lane
        lane.idle_since_ms = None
        if lane.place is not None:
            self.busy.add(lane.place)

    def fall_asleep(self, lane: Lane, monotonic_ms: int) -> None:
        del self.awake[lane.number]
        lane.idle_since_ms = monotonic_ms

    def asleep_since(self, before_ms: int) -> list[tuple[Lane, int]]:
        """Return the lanes that fell asleep at or before a monotonic instant, each with the instant at which it did."""
        return [
            (lane, lane.idle_since_ms)
            for lane in self.all.values()
            if lane.idle_since_ms is not None and lane.idle_since_ms <= before_ms
        ]

    def close(self, lane: Lane, since_ms: int) -> bool:
        """Forget a lane; returns False where it woke after ``since_ms``. Later rows of its place get a new lane."""
        if lane.idle_since_ms != since_ms:
            return False
        del self.all[lane.number]
        if lane.place is not None:
            del self._of_place[lane.place]
        return True
