"""The specs: rules that answer "the first occurrence strictly after". Pure: no clock, no store, no I/O.

Interval, Instants and Solar have instants; Crontab and RRule have wall-clock times, in milliseconds as if of UTC, and
step by fields, with integers only::

    2026-11-22 13:26:46     months   (11, 12)      bisect: this month or the next allowed one
                            days     a function    the allowed days of one month, computed when it is reached
                            hours    (9, 13)       bisect, and so on: no step is a minute or a second

Days are numbered from 1970-01-01; seconds are seconds of such a day.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING, ClassVar, Self

from celery_wheel.recurring.checks import check_duration, check_instant, check_list, check_whole
from celery_wheel.values.text import END_OF_TIME_MS


class Spec(ABC):
    """A rule for instants. A spec is a value: equal specs have the same occurrences."""

    __slots__ = ()

    #: Whether the spec's milliseconds are wall-clock times, as if the zone were UTC. A Recurrence makes instants
    #: of them.
    is_local: ClassVar[bool] = False

    @abstractmethod
    def next_after(self, at_ms: int) -> int | None:
        """Return the first occurrence strictly after ``at_ms``; None where there is none."""

    def in_zone(self, zone: tzinfo) -> Self:
        """Return the spec for use in a zone: another one, if the definition has both instants and wall-clock times."""
        return self


@dataclass(frozen=True, slots=True)
class Interval(Spec):
    """The instants ``anchor_ms + n * every_ms``, for all whole numbers n: also those before the anchor."""

    every_ms: int
    anchor_ms: int = 0

    def __post_init__(self) -> None:
        check_duration("every_ms", self.every_ms, 1, END_OF_TIME_MS)
        check_whole("anchor_ms", self.anchor_ms, -END_OF_TIME_MS, END_OF_TIME_MS)

    def next_after(self, at_ms: int) -> int:
        return at_ms + self.every_ms - (at_ms - self.anchor_ms) % self.every_ms


@dataclass(frozen=True, slots=True)
class Instants(Spec):
    """The instants of a list, in Unix milliseconds, in order and without repetition, whatever the list's order.

    A datetime with a time zone is accepted too.
    """

    at_ms: tuple[int, ...]

    if TYPE_CHECKING:

        def __init__(self, at_ms: Iterable[int | datetime]) -> None: ...

    def __post_init__(self) -> None:
        items = list(check_list("at_ms", self.at_ms, "instants"))
        for number, item in enumerate(items):
            if type(item) is not int or not 0 <= item < END_OF_TIME_MS:
                items[number] = check_instant(f"at_ms[{number}]", item)
        object.__setattr__(self, "at_ms", tuple(sorted(set(items))))

    def next_after(self, at_ms: int) -> int | None:
        index = bisect_right(self.at_ms, at_ms)
        return self.at_ms[index] if index < len(self.at_ms) else None


DAY_S = 86_400
EPOCH_DAY = date(1970, 1, 1).toordinal()
#: The first day without occurrences.
END_DAY = END_OF_TIME_MS // (DAY_S * 1_000)
#: The months without an allowed day after which a search ends. The longest pause of the calendar is that of
#: 29 February on a given weekday: 40 years, which is 40 months of one month a year.
MAX_MONTHS = 1_200

_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def month_length(year: int, month: int) -> int:
    return 29 if month == 2 and isleap(year) else _LENGTHS[month]


def day_number(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - EPOCH_DAY


def day_to_date(day: int) -> date:
    return date.fromordinal(day + EPOCH_DAY)


@dataclass(frozen=True, slots=True)
class DayTimes:
    """The times of a day: each allowed hour with each allowed minute and second. All three are sorted."""

    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]

    def first_from(self, second: int) -> int | None:
        """Return the first time of the day at or after ``second``."""
        for hour in self.hours[bisect_left(self.hours, second // 3_600) :]:
            rest = second - hour * 3_600  # negative in a later hour, of which every minute and second will do
            for minute in self.minutes[bisect_left(self.minutes, rest // 60) :]:
                at = bisect_left(self.seconds, rest - minute * 60)
                if at < len(self.seconds):
                    return hour * 3_600 + minute * 60 + self.seconds[at]
        return None

    def count(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def nth(self, index: int) -> int:
        """Return the time with a number, counted from 0."""
        index, second = divmod(index, len(self.seconds))
        hour, minute = divmod(index, len(self.minutes))
        return self.hours[hour] * 3_600 + self.minutes[minute] * 60 + self.seconds[second]


def first_day(day: int, months: Sequence[int], days_of: Callable[[int, int], Iterable[int]]) -> int | None:
    """Return the first allowed day at or after ``day``; None where MAX_MONTHS allowed months have none.

    ``months`` is sorted; ``days_of`` returns the allowed days of a year and month, ascending.
    """
    if day >= END_DAY:
        return None
    start = day_to_date(day)
    year, at = start.year, bisect_left(months, start.month)
    least = start.day if at < len(months) and months[at] == start.month else 1
    for _ in range(MAX_MONTHS):
        if at == len(months):
            year, at = year + 1, 0
        if year > 9_998:
            return None
        month = months[at]
        for found in days_of(year, month):
            if found >= least:
                return day_number(year, month, found)
        least, at = 1, at + 1
    return None
