"""Lanes of a shard: find the lane of a row, put idle lanes to sleep, close them.

::

    number       place                 rows
    0            None                  the main lane: every row that need not wait in another lane
    1 536        ("queue", "mail")     rows for queue mail, paused or over its rate; 1 536 is the seq at its opening
    2 048        (None, "reports")     rows that queue reports has refused, and later rows for it
    2 560        None                  new rows while due time is behind the main lane's watermark; or replayed rows
    3 072        None                  occurrences of a herd of schedules: no other row waits behind them

    all        every open lane, by number
    awake      lanes in which rows wait or anything is under way: a round visits only these
    asleep     idle lanes: a round costs the same with 2,000 of them as with none; a reservation wakes a lane
    busy       places that have rows waiting: a row of such a place goes behind them

A lane falls asleep when a round finds it idle with no row in the window, and wakes with the first reservation in it: a
row enters a lane only through a reservation. The main lane never sleeps. Another lane that has been asleep for long is
closed (``engine.housekeeping``).

Nothing here locks, reads a clock or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from celery_wheel.engine.state.gates import Place
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.window import MAIN, Window


class Lanes:
    """The lanes of one shard's state.

    Args:
        next_number: returns the number for a lane that is opened.
    """

    def __init__(self, lanes: Iterable[Lane], next_number: Callable[[], int]) -> None:
        self.all = {lane.number: lane for lane in lanes}
        self.awake = dict(self.all)
        self._next_number = next_number
        self._of_place = {lane.place: lane for lane in self.all.values() if lane.place is not None}
        self._busy: set[Place] = set()

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

    # -- where a row goes ----------------------------------------------------------------------------

    def for_eta(self, eta_ms: int, now_ms: int, redelivered: bool = False, apart: bool = False) -> Lane:
        """Return the lane in which a new row is due at its own eta: the main lane, unless due time is behind it.

        Rows that may be in their queue already have a lane of their own. Rows ``apart`` go to another than the main
        lane: one of many rows that are due at once, so that no other row waits behind them.
        """
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

    # -- awake and asleep ----------------------------------------------------------------------------

    def wake(self, lane: Lane) -> None:
        """Wake a lane: a row is about to enter it."""
        self.awake[lane.number] = lane
        lane.idle_since_ms = None
        if lane.place is not None:
            self._busy.add(lane.place)

    def begin_round(self, window: Window, now_ms: int, monotonic_ms: int) -> list[Lane]:
        """Put idle lanes to sleep; returns the awake lanes, the lane with the earliest ready row first."""
        for lane in self:
            if lane.number != MAIN and lane.is_idle() and not window.has(lane):
                del self.awake[lane.number]
                lane.idle_since_ms = monotonic_ms
        self._busy = {lane.place for lane in self.awake.values() if lane.place and has_more(window, lane, now_ms)}
        ready = {number: lane.next_due_ms(window.rows) for number, lane in self.awake.items()}
        return sorted(
            self.awake.values(), key=lambda lane: (ready[lane.number] is None, ready[lane.number] or 0, lane.number)
        )

    @property
    def busy(self) -> set[Place]:
        """The places that may have rows waiting, as of this round."""
        return self._busy

    # -- close ---------------------------------------------------------------------------------------

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


def has_more(window: Window, lane: Lane, now_ms: int) -> bool:
    """Whether a row waits in a lane, in memory or, as far as memory shows, in the store."""
    if window.has(lane) or lane.has_open() or lane.horizon.due_ms <= now_ms:
        return True
    return lane.next_due_ms(window.rows) is not None
