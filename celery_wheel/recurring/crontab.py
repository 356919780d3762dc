"""Celery's crontab: five fields, read by Celery's own parser, with Celery's meaning.

A day occurs where day_of_month *and* day_of_week *and* month_of_year allow it; cron itself takes either of the first
two. Numbers of weekdays start with Sunday, 0. ``second`` is an addition: Celery's crontab fires at second 0.
A field is kept in one form, in which two ways to write it are equal: 9 is "9", (17, 9) is "9,17", "Saturday" is "sat".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

from celery.schedules import ParseException, crontab_parser

from celery_wheel.recurring.checks import check_text, refuse
from celery_wheel.recurring.specs import DAY_S, DayTimes, Spec, day_number, day_to_date, first_day, month_length

#: One part of a field. Celery's parser reads the beginning of a longer text and ignores the rest.
_PART = re.compile(r"(\*|\w+(-\w+)?)(/[1-9]\d*)?").fullmatch
_NAME = re.compile(r"[a-z]{4,}").sub
#: Field → (number of values, least value, example).
_FIELDS = {
    "minute": (60, 0, "*/15"),
    "hour": (24, 0, "8-17"),
    "day_of_week": (7, 0, "mon-fri"),
    "day_of_month": (31, 1, "1,15"),
    "month_of_year": (12, 1, "*/3"),
    "second": (60, 0, "*/10"),
}
#: A text of cron instead of the five fields.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: A field as users write it: a text, a number, or several numbers.
Field = str | int | Collection[int]


@dataclass(frozen=True, slots=True)
class Crontab(Spec):
    """The wall-clock times whose fields all match. Each field is a text as in ``celery.schedules.crontab``.

    A field may be given as a number or as several numbers too; weekdays and months may have names, also in full.
    """

    is_local: ClassVar[bool] = True

    minute: str = "*"
    hour: str = "*"
    day_of_week: str = "*"
    day_of_month: str = "*"
    month_of_year: str = "*"
    second: str = "0"
    times: DayTimes = field(init=False, repr=False, compare=False)
    weekdays: frozenset[int] = field(init=False, repr=False, compare=False)
    days: tuple[int, ...] = field(init=False, repr=False, compare=False)
    months: tuple[int, ...] = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:  # the values that are accepted; a field's type is that of its one form

        def __init__(
            self,
            minute: Field = "*",
            hour: Field = "*",
            day_of_week: Field = "*",
            day_of_month: Field = "*",
            month_of_year: Field = "*",
            second: Field = "0",
        ) -> None: ...

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Return the crontab of five fields in cron's order, like "30 2 * * mon-fri", or of a text like "@daily".

        A text that limits both kinds of days is refused: for cron one of them is enough.
        """
        if not is_crontab(text):
            refuse("a crontab", "a text of five fields, like '30 2 * * mon-fri'", text)
        minute, hour, day, month, weekday = NICKNAMES.get(text.strip(), text).split()
        if not day.startswith("*") and not weekday.startswith("*"):
            both = f"day_of_week={weekday!r}, day_of_month={day!r}"
            rule = (
                f"clear about days: cron takes either day, Crontab(…, {both}) needs both; write that, or two crontabs"
            )
            refuse("a crontab", rule, text)
        # Sunday is 7 too for cron; a range that ends with 0 goes round.
        weekday = re.sub(r"(?<![\w/])7(?!\w)", "0", weekday.replace("0-7", "0-6"))
        return cls(minute, hour, weekday, day, month)

    def __post_init__(self) -> None:
        for name in _FIELDS:
            object.__setattr__(self, name, _one_form(name, getattr(self, name)))
        values = {name: _parse(name, getattr(self, name)) for name in _FIELDS}
        times = DayTimes(values["hour"], values["minute"], values["second"])
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "weekdays", frozenset(values["day_of_week"]))
        object.__setattr__(self, "days", values["day_of_month"])
        object.__setattr__(self, "months", values["month_of_year"])
        # 2000 is a leap year: 29 February occurs, and every month has that many days.
        if self.days[0] > 29 and self.days[0] > max(month_length(2000, month) for month in self.months):
            rule = f"a day that occurs in month_of_year {self.month_of_year!r}"
            refuse("day_of_month", rule, self.day_of_month)

    def next_after(self, at_ms: int) -> int | None:
        day, second = divmod(at_ms // 1_000 + 1, DAY_S)
        date = day_to_date(day)
        if date.day in self.days and date.month in self.months and (day + 4) % 7 in self.weekdays:
            time = self.times.first_from(second)
            if time is not None:
                return (day * DAY_S + time) * 1_000
        found = first_day(day + 1, self.months, self._days_of)
        return None if found is None else (found * DAY_S + self.times.nth(0)) * 1_000

    def _days_of(self, year: int, month: int) -> Iterator[int]:
        length, weekdays = month_length(year, month), self.weekdays
        sunday = day_number(year, month, 1) + 3  # 1970-01-01, day 0, is a Thursday
        return (day for day in self.days if day <= length and (sunday + day) % 7 in weekdays)


def is_crontab(text: str) -> bool:
    """Whether a text has the form of a crontab."""
    return text.strip() in NICKNAMES or len(text.split()) == 5


def _one_form(name: str, value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, Collection) and value and all(type(one) is int for one in value):
        return ",".join(map(str, sorted(set(value))))
    return _short(check_text(name, value, _FIELDS[name][2]))


@lru_cache(1_000)
def _short(text: str) -> str:
    """Return a field with names of three small letters: all that Celery reads of a name."""
    return _NAME(lambda name: name[0][:3], text.lower())


def _parse(name: str, text: str) -> tuple[int, ...]:
    number, least, example = _FIELDS[name]
    try:
        return _numbers(number, least, text)
    except (ValueError, ParseException):
        refuse(name, f"a crontab field of {least} to {least + number - 1}, like {example!r}", text)


@lru_cache(1_000)
def _numbers(number: int, least: int, text: str) -> tuple[int, ...]:
    if not all(map(_PART, text.split(","))):
        raise ValueError
    return tuple(sorted(crontab_parser(number, least).parse(text)))
