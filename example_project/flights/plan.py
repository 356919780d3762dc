"""Compressed time: a day of 2013 mapped to the next minutes. Integers and dates only.

::

    the day      00:00 ─────── 05:15 ── flight's reminder ─────────── 24:00      day_start_ms … + day_length_ms
                   │            │                                        │
    the replay   start ──────── start + 05:15 / speed ──── start + day / speed
"""

import math
from dataclasses import dataclass
from datetime import date

from flights.timetable import Flight, TimetableError, day_start_ms

LEAD_MS = 45 * 60_000  #: time from the reminder to the departure


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A day, its speed, and the instant at which the replay begins."""

    day: date
    speed: float  #: seconds of the day in one second of the replay
    start_at_ms: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise TimetableError(f"speed must be greater than 0, got {self.speed}")

    def due_at_ms(self, flight: Flight) -> int:
        """Return the due time of the reminder in the replay, rounded up so that it is never early."""
        into_day_ms = flight.departs_at_ms - LEAD_MS - day_start_ms(self.day)
        return self.start_at_ms + math.ceil(into_day_ms / self.speed)
