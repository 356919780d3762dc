"""A recurrence for people: in words, and by its next instants.

::

    in_words(recurrence)     the spec, then its limits, then the calendar; the zone is shown elsewhere
        spec                 short words; or the fields or the rule themselves, where words would be long
        calendar             "except …", or "only on …" for the opposite of a calendar
    upcoming(recurrence, …)  2013-11-02 01:30  EDT                occurs
                             2013-11-03 01:30  EDT  clocks -1 h   occurs, on a day with a change of the offset
                             2013-11-04 01:30  EST  excluded      left out by the calendar; or a gap of the clocks

A page passes its ``gettext``: each text is translated as a whole, with its values as ``%(name)s``. Times are wall-clock
times of the recurrence's zone. Pure: "now" is an argument.
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
#: Longest text of a rule, in characters.
RULE_CUT = 120


def in_words(recurrence: Recurrence, gettext: Callable[[str], str] = str) -> str:
    """Return a recurrence as a short text; ``gettext`` translates its templates."""
    return _Words(gettext, recurrence.zone).of_recurrence(recurrence)


class _Words:
    def __init__(self, gettext: Callable[[str], str], zone: str) -> None:
        self.gettext = gettext
        self.zone = zone

    def of_recurrence(self, recurrence: Recurrence) -> str:
        gettext, found = self.gettext, [self.of_spec(recurrence.spec)]
        if recurrence.start_ms is not None:
            found.append(gettext("from %(time)s") % {"time": self.moment(recurrence.start_ms)})
        if recurrence.until_ms is not None:
            found.append(gettext("until %(time)s") % {"time": self.moment(recurrence.until_ms)})
        if recurrence.times is not None:
            found.append(gettext("at most %(number)s times") % {"number": f"{recurrence.times:,}"})
        if isinstance(recurrence.without, calendars.Except):
            found.append(gettext("only on %(days)s") % {"days": self.of_calendar(recurrence.without.calendar)})
        elif recurrence.without is not None:
            found.append(gettext("except %(days)s") % {"days": self.of_calendar(recurrence.without)})
        return ", ".join(found)

    # -- specs ---------------------------------------------------------------------------------------------

    def of_spec(self, spec: Spec) -> str:
        gettext = self.gettext
        if isinstance(spec, Interval):
            return gettext("every %(duration)s") % {"duration": format_duration(spec.every_ms)}
        if isinstance(spec, Crontab):
            return self.of_crontab(spec)
        if isinstance(spec, RRule):
            return self.of_rrule(spec)
        if isinstance(spec, Solar):
            place = f"{spec.latitude:g}, {spec.longitude:g}"
            return gettext("%(event)s at %(place)s") % {"event": self.event(spec.event), "place": place}
        if isinstance(spec, Instants):
            first, last = self.moment(spec.at_ms[0]), self.moment(spec.at_ms[-1])
            if len(spec.at_ms) == 1:
                return gettext("once, at %(time)s") % {"time": first}
            values = {"number": f"{len(spec.at_ms):,}", "first": first, "last": last}
            return gettext("%(number)s times from %(first)s to %(last)s") % values
        return type(spec).__name__

    def event(self, event: str) -> str:
        gettext = self.gettext
        return {
            "dawn_astronomical": gettext("astronomical dawn"),
            "dawn_nautical": gettext("nautical dawn"),
            "dawn_civil": gettext("civil dawn"),
            "sunrise": gettext("sunrise"),
            "solar_noon": gettext("solar noon"),
            "sunset": gettext("sunset"),
            "dusk_civil": gettext("civil dusk"),
            "dusk_nautical": gettext("nautical dusk"),
            "dusk_astronomical": gettext("astronomical dusk"),
        }[event]

    def of_crontab(self, spec: Crontab) -> str:
        gettext, days = self.gettext, []
        if len(spec.weekdays) < 7:
            days.append(gettext("on %(days)s") % {"days": self.weekdays((day - 1) % 7 for day in spec.weekdays)})
        if len(spec.days) < 31:
            listed = ", ".join(map(str, spec.days)) if len(spec.days) <= LISTED else printable(spec.day_of_month)
            days.append(gettext("on day %(days)s of the month") % {"days": listed})
        if len(spec.months) < 12:
            days.append(gettext("in %(months)s") % {"months": self.months(spec.months)})
        time = self.times(spec.times, bool(days))
        if time is None:
            values = {name: printable(getattr(spec, name)) for name in ("hour", "minute", "second")}
            time = gettext("at hour %(hour)s, minute %(minute)s, second %(second)s") % values
        return " ".join([time, *days])

    def of_rrule(self, spec: RRule) -> str:
        """Return words for one simple rule; the lines themselves for anything else."""
        rules = spec.rules
        found = None
        if len(rules.frequencies) == 1 and not rules.added and not rules.removed:
            found = self.of_frequency(rules.frequencies[0])
        return found or printable("; ".join(spec.text.split()), RULE_CUT)

    def of_frequency(self, rule: Frequency) -> str | None:
        gettext = self.gettext
        if rule.year_days or rule.week_numbers or rule.positions:
            return None
        found = [self.every(rule.freq, rule.interval)]
        for days in (self.weekdays_of(rule), self.month_days_of(rule)):
            if days is None:
                return None
            found += [days] if days else []
        if rule.months:
            found.append(gettext("in %(months)s") % {"months": self.months(rule.months)})
        if rule.freq in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY"):
            if (time := self.times(rule.times, True)) is None:
                return None
            found.append(time)
        elif rule.hours or rule.minutes or rule.seconds:
            return None
        else:
            found.append(gettext("from %(time)s") % {"time": f"{to_datetime(rule.start * 1_000):%Y-%m-%d %H:%M}"})
        if rule.until is not None:
            found.append(gettext("until %(time)s") % {"time": f"{to_datetime(rule.until * 1_000):%Y-%m-%d %H:%M}"})
        if rule.count is not None:
            found.append(gettext("at most %(number)s times") % {"number": f"{rule.count:,}"})
        return " ".join(found)

    def weekdays_of(self, rule: Frequency) -> str | None:
        """Return words for BYDAY: empty without it, None where there are no short ones."""
        gettext = self.gettext
        numbers = [number for number, _ in rule.weekdays]
        if not any(numbers):
            days = self.weekdays(day for _, day in rule.weekdays) if rule.weekdays else ""
            return days and gettext("on %(days)s") % {"days": days}
        texts = {
            1: gettext("on the first %(day)s"),
            2: gettext("on the second %(day)s"),
            3: gettext("on the third %(day)s"),
            4: gettext("on the fourth %(day)s"),
            -1: gettext("on the last %(day)s"),
        }
        if rule.freq != "MONTHLY" or len(numbers) > 1 or numbers[0] not in texts:
            return None
        return texts[numbers[0]] % {"day": self.weekdays([rule.weekdays[0][1]])}

    def month_days_of(self, rule: Frequency) -> str | None:
        """Return words for BYMONTHDAY, as ``weekdays_of``."""
        gettext, days = self.gettext, rule.month_days
        if days == (-1,):
            return gettext("on the last day of the month")
        if len(days) > LISTED or any(day < 0 for day in days):
            return None
        return gettext("on day %(days)s of the month") % {"days": ", ".join(map(str, days))} if days else ""

    def every(self, freq: str, interval: int) -> str:
        gettext = self.gettext
        one, many = {
            "YEARLY": (gettext("every year"), gettext("every %(number)s years")),
            "MONTHLY": (gettext("every month"), gettext("every %(number)s months")),
            "WEEKLY": (gettext("every week"), gettext("every %(number)s weeks")),
            "DAILY": (gettext("every day"), gettext("every %(number)s days")),
            "HOURLY": (gettext("every hour"), gettext("every %(number)s hours")),
            "MINUTELY": (gettext("every minute"), gettext("every %(number)s minutes")),
            "SECONDLY": (gettext("every second"), gettext("every %(number)s seconds")),
        }[freq]
        return one if interval == 1 else many % {"number": f"{interval:,}"}

    # -- times and days ------------------------------------------------------------------------------------

    def times(self, times: DayTimes, with_days: bool) -> str | None:
        """Return words for the times of a day; None where there are no short ones."""
        gettext = self.gettext
        hours, minutes, seconds = times.hours, times.minutes, times.seconds
        if times.count() <= LISTED:
            listed = ", ".join(_clock(times.nth(number)) for number in range(times.count()))
            text = gettext("at %(times)s") if with_days else gettext("every day at %(times)s")
            return text % {"times": listed}
        if len(seconds) > 1 and len(hours) == 24 and len(minutes) == 60 and (step := _step(seconds, 60)):
            return self.every("SECONDLY", step)
        if tuple(seconds) != (0,):
            return None
        if len(minutes) == 1 and (step := _step(hours, 24)):
            every = self.every("HOURLY", step)
            return every if minutes[0] == 0 else f"{every}, " + gettext("minute %(minute)s") % {"minute": minutes[0]}
        step = _step(minutes, 60)
        if not _is_contiguous(hours) or not (step or len(minutes) == 1):
            return None
        found = self.every("HOURLY", 1) if len(minutes) == 1 else self.every("MINUTELY", step or 1)
        if len(hours) == 24:
            return found
        values = {"first": _clock(times.nth(0)), "last": _clock(times.nth(times.count() - 1))}
        return f"{found} " + gettext("from %(first)s to %(last)s") % values

    def weekdays(self, days: Iterable[int]) -> str:
        """Return the names of weekdays, counted from Monday, 0."""
        gettext = self.gettext
        names = [
            *(gettext("Monday"), gettext("Tuesday"), gettext("Wednesday"), gettext("Thursday")),
            *(gettext("Friday"), gettext("Saturday"), gettext("Sunday")),
        ]
        return self.named(sorted(days), names)

    def months(self, months: Sequence[int]) -> str:
        gettext = self.gettext
        names = [
            *(gettext("January"), gettext("February"), gettext("March"), gettext("April"), gettext("May")),
            *(gettext("June"), gettext("July"), gettext("August"), gettext("September"), gettext("October")),
            *(gettext("November"), gettext("December")),
        ]
        return self.named([month - 1 for month in months], names)

    def named(self, numbers: Sequence[int], names: Sequence[str]) -> str:
        if len(numbers) > 2 and _is_contiguous(numbers):
            return self.gettext("%(first)s to %(last)s") % {"first": names[numbers[0]], "last": names[numbers[-1]]}
        return ", ".join(names[number] for number in numbers)

    def moment(self, at_ms: int) -> str:
        moment = to_datetime(wall_clock(zone_of(self.zone) or UTC).local(at_ms))
        text = f"{moment:%Y-%m-%d %H:%M:%S}"
        return text.removesuffix(":00")

    # -- calendars -----------------------------------------------------------------------------------------

    def of_calendar(self, calendar: calendars.Calendar) -> str:
        gettext = self.gettext
        if isinstance(calendar, calendars.Weekdays):
            return self.weekdays(calendars.WEEKDAYS.index(day) for day in calendar.days)
        if isinstance(calendar, calendars.Dates):
            if len(calendar.dates) <= LISTED:
                return ", ".join(map(str, calendar.dates))
            return gettext("%(number)s dates") % {"number": f"{len(calendar.dates):,}"}
        if isinstance(calendar, calendars.Holidays | calendars.BusinessDays):
            values = {"place": "-".join(filter(None, (calendar.country, calendar.subdivision)))}
            is_holidays = isinstance(calendar, calendars.Holidays)
            return (gettext("holidays of %(place)s") if is_holidays else gettext("business days of %(place)s")) % values
        if isinstance(calendar, calendars.OfSpec):
            values = {"duration": format_duration(calendar.lasts_ms), "spec": self.of_spec(calendar.spec)}
            return gettext("%(duration)s %(spec)s") % values
        if isinstance(calendar, calendars.AnyOf):
            return ", ".join(map(self.of_calendar, calendar.parts))
        if isinstance(calendar, calendars.AllOf):
            first, *others = map(self.of_calendar, calendar.parts)
            for other in others:
                first = gettext("%(days)s and %(others)s") % {"days": first, "others": other}
            return first
        if isinstance(calendar, calendars.Except):
            return gettext("all but %(days)s") % {"days": self.of_calendar(calendar.calendar)}
        return type(calendar).__name__


def _clock(second: int) -> str:
    minute, rest = divmod(second, 60)
    return f"{minute // 60:02}:{minute % 60:02}" + (f":{rest:02}" if rest else "")


def _is_contiguous(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _step(values: Sequence[int], size: int) -> int | None:
    """Return the step of values from 0 that divide ``size`` evenly; None where there is none."""
    step = size // len(values)
    return step if list(values) == list(range(0, size, step)) and size % step == 0 else None


#: Most instants that are searched for left-out ones.
SEARCHED = 200
#: Most left-out instants that are returned.
LEFT_OUT = 40
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
