"""Due time, the clock of an engine: the wall clock's time, carried on by the monotonic clock.

::

    the second clock         the wall clock is …            then
    ───────────────────────  ─────────────────────────────  ──────────────────────────────────────────────────────
    is nearer to the wall    before due time                due time follows, back
                             after due time                 due time follows, if the wall clock is at most 100 ms
                                                            ahead of the second clock
    is nearer to due time    anywhere                       due time goes on
    does not decide,         up to tick + 100 ms before     due time follows, back: a drift makes nothing early
    or there is none         anywhere else                  due time goes on

    Where due time goes on, a wall clock that is more than tick + 100 ms away is disputed, until ``accept``.

"Nearer" means nearer by more than the uncertainty of a reading, half its round trip. Example: at 12:00:10 the wall
clock is stepped by +30 s, and Redis says 12:00:10.399 ± 1 ms: due time is nearer, the wall clock is disputed, and a
task due at 12:00:35 is published at 12:00:35. If Redis says 12:00:40.400, due time was 30 s late, and is put forward.

Promises, in terms of the second clock, for any sequence of steps, suspensions, delays and answers:

1. Between two checks due time advances exactly as the monotonic clock, a suspended machine's time included.
2. Due time is never further ahead of the second clock than 100 ms, or than it was at the start: until a first reading
   has found it within ``max_skew_ms``, ``check`` returns False and no shard is held.
3. Due time goes back only in a check or in ``accept``, as the table says.
4. ``check`` returns False for due time that is further than ``max_skew_ms`` from the second clock, whatever the wall
   clock shows: a stepped wall clock alone loses no shard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.timing import Clock, RetryLog
from celery_wheel.values.log import get_logger

#: The wall clock agrees with due time as long as they are no further apart than this plus one tick.
TOLERANCE_MS = 100

#: While the wall clock is disputed, a reading with a longer round trip is repeated, up to MAX_READINGS in one check.
MAX_ROUND_TRIP_MS = 200
MAX_READINGS = 3

#: A reading serves the other due clocks of its process for so long: those that are checked in the same moment.
SHARED_MS = 100

logger = get_logger(__name__)

#: Returns the second clock's Unix time in milliseconds; None where there is no second clock.
SecondClock = Callable[[], int | None]


class _ClockReading(NamedTuple):
    """A reading of the second clock: its time less the monotonic clock's, and the largest error of that difference."""

    offset_ms: int
    uncertainty_ms: int


class ClockReadings:
    """The last reading of the second clock and the log of a process's due clocks, which tick at one pace."""

    def __init__(self, clock: Clock) -> None:
        self.log = RetryLog(logger, lambda: clock.monotonic_ms() / 1_000)
        self._last: tuple[int, _ClockReading] | None = None

    def recent(self, monotonic_ms: int) -> _ClockReading | None:
        """Return the reading of another due clock, if it is not older than SHARED_MS."""
        last = self._last
        return last[1] if last is not None and monotonic_ms - last[0] <= SHARED_MS else None

    def put(self, monotonic_ms: int, reading: _ClockReading) -> None:
        self._last = monotonic_ms, reading


