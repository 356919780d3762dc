"""A recurrence for people: in words, and by its next instants.

The words are short, or the fields or the rule themselves where words would be long; the zone is shown elsewhere. A page
passes its ``gettext``: each text is translated as a whole, with its values as ``%(name)s``. Times are wall-clock times
of the recurrence's zone. Pure: "now" is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import islice
from typing import Literal

from celery_wheel.recurring import calendars
from celery_wheel.recurring.crontab import Crontab
from celery_wheel.recurring.frequency import Frequency
from celery_wheel.recurring.local import WallClock, wall_clock, zone_of
from celery_wheel.recurring.recurrence import Recurrence
from celery_wheel.recurring.rrule import RRule
from celery_wheel.recurring.solar import Solar
from celery_wheel.recurring.specs import DayTimes, Instants, Interval, Spec
from celery_wheel.values.format import format_duration, printable, to_datetime

#: Most times, days or dates that are listed.
LISTED = 4


def in_words(recurrence: Recurrence, gettext: Callable[[str], str] = str) -> str:
    """Return a recurrence as a short text; ``gettext`` translates its templates."""
    return _Words(gettext, recurrence.zone).of_recurrence(recurrence)


_EVENTS = {
    "dawn_astronomical": "astronomical dawn",
    "dawn_nautical": "nautical dawn",
    "dawn_civil": "civil dawn",
    "sunrise": "sunrise",
    "solar_noon": "solar noon",
    "sunset": "sunset",
    "dusk_civil": "civil dusk",
    "dusk_nautical": "nautical dusk",
    "dusk_astronomical": "astronomical dusk",
}
_EVERY = {
    "YEARLY": ("every year", "every %(number)s years"),
    "MONTHLY": ("every month", "every %(number)s months"),
    "WEEKLY": ("every week", "every %(number)s weeks"),
    "DAILY": ("every day", "every %(number)s days"),
    "HOURLY": ("every hour", "every %(number)s hours"),
    "MINUTELY": ("every minute", "every %(number)s minutes"),
    "SECONDLY": ("every second", "every %(number)s seconds"),
}
_ORDINALS = {
    **{1: "on the first %(day)s", 2: "on the second %(day)s", 3: "on the third %(day)s", 4: "on the fourth %(day)s"},
    -1: "on the last %(day)s",
}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class _Words:
    def __init__(self, gettext: Callable[[str], str], zone: str) -> None:
        self.gettext = gettext
        self.zone = zone

    def say(self, template: str, **values: str) -> str:
        return self.gettext(template) % values

    def of_recurrence(self, recurrence: Recurrence) -> str:
        found = [self.of_spec(recurrence.spec)]
        if recurrence.start_ms is not None:
            found.append(self.say("from %(time)s", time=self.moment(recurrence.start_ms)))
        if recurrence.until_ms is not None:
            found.append(self.say("until %(time)s", time=self.moment(recurrence.until_ms)))
        if recurrence.times is not None:
            found.append(self.say("at most %(number)s times", number=f"{recurrence.times:,}"))
        if isinstance(recurrence.without, calendars.Except):
            found.append(self.say("only on %(days)s", days=self.of_calendar(recurrence.without.calendar)))
        elif recurrence.without is not None:
            found.append(self.say("except %(days)s", days=self.of_calendar(recurrence.without)))
        return ", ".join(found)

    # -- specs ---------------------------------------------------------------------------------------------

    def of_spec(self, spec: Spec) -> str:
        if isinstance(spec, Interval):
            return self.say("every %(duration)s", duration=format_duration(spec.every_ms))
        if isinstance(spec, Crontab):
            return self.of_crontab(spec)
        if isinstance(spec, RRule):
            rules = spec.rules
            is_simple = len(rules.frequencies) == 1 and not rules.added and not rules.removed
            found = self.of_frequency(rules.frequencies[0]) if is_simple else None
            return found or printable("; ".join(spec.text.split()), 120)
        if isinstance(spec, Solar):
            place = f"{spec.latitude:g}, {spec.longitude:g}"
            return self.say("%(event)s at %(place)s", event=self.say(_EVENTS[spec.event]), place=place)
        if isinstance(spec, Instants):
            first, last = self.moment(spec.at_ms[0]), self.moment(spec.at_ms[-1])
            if len(spec.at_ms) == 1:
                return self.say("once, at %(time)s", time=first)
            number = f"{len(spec.at_ms):,}"
            return self.say("%(number)s times from %(first)s to %(last)s", number=number, first=first, last=last)
        return type(spec).__name__

    def of_crontab(self, spec: Crontab) -> str:
        days = []
        if len(spec.weekdays) < 7:
            days.append(self.say("on %(days)s", days=self.weekdays((day - 1) % 7 for day in spec.weekdays)))
        if len(spec.days) < 31:
            listed = ", ".join(map(str, spec.days)) if len(spec.days) <= LISTED else printable(spec.day_of_month)
            days.append(self.say("on day %(days)s of the month", days=listed))
        if len(spec.months) < 12:
            days.append(self.months(spec.months))
        time = self.times(spec.times, bool(days))
        if time is None:
            fields = {name: printable(getattr(spec, name)) for name in ("hour", "minute", "second")}
            time = self.say("at hour %(hour)s, minute %(minute)s, second %(second)s", **fields)
        return " ".join([time, *days])

    def of_frequency(self, rule: Frequency) -> str | None:
        if rule.year_days or rule.week_numbers or rule.positions:
            return None
        found = [self.every(rule.freq, rule.interval), self.weekdays_of(rule), self.month_days_of(rule)]
        found.append(self.months(rule.months) if rule.months else "")
        if rule.freq in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY"):
            found.append(self.times(rule.times, True))
        else:
            is_plain = not (rule.hours or rule.minutes or rule.seconds)
            found.append(self.say("from %(time)s", time=_minute(rule.start)) if is_plain else None)
        if rule.until is not None:
            found.append(self.say("until %(time)s", time=_minute(rule.until)))
        if rule.count is not None:
            found.append(self.say("at most %(number)s times", number=f"{rule.count:,}"))
        return None if None in found else " ".join(filter(None, found))

    def weekdays_of(self, rule: Frequency) -> str | None:
        """Return words for BYDAY: empty without it, None where there are no short ones."""
        numbers = [number for number, _ in rule.weekdays]
        if not any(numbers):
            return self.say("on %(days)s", days=self.weekdays(day for _, day in rule.weekdays)) if numbers else ""
        if rule.freq != "MONTHLY" or len(numbers) > 1 or numbers[0] not in _ORDINALS:
            return None
        return self.say(_ORDINALS[numbers[0]], day=self.weekdays([rule.weekdays[0][1]]))

    def month_days_of(self, rule: Frequency) -> str | None:
        """Return words for BYMONTHDAY, as ``weekdays_of``."""
        days = rule.month_days
        if days == (-1,):
            return self.say("on the last day of the month")
        if len(days) > LISTED or any(day < 0 for day in days):
            return None
        return self.say("on day %(days)s of the month", days=", ".join(map(str, days))) if days else ""

    def every(self, freq: str, interval: int) -> str:
        one, many = _EVERY[freq]
        return self.say(one) if interval == 1 else self.say(many, number=f"{interval:,}")

    # -- times and days ------------------------------------------------------------------------------------

    def times(self, times: DayTimes, with_days: bool) -> str | None:
        """Return words for the times of a day; None where there are no short ones."""
        hours, minutes, seconds = times.hours, times.minutes, times.seconds
        if times.count() <= LISTED:
            listed = ", ".join(_clock(times.nth(number)) for number in range(times.count()))
            return self.say("at %(times)s" if with_days else "every day at %(times)s", times=listed)
        if len(seconds) > 1 and len(hours) == 24 and len(minutes) == 60 and (step := _step(seconds, 60)):
            return self.every("SECONDLY", step)
        if tuple(seconds) != (0,):
            return None
        if len(minutes) == 1 and (step := _step(hours, 24)):
            every = self.every("HOURLY", step)
            return every if minutes[0] == 0 else f"{every}, {self.say('minute %(minute)s', minute=str(minutes[0]))}"
        step = _step(minutes, 60)
        if not _is_contiguous(hours) or not (step or len(minutes) == 1):
            return None
        found = self.every("HOURLY", 1) if len(minutes) == 1 else self.every("MINUTELY", step or 1)
        if len(hours) == 24:
            return found
        first, last = _clock(times.nth(0)), _clock(times.nth(times.count() - 1))
        return f"{found} {self.say('from %(first)s to %(last)s', first=first, last=last)}"

    def weekdays(self, days: Iterable[int]) -> str:
        """Return the names of weekdays, counted from Monday, 0."""
        return self.named(sorted(days), _WEEKDAYS)

    def months(self, months: Sequence[int]) -> str:
        return self.say("in %(months)s", months=self.named([month - 1 for month in months], _MONTHS))

    def named(self, numbers: Sequence[int], names: Sequence[str]) -> str:
        texts = [self.say(names[number]) for number in numbers]
        if len(numbers) > 2 and _is_contiguous(numbers):
            return self.say("%(first)s to %(last)s", first=texts[0], last=texts[-1])
        return ", ".join(texts)

    def moment(self, at_ms: int) -> str:
        moment = to_datetime(wall_clock(zone_of(self.zone) or UTC).local(at_ms))
        text = f"{moment:%Y-%m-%d %H:%M:%S}"
        return text.removesuffix(":00")

    # -- calendars -----------------------------------------------------------------------------------------

    def of_calendar(self, calendar: calendars.Calendar) -> str:
        if isinstance(calendar, calendars.Weekdays):
            return self.weekdays(calendars.WEEKDAYS.index(day) for day in calendar.days)
        if isinstance(calendar, calendars.Dates):
            if len(calendar.dates) <= LISTED:
                return ", ".join(map(str, calendar.dates))
            return self.say("%(number)s dates", number=f"{len(calendar.dates):,}")
        if isinstance(calendar, calendars.Holidays | calendars.BusinessDays):
            place = "-".join(filter(None, (calendar.country, calendar.subdivision)))
            is_holidays = isinstance(calendar, calendars.Holidays)
            return self.say("holidays of %(place)s" if is_holidays else "business days of %(place)s", place=place)
        if isinstance(calendar, calendars.OfSpec):
            duration = format_duration(calendar.lasts_ms)
            return self.say("%(duration)s %(spec)s", duration=duration, spec=self.of_spec(calendar.spec))
        if isinstance(calendar, calendars.AnyOf):
            return ", ".join(map(self.of_calendar, calendar.parts))
        if isinstance(calendar, calendars.AllOf):
            first, *others = map(self.of_calendar, calendar.parts)
            for other in others:
                first = self.say("%(days)s and %(others)s", days=first, others=other)
            return first
        if isinstance(calendar, calendars.Except):
            return self.say("all but %(days)s", days=self.of_calendar(calendar.calendar))
        return type(calendar).__name__


def _minute(second: int) -> str:
    return f"{to_datetime(second * 1_000):%Y-%m-%d %H:%M}"


def _clock(second: int) -> str:
    minute, rest = divmod(second, 60)
    return f"{minute // 60:02}:{minute % 60:02}" + (f":{rest:02}" if rest else "")


def _is_contiguous(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _step(values: Sequence[int], size: int) -> int | None:
    """Return the step of values from 0 that divide ``size`` evenly; None where there is none."""
    step = size // len(values)
    return step if list(values) == list(range(0, size, step)) and size % step == 0 else None


#: Most instants that are searched for left-out ones, and most of these that are returned.
SEARCHED, LEFT_OUT = 200, 40
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class UpcomingInstant:
    at_ms: int
    left_out: Literal["excluded", "gap"] | None  #: why it does not occur; None: it occurs
    shift_ms: int  #: by how much the clocks of the zone change on its day; 0: they do not


def upcoming(recurrence: Recurrence, at_ms: int, n: int, made: int = 0) -> list[UpcomingInstant]:
    """Return the next ``n`` occurrences after an instant, and instants that are left out before the last of them."""
    occurs = recurrence.preview(at_ms, n, made)
    left_out = _left_out(recurrence, at_ms, occurs[-1]) if occurs else {}
    clock = wall_clock(zone_of(recurrence.zone) or UTC)
    reasons = {**dict.fromkeys(occurs), **left_out}
    return [UpcomingInstant(at, reasons[at], day_shift(clock, at)) for at in sorted(reasons)]


def _left_out(recurrence: Recurrence, after_ms: int, upto_ms: int) -> dict[int, Literal["excluded", "gap"] | None]:
    if recurrence.without is None and recurrence.gap != "skip":
        return {}
    bare = replace(recurrence, without=None, gap="shift", times=None)
    reasons = ((at, recurrence.why_not(at)) for at in islice(bare.between(after_ms, upto_ms), SEARCHED))
    return dict(islice(((at, reason) for at, reason in reasons if reason is not None), LEFT_OUT))


def day_shift(clock: WallClock, at_ms: int) -> int:
    """Return by how much a zone's clocks are put forward on the day of an instant; negative where they go back."""
    segment, day = clock.segment(at_ms), clock.local(at_ms) // _DAY_MS
    if segment.gap_ms and day in _days_of(segment.start_ms, segment.before_ms, segment.offset_ms):
        return segment.gap_ms
    if day in _days_of(segment.end_ms, segment.offset_ms, segment.after_ms):
        return segment.after_ms - segment.offset_ms
    return 0


def _days_of(change_ms: int, *offsets_ms: int) -> set[int]:
    """Return the days of a change: the day on which it begins, and the day to which it leads."""
    return {(change_ms + offset_ms) // _DAY_MS for offset_ms in offsets_ms}
