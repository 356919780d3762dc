"""A shard's state: one holder's memory of one shard in one epoch, from the adoption until memory is in doubt.

All activities use it under its lock, in short sections without I/O. Only this class assigns sequence numbers:
``counter << SHARD_BITS | shard``. A position is used only inside a reservation of its lane (see ``lane``).

When due time goes back (see ``due_clock``), the main lane's watermark may be ahead of it. A late row is placed after
the watermark, so new rows would wait until due time has caught up. They go to another lane instead, whose watermark is
not ahead of due time, and are published from there at their own eta. The order holds: they are all due before the rows
that remain in the lane ahead.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from celery_wheel.engine.state.agenda import Agenda, FailingSchedules
from celery_wheel.engine.state.gates import EVERYTHING, GateRouter, Gates, Place
from celery_wheel.engine.state.group_figures import GroupFigures
from celery_wheel.engine.state.groups import Groups
from celery_wheel.engine.state.lane import MAIN, InFlight, Lane, Lanes, Most
from celery_wheel.engine.state.tombstones import RevokedStamps, TombstoneFilter
from celery_wheel.engine.state.window import Window
from celery_wheel.errors import EpochEnded
from celery_wheel.store.model import SHARD_BITS, WAITING, Row, is_redelivered
from celery_wheel.store.ports import ForgetPlace


class Mark(NamedTuple):
    """How often rows had moved between lanes when something was read."""

    diversions: int
    releases: int


NO_MARK = Mark(0, 0)


@dataclass(slots=True)
class Lap:
    """A walk over the rows that are to be announced; see ``announce``."""

    after: int = -1  #: the id of the last row that it has reached
    is_incomplete: bool = False  #: rows of it remain
    has_failed: bool = False  #: nothing of its last page was announced
    works_again: bool = False  #: after such a page, a row was announced


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
        groups: Groups | None = None,
        tombstones: TombstoneFilter | None = None,
        stamps: RevokedStamps | None = None,
        adopted_ms: int = 0,
        accepted: int = 0,
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self._count = seq >> SHARD_BITS
        self.lanes = Lanes(lanes, self.next_seq)
        self.window = window
        self.gates = gates or Gates()
        self.groups = Groups() if groups is None else groups
        self.group_figures = GroupFigures(self.groups)
        self.tombstones = tombstones or TombstoneFilter()
        self.stamps = RevokedStamps() if stamps is None else stamps
        self.agenda = Agenda()
        self.failing = FailingSchedules(random.Random(shard))  # noqa: S311  # waits
        self.accepted = accepted  #: messages that the shard has certainly accepted
        self.alone = accepted  #: of these, those that have left the wheel queue: the store alone has them
        self.adopted_ms = adopted_ms  #: due time: what a former holder has released is due by then
        self.lock = threading.RLock()
        self.ended: str | None = None
        self.lease_until_ms = 0  #: monotonic: from this instant on another holder may have the shard
        self.lease_margin_ms = 0
        self.history = threading.Lock()  #: held while settled or retired rows are forgotten, requeued or replayed
        #: Inbox item of a command that waits → monotonic instant at which it was first read.
        self.first_read_at_ms: dict[int, int] = {}
        self.lap = Lap()
        self.groups.join()
        self.diversions = 0  #: units of work applied that moved rows of a chunk to another lane
        self.attempted = 0  #: number of the last chunk that was sent to the broker in this epoch
        self.forgotten: dict[str, ForgetPlace] = {}  #: by the name of a queue or a task with a retention of its own
        self.repacked: int | None = None  #: rows that were read to be encrypted anew; None: nothing is
        self.confirmed = 0  #: number of the last chunk that the broker certainly has

    # -- life ------------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hold the lock; raises EpochEnded when the state has ended."""
        with self.lock:
            if self.ended is not None:
                raise EpochEnded(self.ended)
            yield

    def end(self, reason: str) -> None:
        with self.lock:
            self.ended = self.ended or reason
            self.groups.leave_depths()

    def renewed(self, lease_until_ms: int, lease_ms: int) -> None:
        """Note that the store has renewed the lease until a monotonic instant."""
        self.lease_margin_ms = int(lease_ms * 0.1)  # the store's clock may run faster than this one
        self.lease_until_ms = lease_until_ms

    def is_held(self, monotonic_ms: int) -> bool:
        """Whether no other holder can have the shard yet: the lease is not over, with a margin."""
        return self.ended is None and monotonic_ms < self.lease_until_ms - self.lease_margin_ms

    # -- positions -------------------------------------------------------------------------------

    def next_seq(self) -> int:
        return self.next_seqs(1)

    def next_seqs(self, count: int) -> int:
        """Return the first of ``count`` successive numbers."""
        first = self._count + 1
        self._count += count
        return first << SHARD_BITS | self.shard

    @property
    def seq(self) -> int:
        """The highest seq that was assigned."""
        return self._count << SHARD_BITS | self.shard

    def may_be_published(self, row: Row) -> bool:
        """Whether a row was or may have been published. So were all rows of a closed lane, which is not in memory. (Or
        another holder has opened the lane; then no change of this epoch is committed.)"""
        if row.lane == WAITING:
            return row.line is not None and is_redelivered(row.line)
        found = self.lanes.get(row.lane)
        return found is None or found.may_be_published(row.position)

    def mark(self) -> Mark:
        """Return the mark to be taken before rows are read, for ``may_be_diverted``; the caller holds the lock."""
        return Mark(self.diversions, self.groups.releases)

    def may_be_diverted(self, rows: Iterable[Row], mark: Mark) -> bool:
        """Whether any of some rows has moved to another lane since the mark was taken, or is about to.

        Such a row looks published at the position at which it was read, and is pending; or it looks as if it still
        waited for its group, and is released: the caller reads again later.
        """
        rows, diversions = list(rows), mark.diversions
        waiting = [row.id for row in rows if row.lane == WAITING]
        released, removed = self.groups.may_be_released, self.window.is_being_removed
        if any(removed(row_id) or released(row_id, mark.releases) for row_id in waiting):
            return True
        passed = {row.id for row in rows if self.may_be_published(row)}
        if not passed or self.diversions != diversions:
            return bool(passed)
        return any(row.id in passed for lane in self.lanes for row in lane.leaving())

    # -- dispatch --------------------------------------------------------------------------------

    def begin_round(self, now_ms: int, monotonic_ms: int) -> list[Lane]:
        """Make due rows ready, and put idle lanes to sleep; returns the awake lanes, the earliest ready row first."""
        lanes, window = self.lanes, self.window
        window.reap(lanes, now_ms)
        for lane in lanes:
            if lane.number != MAIN and lane.is_idle() and not window.has(lane):
                lanes.fall_asleep(lane, monotonic_ms)
        lanes.busy = {lane.place for lane in lanes if lane.place and window.has_more(lane, now_ms)}
        ready = {lane.number: lane.next_due_ms(window.rows) for lane in lanes}
        return sorted(lanes, key=lambda lane: (ready[lane.number] is None, ready[lane.number] or 0, lane.number))

    def take(self, lane: Lane, now_ms: int, monotonic_ms: int, most: Most) -> InFlight | None:
        """Return the chunk to publish now: the chunk in flight, else the next rows that may pass the gates."""
        if lane.in_flight is not None:
            return lane.in_flight
        gates, route = self.gates, None
        room = lane.chunk_limit(most.max_count)
        groups = self.groups if self.groups or gates.closed_groups else None
        if gates or groups or not self.lanes.are_alone:
            busy = self.lanes.busy
            room = min(room, self._room(lane, monotonic_ms, most.max_count))
            if gates or busy or groups:
                route = GateRouter(gates, lane.place, busy, monotonic_ms, groups=groups)
        flight = lane.take(self.window.rows, now_ms, most._replace(max_count=room), route)
        if flight is not None:
            if groups:
                for row in flight.rows:
                    row.reports = groups.reports(row)
            self.window.subtract(lane.number, [*flight.rows, *flight.unpublished()])
            for place in _passed(lane):
                gates.spend(place, len(flight.rows), monotonic_ms)
            # Rows on their way to the lane of their destination pass it, too.
            if lane.place is not None and (going := sum(to[0] is None for _, to in flight.diverted)):
                gates.spend(lane.place, going, monotonic_ms)
        elif route is not None and route.retry_at_ms > monotonic_ms:
            lane.retry_at_ms = route.retry_at_ms
        return flight

    def _room(self, lane: Lane, monotonic_ms: int, max_count: int) -> int:
        """Return how many rows of a lane may be published now; if none, set when the lane is tried again."""
        room = max_count
        for place in _passed(lane):
            if place in self.gates.closed:
                return 0
            free, retry_at_ms = self.gates.room(place, monotonic_ms)
            if free == 0:
                lane.retry_at_ms = retry_at_ms
            room = room if free is None else min(room, free)
        return room

    def next_due_ms(self, monotonic_ms: int | None = None) -> int | None:
        """Return when the next row in memory is due; lanes that may not be tried at ``monotonic_ms`` are left out."""
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
