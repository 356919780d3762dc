"""One RRULE as a step function: the first wall-clock time at or after another, found by fields.

::

    FREQ                             an occurrence is                                  the search steps over
    YEARLY MONTHLY WEEKLY DAILY      an allowed day with each allowed time             months, days, times
      with BYSETPOS                  some of these, by their number in the period      periods that have an allowed day
    HOURLY MINUTELY SECONDLY         a point of the grid from DTSTART, on an allowed   points of the grid, from one
                                     day, at an allowed time                           allowed time to the next

Times are seconds of the wall clock since 1970. A search that finds nothing in MAX_MONTHS months, or in MAX_STEPS
points of a grid, ends the rule: with SECONDLY;INTERVAL=86399;BYHOUR=3;BYMINUTE=0;BYSECOND=0 the next is 236 years away.

Source: RFC 5545, section 3.3.10, and dateutil.rrule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from celery_wheel.recurring.checks import refuse
from celery_wheel.recurring.specs import DAY_S, END_DAY, DayTimes, day_number, day_to_date, first_day, month_length

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MAX_STEPS = 2_000
_UNITS = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
_BEFORE_1972 = day_number(1972, 1, 1) - 1
_ALL_MONTHS, _ALL_HOURS, _ALL_SIXTY = tuple(range(1, 13)), tuple(range(24)), tuple(range(60))


@dataclass(frozen=True, slots=True)
class Frequency:
    """A rule and its DTSTART. Weekdays are (number, weekday) with Monday 0, and number 0 for each such day."""

    freq: str
    start: int
    interval: int = 1
    until: int | None = None
    count: int | None = None
    week_start: int = 0
    months: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    week_numbers: tuple[int, ...] = ()
    weekdays: tuple[tuple[int, int], ...] = ()
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    times: DayTimes = field(init=False, repr=False, compare=False)
    _months: tuple[int, ...] = field(init=False, repr=False, compare=False)  #: all months that may have a day
    _period: tuple[int, list[int], int] = field(init=False, repr=False, compare=False, default=(0, [], 0))
    _last: int | None = field(init=False, repr=False, compare=False)  #: the rule's last second; None: no limit

    def __post_init__(self) -> None:
        self._check_parts()
        self._derive_parts()
        object.__setattr__(self, "_last", self.until)
        if self.count is not None:
            object.__setattr__(self, "_last", self._last_counted(self.count))
        if self.next_from(self.start) is None:
            refuse("RRULE", "a rule with an occurrence", self.freq)

    def next_from(self, second: int) -> int | None:
        second = max(second, self.start)
        if self._last is not None and second > self._last:
            return None
        if self.freq in _UNITS:
            found = self._next_on_grid(second)
        else:
            found = self._next_by_position(second) if self.positions else self._next_by_day(second)
        return None if found is None or (self._last is not None and found > self._last) else found

    # -- parts ---------------------------------------------------------------------------------------------

    def _check_parts(self) -> None:
        freq = self.freq
        if self.positions and freq in _UNITS:
            refuse("BYSETPOS", "in a rule with FREQ=DAILY or longer", freq)
        if self.week_numbers and freq != "YEARLY":
            refuse("BYWEEKNO", "in a rule with FREQ=YEARLY", freq)
        if self.year_days and freq in ("MONTHLY", "WEEKLY", "DAILY"):
            refuse("BYYEARDAY", "in a rule with FREQ=YEARLY, HOURLY, MINUTELY or SECONDLY", freq)
        if self.month_days and freq == "WEEKLY":
            refuse("BYMONTHDAY", "in a rule of another FREQ than WEEKLY; with FREQ=DAILY it selects days", freq)
        numbered = [number for number, _ in self.weekdays if number]
        if numbered and (freq not in ("YEARLY", "MONTHLY") or self.week_numbers):
            rule = "weekdays without a number, unless in FREQ=MONTHLY, or YEARLY without BYWEEKNO"
            refuse("BYDAY", rule, numbered[0])

    def _derive_parts(self) -> None:
        """Take from DTSTART what the rule does not name."""
        day, second = divmod(self.start, DAY_S)
        date, freq = day_to_date(day), self.freq
        derived: dict[str, object] = {}
        if not (self.week_numbers or self.year_days or self.month_days or self.weekdays):
            if freq == "YEARLY":
                derived = {"months": self.months or (date.month,), "month_days": (date.day,)}
            elif freq == "MONTHLY":
                derived = {"month_days": (date.day,)}
            elif freq == "WEEKLY":
                derived = {"weekdays": ((0, date.weekday()),)}
        finest = _UNITS.get(freq, DAY_S)
        hours = self.hours or ((second // 3_600,) if finest > 3_600 else _ALL_HOURS)
        minutes = self.minutes or ((second // 60 % 60,) if finest > 60 else _ALL_SIXTY)
        seconds = self.seconds or ((second % 60,) if finest > 1 else _ALL_SIXTY)
        derived["times"] = DayTimes(hours, minutes, seconds)
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_months", self.months or self._months_of_numbers() or _ALL_MONTHS)

    def _months_of_numbers(self) -> tuple[int, ...]:
        """Return the months that BYYEARDAY, or else BYWEEKNO, or numbers in BYDAY may mean, in any year."""
        days = {day if day > 0 else 367 + day for day in self.year_days}
        weeks, numbers = self.week_numbers, [number for number, _ in self.weekdays]
        if not days and not weeks and self.freq == "YEARLY" and all(numbers):
            weeks = tuple(numbers)  # the 20th Monday is near the 20th week
        if not days:
            counted = {week if week > 0 else 54 + week for week in weeks}
            days = {day for week in counted for day in range(7 * week - 16, 7 * week + 5)}
        # 1972 is a leap year: in other years a number is that of the day before or after.
        return tuple(sorted({day_to_date(_BEFORE_1972 + day + by).month for day in days for by in (-1, 0, 1)}))

    def _last_counted(self, count: int) -> int | None:
        """Return the second of the last of ``count`` occurrences; None where the rule has fewer."""
        object.__setattr__(self, "_last", None)
        whole_days = self.freq not in _UNITS and not self.positions
        in_day, first, last = self.times.count(), self.times.nth(0), self.times.nth(self.times.count() - 1)
        second, found = self.start, self.start
        while count > 0:
            following = self.next_from(second)
            if following is None:
                return None
            found = following
            if whole_days and found % DAY_S == first and count >= in_day:
                found, count = found - first + last, count - in_day
            else:
                count -= 1
            second = found + 1
        return found

    # -- searches ------------------------------------------------------------------------------------------

    def _next_by_day(self, second: int) -> int | None:
        day, time = divmod(second, DAY_S)
        found = self._first_day(day)
        if found == day:
            if (within := self.times.first_from(time)) is not None:
                return day * DAY_S + within
            found = self._first_day(day + 1)
        return None if found is None else found * DAY_S + self.times.nth(0)

    def _next_by_position(self, second: int) -> int | None:
        day, in_day = self._first_day(second // DAY_S), self.times.count()
        # The first period with an allowed day at or after ``second`` may have begun before it.
        for _ in range(MAX_STEPS):
            if day is None:
                return None
            days, end = self._period_of(day)
            total = len(days) * in_day
            indexes = {position - 1 if position > 0 else total + position for position in self.positions}
            for index in sorted(index for index in indexes if 0 <= index < total):
                found = days[index // in_day] * DAY_S + self.times.nth(index % in_day)
                if found >= second:
                    return found
            day = self._first_day(end)
        return None

    def _next_on_grid(self, second: int) -> int | None:
        unit = _UNITS[self.freq]
        origin, step = self.start // unit * unit, unit * self.interval
        for _ in range(MAX_STEPS):
            ahead = (second - origin) % step
            if ahead >= unit:  # not within a unit that is on the grid
                second += step - ahead
            day, time = divmod(second, DAY_S)
            allowed = self._first_day(day)
            if allowed is None:
                return None
            if allowed != day:
                second = allowed * DAY_S
            elif (within := self.times.first_from(time)) is None:
                second = (day + 1) * DAY_S
            elif within == time:
                return second
            else:
                second = day * DAY_S + within
        return None

    def _first_day(self, day: int) -> int | None:
        if self.freq in _UNITS and not (self.months or self.month_days or self.year_days or self.weekdays):
            return day if day < END_DAY else None
        return first_day(day, self._months, self._days_of)

    def _period_of(self, day: int) -> tuple[list[int], int]:
        """Return the allowed days of the period that holds ``day``, and the day after it; the last answer is kept."""
        low, days, end = self._period
        if not low <= day < end:
            days, end = self._days_of_period(day)
            object.__setattr__(self, "_period", (days[0], days, end))
        return days, end

    def _days_of_period(self, day: int) -> tuple[list[int], int]:
        date = day_to_date(day)
        if self.freq in ("YEARLY", "MONTHLY"):
            months = self._months if self.freq == "YEARLY" else (date.month,)
            days = [
                day_number(date.year, month, 1) - 1 + found
                for month in months
                for found in self._days_of(date.year, month)
            ]
            return days, day_number(date.year, months[-1], 1) + month_length(date.year, months[-1])
        low, high = (self._week_of(day), self._week_of(day) + 7) if self.freq == "WEEKLY" else (day, day + 1)
        days, next_day = [], self._first_day(low)
        while next_day is not None and next_day < high:
            days.append(next_day)
            next_day = self._first_day(next_day + 1)
        return days, high

    # -- days ----------------------------------------------------------------------------------------------

    def _days_of(self, year: int, month: int) -> Iterable[int]:
        """Return the allowed days of a month of ``months``, ascending."""
        start_day = self.start // DAY_S
        start, length = day_to_date(start_day), month_length(year, month)
        if self.freq == "YEARLY" and (year - start.year) % self.interval:
            return ()
        if self.freq == "MONTHLY" and (year * 12 + month - start.year * 12 - start.month) % self.interval:
            return ()
        before = day_number(year, month, 1) - 1
        days: Iterable[int] = range(1, length + 1)
        if self.month_days:
            numbers = {day if day > 0 else length + 1 + day for day in self.month_days}
            days = sorted(day for day in numbers if 1 <= day <= length)
        elif self.freq == "DAILY":
            days = range(1 + (start_day - before - 1) % self.interval, length + 1, self.interval)
        if self.year_days:
            until_year, year_length = day_number(year, 1, 1) - 1, 365 + month_length(year, 2) - 28
            allowed = {day if day > 0 else year_length + 1 + day for day in self.year_days}
            days = [day for day in days if before + day - until_year in allowed]
        if self.weekdays:
            days = self._on_weekdays(days, year, before, length)
        if self.week_numbers:
            weeks = range(self._week_of(before + 1), before + length + 1, 7)
            in_weeks = {first + by - before for first in weeks if self._has_week(first) for by in range(7)}
            days = [day for day in days if day in in_weeks]
        if self.freq == "DAILY" and self.month_days:
            return (day for day in days if (before + day - start_day) % self.interval == 0)
        if self.freq == "WEEKLY" and self.interval > 1:
            step, origin = 7 * self.interval, self._week_of(start_day)
            return (day for day in days if (before + day - origin) % step < 7)
        return days

    def _on_weekdays(self, days: Iterable[int], year: int, before: int, length: int) -> list[int]:
        """Return the days of a month that BYDAY has. Numbers count in the month, or in a year without BYMONTH."""
        plain = {(weekday - 3 - before) % 7 for number, weekday in self.weekdays if not number}
        numbered = {(number, (weekday - 3 - before) % 7) for number, weekday in self.weekdays if number}
        if not numbered:
            return [day for day in days if day % 7 in plain]
        skipped, total = 0, length
        if self.freq == "YEARLY" and not self.months:
            skipped, total = before - day_number(year, 1, 1) + 1, 365 + month_length(year, 2) - 28
        return [
            day
            for day in days
            if day % 7 in plain
            or ((skipped + day - 1) // 7 + 1, day % 7) in numbered
            or (-((total - skipped - day) // 7) - 1, day % 7) in numbered
        ]

    def _week_of(self, day: int) -> int:
        """Return the first day of a day's week. 1970-01-01, day 0, is a Thursday."""
        return day - (day + 3 - self.week_start) % 7

    def _has_week(self, week: int) -> bool:
        """Whether BYWEEKNO has the week that starts on a day. A week belongs to the year that has its fourth day."""
        middle = week + 3
        year = day_to_date(middle).year
        number = (middle - day_number(year, 1, 1)) // 7 + 1
        weeks = number + (day_number(year + 1, 1, 1) - 1 - middle) // 7
        return number in self.week_numbers or number - weeks - 1 in self.week_numbers
