"""Compressed time: a day of 2013 mapped to the next minutes. Integers and dates only.

::

    the day      00:00 ─────── 05:15 ── flight's reminder ─────────── 24:00      day_start_ms … + day_length_ms
                   │            │                                        │
    the replay   start ──────── start + 05:15 / speed ──── start + day / speed
"""

import math
from dataclasses import dataclass
from datetime import date

from celery_wheel.recurring import Crontab, Recurrence
from flights.timetable import Flight, TimetableError, day_length_ms, day_start_ms

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
        return self.at_ms(flight.departs_at_ms - LEAD_MS)

    def at_ms(self, instant_ms: int) -> int:
        """Return an instant of the day in the replay, rounded up."""
        return self.start_at_ms + math.ceil((instant_ms - day_start_ms(self.day)) / self.speed)

    def nights(self, zone: str) -> dict[int, int]:
        """Return each 01:30 of the day by the wall clock of a zone: instant of the replay → that of 2013.

        A day on which 01:30 occurs twice has both.
        """
        recurrence = Recurrence(Crontab("30", "1"), zone, fold="both")
        start_ms = day_start_ms(self.day)
        instants = recurrence.between(start_ms - 1, start_ms + day_length_ms(self.day) - 1)
        return {self.at_ms(instant_ms): instant_ms for instant_ms in instants}
