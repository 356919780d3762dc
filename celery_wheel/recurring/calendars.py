"""Calendars: sets of instants that a recurrence leaves out, joined by ``|``, ``&`` and ``~``.

A calendar of days means days of the recurrence's zone. Each answer says until when it certainly holds: "each second,
but not on weekends" asks once a weekend. A ``|`` holds while one of its parts holds, a ``&`` until one of them ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from celery_wheel.errors import import_extra
from celery_wheel.recurring.checks import check_duration, check_list, check_type, refuse
from celery_wheel.recurring.local import WallClock, next_instant
from celery_wheel.recurring.specs import DAY_S, EPOCH_DAY, Spec, day_number, day_to_date
from celery_wheel.values.text import END_OF_TIME_MS

_DAY_MS = DAY_S * 1_000
#: The day of an answer that never changes.
_NO_DAY = END_OF_TIME_MS // _DAY_MS
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEKDAYS = tuple(day[:3] for day in _DAYS)
#: Name in small letters → its one form.
_WEEKDAY_OF = {name: day[:3] for day in _DAYS for name in (day, day[:3])}


class Calendar(ABC):
    """A set of instants."""

    __slots__ = ()

    @abstractmethod
    def at(self, at_ms: int, clock: WallClock) -> tuple[bool, int]:
        """Return whether the set has the instant, and a later instant before which the answer stays the same."""

    def __or__(self, other: Calendar) -> Calendar:
        return AnyOf((self, other)) if isinstance(other, Calendar) else NotImplemented

    def __and__(self, other: Calendar) -> Calendar:
        return AllOf((self, other)) if isinstance(other, Calendar) else NotImplemented

    def __invert__(self) -> Calendar:
        return Except(self)


@dataclass(frozen=True, slots=True)
class Combination(Calendar):
    """Calendars of which one decides as soon as it gives the decisive answer; the other answer needs all of them."""

    decisive: ClassVar[bool]

    parts: tuple[Calendar, ...]

    def __post_init__(self) -> None:
        items = check_list("parts", self.parts, "calendars")
        for number, item in enumerate(items):
            check_type(f"parts[{number}]", item, Calendar)
        object.__setattr__(self, "parts", items)

    def at(self, at_ms: int, clock: WallClock) -> tuple[bool, int]:
        answers = [part.at(at_ms, clock) for part in self.parts]
        deciding = [until_ms for inside, until_ms in answers if inside is self.decisive]
        if deciding:
            return self.decisive, max(deciding)
        return not self.decisive, min(until_ms for _, until_ms in answers)


class AnyOf(Combination):
    """The instants of at least one part."""

    __slots__ = ()
    decisive = True


class AllOf(Combination):
    """The instants that all parts share."""

    __slots__ = ()
    decisive = False


@dataclass(frozen=True, slots=True)
class Except(Calendar):
    """The instants that the other calendar lacks."""

    calendar: Calendar

    def __post_init__(self) -> None:
        check_type("calendar", self.calendar, Calendar)

    def at(self, at_ms: int, clock: WallClock) -> tuple[bool, int]:
        inside, until_ms = self.calendar.at(at_ms, clock)
        return not inside, until_ms


class DayCalendar(Calendar):
    """A set of whole days of the zone."""

    __slots__ = ()

    @abstractmethod
    def on_day(self, day: int) -> tuple[bool, int]:
        """Return whether the set has the day (from 1970-01-01, 0), and the first later day that may differ."""

    def at(self, at_ms: int, clock: WallClock) -> tuple[bool, int]:
        inside, until_day = self.on_day(clock.local(at_ms) // _DAY_MS)
        if until_day >= _NO_DAY:
            return inside, END_OF_TIME_MS
        return inside, clock.not_before(at_ms, until_day * _DAY_MS)


@dataclass(frozen=True, slots=True)
class Dates(DayCalendar):
    """The days of a list. A text like "2026-12-24" is accepted too."""

    dates: tuple[date, ...]
    _days: tuple[int, ...] = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(self, dates: Iterable[date | str]) -> None: ...

    def __post_init__(self) -> None:
        items = check_list("dates", self.dates, "dates")
        found = {_to_date(f"dates[{number}]", item) for number, item in enumerate(items)}
        object.__setattr__(self, "dates", tuple(sorted(found)))
        object.__setattr__(self, "_days", tuple(item.toordinal() - EPOCH_DAY for item in self.dates))

    def on_day(self, day: int) -> tuple[bool, int]:
        return _in_days(self._days, day, _NO_DAY)


@dataclass(frozen=True, slots=True)
class Weekdays(DayCalendar):
    """Days of the week, by the first three letters of their English names. Whole names are accepted too."""

    days: tuple[str, ...]

    if TYPE_CHECKING:

        def __init__(self, days: Iterable[str]) -> None: ...

    def __post_init__(self) -> None:
        items = check_list("days", self.days, "weekdays")
        found = {_to_weekday(f"days[{number}]", item) for number, item in enumerate(items)}
        object.__setattr__(self, "days", tuple(sorted(found, key=WEEKDAYS.index)))

    def on_day(self, day: int) -> tuple[bool, int]:
        inside = self._has(day)
        return inside, next((later for later in range(day + 1, day + 7) if self._has(later) != inside), _NO_DAY)

    def _has(self, day: int) -> bool:
        return WEEKDAYS[(day + 3) % 7] in self.days


@dataclass(frozen=True, slots=True)
class Holidays(DayCalendar):
    """The public holidays of a country ("DE") or one of its parts ("BY"), by the package of the extra ``holidays``."""

    country: str
    subdivision: str = ""

    def __post_init__(self) -> None:
        _check_country(self.country, self.subdivision)

    def on_day(self, day: int) -> tuple[bool, int]:
        return _in_holidays(self.country, self.subdivision, day)


@dataclass(frozen=True, slots=True)
class BusinessDays(DayCalendar):
    """The days that are neither on the weekend nor public holidays."""

    country: str
    subdivision: str = ""
    weekend: tuple[str, ...] = ("sat", "sun")

    def __post_init__(self) -> None:
        _check_country(self.country, self.subdivision)
        object.__setattr__(self, "weekend", Weekdays(self.weekend).days)

    def on_day(self, day: int) -> tuple[bool, int]:
        is_holiday, until_day = _in_holidays(self.country, self.subdivision, day)
        is_weekend, until_weekend = Weekdays(self.weekend).on_day(day)
        return (False, day + 1) if is_holiday or is_weekend else (True, min(until_day, until_weekend))


@dataclass(frozen=True, slots=True)
class OfSpec(Calendar):
    """The times that begin at the occurrences of a spec and last ``lasts_ms`` each.

    In a fold each of the two occurrences counts, and a wall-clock time in a gap is shifted.
    """

    spec: Spec
    lasts_ms: int = 1

    def __post_init__(self) -> None:
        check_type("spec", self.spec, Spec)
        check_duration("lasts_ms", self.lasts_ms, 1, END_OF_TIME_MS)

    def at(self, at_ms: int, clock: WallClock) -> tuple[bool, int]:
        spec, after_ms = self.spec.in_zone(clock.zone), at_ms - self.lasts_ms
        if spec.is_local:
            begin_ms = next_instant(spec.next_after, clock, after_ms, "shift", "both")
        else:
            begin_ms = spec.next_after(after_ms)
        if begin_ms is None:
            return False, END_OF_TIME_MS
        return (False, begin_ms) if begin_ms > at_ms else (True, begin_ms + self.lasts_ms)


def _to_date(path: str, value: Any) -> date:
    if isinstance(value, datetime):  # its day may be another one in the zone of the recurrence
        refuse(path, "a date without a time, as of value.date()", value)
    try:
        return value if isinstance(value, date) else date.fromisoformat(value)
    except (TypeError, ValueError):
        refuse(path, "a date like '2026-12-24'", value)


def _to_weekday(path: str, value: Any) -> str:
    found = _WEEKDAY_OF.get(value.lower()) if isinstance(value, str) else None
    return refuse(path, f"one of {', '.join(WEEKDAYS)}", value) if found is None else found


def _in_days(days: tuple[int, ...], day: int, end: int) -> tuple[bool, int]:
    """Return whether the sorted ``days``, which end before ``end``, have the day, and the next day that differs."""
    at = bisect_left(days, day)
    if at == len(days) or days[at] != day:
        return False, days[at] if at < len(days) else end
    until_day = day + 1
    while (at := at + 1) < len(days) and days[at] == until_day:
        until_day += 1
    return True, until_day


def _in_holidays(country: str, subdivision: str, day: int) -> tuple[bool, int]:
    year = day_to_date(day).year
    return _in_days(_holidays(country, subdivision, year), day, day_number(year, 12, 31) + 1)


@lru_cache(maxsize=4_096)
def _holidays(country: str, subdivision: str, year: int) -> tuple[int, ...]:
    """Return the holidays of a year, as sorted days. A year of a country takes about 1 ms, and is kept."""
    found = _package().country_holidays(country, subdiv=subdivision or None, years=year)
    return tuple(sorted(one.toordinal() - EPOCH_DAY for one in found if one.year == year))


def _check_country(country: Any, subdivision: Any) -> None:
    parts = _countries()
    if not isinstance(country, str) or country not in parts:
        refuse("country", "a code that the package holidays knows, like 'DE'", country)
    if subdivision != "" and subdivision not in parts[country]:
        known = ", ".join(parts[country])
        refuse("subdivision", f"one of {known}" if known else f"'': {country} has no parts", subdivision)


@lru_cache(maxsize=1)
def _countries() -> Any:
    """Return the countries with their parts; collecting them takes milliseconds."""
    return _package().list_supported_countries()


def _package() -> Any:
    return import_extra("holidays", "holidays", "calendars of holidays need")
