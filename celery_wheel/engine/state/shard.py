"""A shard's state: one holder's memory of one shard in one epoch, from the adoption until memory is in doubt.

::

    acquire epoch ─► adopt ─► ShardState ── ingest ────┐
                               ▲  lanes, window,       ├── all touch it under its lock, in short sections
                               │  gates, tombstones    ├── without I/O; between the sections each makes
                               │          dispatch ────┤   one call to the store or the broker
                               │          prefetch ────┘
                               └── any doubt: the state ends, its memory is dropped, the shard is adopted anew
                                   under a new epoch, and calls still under way are fenced

Sequence numbers are given here and nowhere else; each position is used inside a reservation of its lane (see ``lane``
and ``work``).

When due time goes back (see ``due_clock``), the main lane's watermark may be ahead of it. A late row is placed after
the watermark, so new rows would wait until due time has caught up. They go to another lane instead, whose watermark is
not ahead of due time, and are published from there at their own eta. The order holds: they are all due before the rows
that remain in the lane ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from celery_wheel.engine.state.gates import EVERYTHING, Gates, Place, Router
from celery_wheel.engine.state.lane import InFlight, Lane
from celery_wheel.engine.state.lanes import Lanes
from celery_wheel.engine.state.stamps import RevokedStamps
from celery_wheel.engine.state.tombstones import TombstoneFilter
from celery_wheel.engine.state.window import Window
from celery_wheel.errors import EpochOver
from celery_wheel.store.model import SHARD_BITS, Position

#: A lease counts as over this part of it before it is: the store's clock may run faster than this one.
LEASE_MARGIN = 0.1


class ShardState:
    def __init__(
        self,
        shard: int,
        epoch: int,
        seq: int,
        lanes: Sequence[Lane],
        window: Window,
        *,
        gates: Gates | None = None,
        tombstones: TombstoneFilter | None = None,
        stamps: RevokedStamps | None = None,
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self._count = seq >> SHARD_BITS
        self.lanes = Lanes(lanes, self.next_seq)
        self.window = window
        self.gates = gates or Gates()
        self.tombstones = tombstones or TombstoneFilter()
        self.stamps = RevokedStamps() if stamps is None else stamps
        self.lock = threading.RLock()
        self.ended: str | None = None
        self.lease_until_ms = 0  #: monotonic: from this instant on another holder may have the shard
        self.lease_margin_ms = 0
        self.history = threading.Lock()  #: held while settled or resting rows are forgotten or brought back
        self.asked_ms: dict[int, int] = {}  #: inbox item of a command that waits → monotonic: when it was first read
        self.attempted = 0  #: number of the last chunk that was sent to the broker in this epoch
        self.confirmed = 0  #: number of the last chunk that the broker certainly has

    # -- life ------------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hold the lock; raises EpochOver when the state has ended."""
        with self.lock:
            if self.ended is not None:
                raise EpochOver(self.ended)
            yield

    def end(self, reason: str) -> None:
        with self.lock:
            self.ended = self.ended or reason

    def renewed(self, lease_until_ms: int, lease_ms: int) -> None:
        """Note that the store has renewed the lease until a monotonic instant."""
        self.lease_margin_ms = int(lease_ms * LEASE_MARGIN)
        self.lease_until_ms = lease_until_ms

    def is_held(self, monotonic_ms: int) -> bool:
        """Whether no other holder can have the shard yet: the lease is not over, with a margin."""
        return self.ended is None and monotonic_ms < self.lease_until_ms - self.lease_margin_ms

    # -- positions -------------------------------------------------------------------------------

    def next_seq(self) -> int:
        self._count += 1
        return self._count << SHARD_BITS | self.shard

    @property
    def seq(self) -> int:
        """The highest seq given."""
        return self._count << SHARD_BITS | self.shard

    def may_have_left(self, lane: int, position: Position) -> bool:
        """Whether a row was published or may have been.

        A lane that is not in memory is closed, and all its rows were published. (Or another holder has opened the lane;
        then no change of this epoch is committed any more.)
        """
        found = self.lanes.get(lane)
        return found is None or found.may_have_left(position)

    # -- dispatch --------------------------------------------------------------------------------

    def begin_round(self, now_ms: int, monotonic_ms: int) -> list[Lane]:
        """Make the rows that are due ready; returns the awake lanes, the earliest ready row first."""
        self.window.reap(self.lanes, now_ms)
        return self.lanes.begin_round(self.window, now_ms, monotonic_ms)

    def take(
        self, lane: Lane, now_ms: int, monotonic_ms: int, max_count: int, max_bytes: int, ahead_ms: int = 0
    ) -> InFlight | None:
        """Return the chunk to publish now: the chunk in flight, else the next rows that may pass the gates.

        Args:
            ahead_ms: rows that are due within this time count as due.
        """
        if lane.in_flight is not None:
            return lane.in_flight
        gates, route = self.gates, None
        room = lane.at_once(max_count)
        if gates or not self.lanes.are_alone:
            busy = self.lanes.busy
            room = min(room, self._room(lane, monotonic_ms, max_count))
            if gates or busy:
                route = Router(gates, lane.place, busy, monotonic_ms)
        flight = lane.take(self.window.rows, now_ms, room, max_bytes, route, ahead_ms)
        if flight is not None:
            elsewhere = [*flight.missed, *(row for row, _ in flight.diverted)]
            weight = flight.bytes + sum(row.size for row in elsewhere)
            self.window.left(lane.number, len(flight.rows) + len(elsewhere), weight)
            for place in _passed(lane):
                gates.spend(place, len(flight.rows), monotonic_ms)
        elif route is not None and route.again_ms > monotonic_ms:
            lane.retry_at_ms = route.again_ms
        return flight

    def _room(self, lane: Lane, monotonic_ms: int, max_count: int) -> int:
        """Return how many rows of a lane may be published now; if none, set when the lane is tried again."""
        room = max_count
        for place in _passed(lane):
            if place in self.gates.closed:
                return 0
            free, again_ms = self.gates.room(place, monotonic_ms)
            if free == 0:
                lane.retry_at_ms = again_ms
            room = room if free is None else min(room, free)
        return room

    def next_due_ms(self, monotonic_ms: int | None = None) -> int | None:
        """Return when the next row is due; None where no row is in memory or none may be tried at ``monotonic_ms``."""
        closed = self.gates.closed
        open_ = [lane for lane in self.lanes if closed.isdisjoint(_passed(lane))]
        lanes = [lane for lane in open_ if monotonic_ms is None or lane.retry_at_ms <= monotonic_ms]
        due = [lane.next_due_ms(self.window.rows) for lane in lanes]
        due.append(self.window.wheel.next_expiration_ms())
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def retries_ms(self, monotonic_ms: int) -> list[int]:
        """Return how long each lane waits to be tried again; 0 or less for a chunk in flight that may go now."""
        return [
            wait_ms
            for lane in self.lanes
            if (wait_ms := lane.retry_at_ms - monotonic_ms) > 0 or lane.in_flight is not None
        ]


def _passed(lane: Lane) -> list[Place]:
    """Return the gates that all rows of a lane have to pass."""
    return [EVERYTHING] if lane.place is None or lane.refusing else [EVERYTHING, lane.place]