class DueClock:
    """Implements ``timing.Clock``. Thread-safe; no lock is held while the second clock is read."""

    def __init__(
        self, clock: Clock, *, tick_ms: int = 1, max_skew_ms: int = 5_000, readings: ClockReadings | None = None
    ) -> None:
        self._clock = clock
        self._readings = readings
        self._log = (readings or ClockReadings(clock)).log
        self._near_ms = tick_ms + TOLERANCE_MS
        self._max_skew_ms = max_skew_ms
        self._lock = threading.Lock()
        self._offset_ms = self._wall_offset_ms()
        self._fit: bool | None = None  #: None before the first decision
        #: The wall clock less due time while the wall clock is disputed, else 0.
        self.disputed_ms = 0
        #: Due time less the second clock, by its last reading; None where there is no second clock.
        self.skew_ms: int | None = None

    def now_ms(self) -> int:
        """Return due time."""
        return self._clock.monotonic_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def seconds_until(self, monotonic_ms: int) -> float:
        return self._clock.seconds_until(monotonic_ms)

    def wall_ms(self) -> int:
        """Return this host's wall clock: for instants that other processes compare with theirs."""
        return self._clock.now_ms()

    def check(self, second_clock: SecondClock) -> bool:
        """Compare the clocks; return whether due time is near enough to the second clock to hold a shard.

        Where the second clock raises BrokerError or StoreError, the last decision stands, False before the first.
        """
        shared = self._readings.recent(self._clock.monotonic_ms()) if self._readings is not None else None
        for _ in range(MAX_READINGS):
            try:
                reading, shared = shared or self._read(second_clock), None
            except (BrokerError, StoreError):
                with self._lock:
                    self._compare(None)
                break
            with self._lock:
                decided = self._compare(reading)
                self._decide_fit(reading)
            if decided or reading is None or 2 * reading.uncertainty_ms <= MAX_ROUND_TRIP_MS:
                break
        return bool(self._fit)

    @property
    def halted(self) -> bool:
        """Whether due time is too far from the second clock to hold a shard."""
        return self._fit is False

    def is_acceptable(self) -> bool:
        """Whether no second clock contradicts the wall clock by more than ``max_skew_ms``."""
        with self._lock:
            ahead_ms = self._wall_offset_ms() - self._offset_ms
            return self.skew_ms is None or abs(self.skew_ms + ahead_ms) <= self._max_skew_ms

    def accept(self) -> None:
        """Follow the wall clock: the operator says that it is right."""
        with self._lock:
            self._follow(self._wall_offset_ms() - self._offset_ms)

    def _read(self, second_clock: SecondClock) -> _ClockReading | None:
        began_ms = self._clock.monotonic_ms()
        second_ms = second_clock()
        if second_ms is None:
            return None
        ended_ms = self._clock.monotonic_ms()
        uncertainty_ms = (ended_ms - began_ms + 1) // 2 + 1  # all three are rounded down
        reading = _ClockReading(second_ms - (began_ms + ended_ms) // 2, uncertainty_ms)
        if self._readings is not None:
            self._readings.put(began_ms, reading)
        return reading

    def _wall_offset_ms(self) -> int:
        """Return the wall clock less the monotonic clock, never too large: the wall clock is read first, and of the
        readings that took the least time, since another thread may run in between, the smallest counts."""
        found = []
        for _ in range(5):
            began_ms, wall_ms, ended_ms = self._clock.monotonic_ms(), self._clock.now_ms(), self._clock.monotonic_ms()
            found.append((ended_ms - began_ms, wall_ms - ended_ms))
        return min(found)[1]

    def _compare(self, reading: _ClockReading | None) -> bool:
        """Follow the wall clock, dispute it or find it near; returns False where a better reading could decide."""
        wall_ms = self._wall_offset_ms()
        ahead_ms = wall_ms - self._offset_ms
        follows, due_is_nearer = -self._near_ms <= ahead_ms < 0, False
        if reading is not None:
            second_ms, uncertainty_ms = reading
            wall_off_ms, due_off_ms = abs(wall_ms - second_ms), abs(self._offset_ms - second_ms)
            if wall_off_ms + uncertainty_ms < due_off_ms:
                follows = ahead_ms < 0 or wall_ms <= second_ms - uncertainty_ms + TOLERANCE_MS
            due_is_nearer = due_off_ms + uncertainty_ms < wall_off_ms
        if follows and not due_is_nearer:
            self._follow(ahead_ms)
            if abs(ahead_ms) > self._near_ms:
                self._log.write(
                    logging.WARNING,
                    "clock_followed",
                    "the wall clock of this host was stepped, and the second clock agrees with it: due time follows by "
                    "%+d ms",
                    ahead_ms,
                    extra={"step_ms": ahead_ms},
                )
        elif abs(ahead_ms) > self._near_ms:
            self._dispute(ahead_ms)
        elif self.disputed_ms:
            self.disputed_ms = 0
            self._log.write(logging.WARNING, "clock_agreed", "the wall clock agrees with due time again")
        return due_is_nearer or not self.disputed_ms

    def _decide_fit(self, reading: _ClockReading | None) -> None:
        """Decide whether due time is near enough to the second clock; a too uncertain reading decides nothing."""
        if reading is None:
            self._fit, self.skew_ms = True, None
            return
        before, max_ms = self._fit, self._max_skew_ms
        self.skew_ms = self._offset_ms - reading.offset_ms
        if abs(self.skew_ms) - reading.uncertainty_ms > max_ms:
            self._fit = False
        elif abs(self.skew_ms) + reading.uncertainty_ms <= max(max_ms, MAX_ROUND_TRIP_MS):
            self._fit = True
        if self._fit is False and before is not False:
            self._log.write(
                logging.ERROR,
                "clock_skew",
                "due time is %+d ms from the clock of the broker or the store; this scheduler holds no shard while "
                "they differ by more than wheel_max_clock_skew; check the time service of both hosts",
                self.skew_ms,
                extra={"skew_ms": self.skew_ms},
            )

    def _follow(self, ahead_ms: int) -> None:
        self._offset_ms += ahead_ms
        self.disputed_ms = 0

    def _dispute(self, ahead_ms: int) -> None:
        if not self.disputed_ms:
            self._log.write(
                logging.ERROR,
                "clock_disputed",
                "the wall clock of this host was stepped and is %+d ms from due time; tasks are still published by the "
                "monotonic clock; check the time service of this host; if its clock is right now: celery -A proj "
                "wheel clock accept",
                ahead_ms,
                extra={"disputed_ms": ahead_ms},
            )
        self.disputed_ms = ahead_ms
