"""Rules of RFC 5545: DTSTART, RRULE, RDATE and EXDATE, as a calendar exports them.

::

    DTSTART:20260105T090000                          wall-clock time in the recurrence's zone
    RRULE:FREQ=WEEKLY;BYDAY=MO,WE;COUNT=20           one or more; ``frequency`` steps through it by fields
    RDATE:20260106T090000,20260108T090000            occurrences besides those of the rules
    EXDATE:20260112T090000                           occurrences that do not run; COUNT counts them

The rules mean what they mean in dateutil, with which the tests compare them. As there, DTSTART itself occurs only where
a rule or RDATE has it, and times are whole seconds up to 59. dateutil walks from DTSTART, and for a rule that never
fires to the year 9999; this package steps by fields, so a rule of 2000 answers as fast as one of today.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar

from celery_wheel.recurring.checks import MAX_LIST, check_text, refuse
from celery_wheel.recurring.frequency import FREQUENCIES, WEEKDAYS, Frequency
from celery_wheel.recurring.specs import Spec


@dataclass(frozen=True, slots=True)
class RRule(Spec):
    """The wall-clock times of a text of RFC 5545."""

    is_local: ClassVar[bool] = True

    text: str
    rules: RuleSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", read_rules(self.text, None))

    def in_zone(self, zone: tzinfo) -> RRule:
        """Return the rules with each UNTIL that is an instant (``UNTIL=…Z``) as a wall-clock time of the zone."""
        if not self.rules.has_utc:
            return self
        spec = RRule.__new__(RRule)
        object.__setattr__(spec, "text", self.text)
        object.__setattr__(spec, "rules", read_rules(self.text, zone))
        return spec

    def next_after(self, at_ms: int) -> int | None:
        rules, second = self.rules, at_ms // 1_000 + 1
        while True:
            found = [one for rule in rules.frequencies if (one := rule.next_from(second)) is not None]
            index = bisect_left(rules.added, second)
            found += rules.added[index : index + 1]
            if not found:
                return None
            if (first := min(found)) not in rules.removed:
                return first * 1_000
            second = first + 1


_EXAMPLE = "DTSTART:20260105T090000\nRRULE:FREQ=DAILY"
_TIME = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?").fullmatch
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)").fullmatch
#: Part → (field, least, greatest, whether negative numbers count from the end).
_NUMBERS = {
    "BYMONTH": ("months", 1, 12, False),
    "BYMONTHDAY": ("month_days", 1, 31, True),
    "BYYEARDAY": ("year_days", 1, 366, True),
    "BYWEEKNO": ("week_numbers", 1, 53, True),
    "BYHOUR": ("hours", 0, 23, False),
    "BYMINUTE": ("minutes", 0, 59, False),
    "BYSECOND": ("seconds", 0, 59, False),
    "BYSETPOS": ("positions", 1, 366, True),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_NUMBERS)
_INSTEAD = {
    "EXRULE": "RFC 5545 has no EXRULE; exclude with without=OfSpec(RRule(...))",
    "DURATION": "an occurrence is an instant",
    "DTEND": "an occurrence is an instant",
}


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A text as numbers: seconds of the wall clock since 1970."""

    frequencies: tuple[Frequency, ...]
    added: tuple[int, ...]
    removed: frozenset[int]
    has_utc: bool  #: an UNTIL is an instant, and means a wall-clock time only in a zone


def read_rules(text: Any, zone: tzinfo | None) -> RuleSet:
    """Read DTSTART, RRULE, RDATE and EXDATE. ``zone`` is that of instants; None reads them as UTC."""
    lines: dict[str, list[str]] = {"DTSTART": [], "RRULE": [], "RDATE": [], "EXDATE": []}
    # A line that begins with a space continues the line before.
    for line in re.sub(r"\r?\n[ \t]", "", check_text("text", text, _EXAMPLE)).split():
        name, colon, value = line.partition(":")
        name, _, parameters = name.upper().partition(";")
        if not colon and line.upper().startswith("FREQ="):
            name, parameters, value = "RRULE", "", line
        if name not in lines:
            because = f" ({_INSTEAD[name]})" if name in _INSTEAD else ""
            refuse("text", f"lines of DTSTART, RRULE, RDATE and EXDATE{because}", line)
        if parameters not in ("", "VALUE=DATE-TIME", "VALUE=DATE"):
            rule = "without TZID and periods: its times are wall-clock times of the recurrence's zone"
            refuse(name, rule, line)
        lines[name].append(value.upper())
    if len(lines["DTSTART"]) != 1:
        refuse("text", f"a text with one DTSTART, from which the rules count, like {_EXAMPLE!r}", text)
    if not lines["RRULE"] and not lines["RDATE"]:
        refuse("text", f"a text with an RRULE or an RDATE, like {_EXAMPLE!r}", text)
    start = _local_second("DTSTART", lines["DTSTART"][0])
    rules = [_read_parts(value) for value in lines["RRULE"]]
    return RuleSet(
        tuple(_read_frequency(parts, start, zone) for parts in rules),
        tuple(sorted(_local_seconds("RDATE", lines["RDATE"]))),
        frozenset(_local_seconds("EXDATE", lines["EXDATE"])),
        any(parts.get("UNTIL", "").endswith("Z") for parts in rules),
    )


def _local_seconds(name: str, values: list[str]) -> set[int]:
    items = [item for value in values for item in value.split(",")]
    if len(items) > MAX_LIST:
        refuse(name, f"a list of at most {MAX_LIST:,} times", f"{len(items):,} of them")
    return {_local_second(name, item) for item in items}


def _local_second(name: str, value: str) -> int:
    at, is_utc = _read_time(name, value)
    if is_utc:
        refuse(name, "a wall-clock time of the recurrence's zone, without Z", value)
    return int(at.timestamp())


def _read_time(name: str, value: str) -> tuple[datetime, bool]:
    if found := _TIME(value):
        try:
            at = datetime.strptime(f"{found[1]}T{found[2] or '000000'}", "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        except ValueError:
            pass
        else:
            if 1_000 <= at.year <= 9_998:
                return at, found[3] == "Z"
    refuse(name, "a time like 20260105T090000", value)


def _read_parts(value: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in value.rstrip(";").split(";"):
        name, equals, content = part.partition("=")
        if name not in _PARTS or not equals or not content or name in parts:
            refuse("RRULE", f"parts NAME=value, each once, with a name of {', '.join(_PARTS)}", part)
        parts[name] = content
    if parts.get("FREQ") not in FREQUENCIES:
        refuse("FREQ", f"one of {', '.join(FREQUENCIES)}", parts.get("FREQ"))
    return parts


def _read_frequency(parts: dict[str, str], start: int, zone: tzinfo | None) -> Frequency:
    fields: dict[str, Any] = {
        _NUMBERS[name][0]: _read_numbers(name, value) for name, value in parts.items() if name in _NUMBERS
    }
    fields["weekdays"] = tuple(_read_weekday(item) for item in parts["BYDAY"].split(",")) if "BYDAY" in parts else ()
    if "WKST" in parts:
        if parts["WKST"] not in WEEKDAYS:
            refuse("WKST", f"one of {', '.join(WEEKDAYS)}", parts["WKST"])
        fields["week_start"] = WEEKDAYS.index(parts["WKST"])
    if "UNTIL" in parts:
        if "COUNT" in parts:
            refuse("RRULE", "a rule with UNTIL or COUNT, not both", parts["UNTIL"])
        fields["until"] = _read_until(parts["UNTIL"], zone)
    for name, limit in (("INTERVAL", 1_000_000_000), ("COUNT", MAX_LIST)):
        if name in parts:
            fields[name.lower()] = _read_number(name, parts[name], 1, limit, False)
    return Frequency(parts["FREQ"], start, **fields)


def _read_until(value: str, zone: tzinfo | None) -> int:
    at, is_utc = _read_time("UNTIL", value)
    if "T" not in value:
        refuse("UNTIL", f"a time, like {value}T235959: a date means its midnight to some and its end to others", value)
    if is_utc and zone is not None:
        at = at.astimezone(zone).replace(tzinfo=UTC)
    return int(at.timestamp())


def _read_numbers(name: str, value: str) -> tuple[int, ...]:
    _, least, greatest, both = _NUMBERS[name]
    return tuple(sorted({_read_number(name, item, least, greatest, both) for item in value.split(",")}))


def _read_number(name: str, value: str, least: int, greatest: int, both: bool) -> int:
    number = int(value) if re.fullmatch(r"[+-]?\d{1,10}", value) else None
    if number is None or not least <= (abs(number) if both else number) <= greatest:
        refuse(
            name, f"whole numbers from {least} to {greatest:,}" + (", or from the end with -" if both else ""), value
        )
    return number


def _read_weekday(value: str) -> tuple[int, int]:
    """Return (number of the weekday in its month or year, 0 for each; weekday, Monday is 0)."""
    found = _WEEKDAY(value)
    number = int(found[1] or 0) if found else 0
    if not found or (found[1] and not 1 <= abs(number) <= 53):
        refuse("BYDAY", "weekdays like MO or -1FR", value)
    return number, WEEKDAYS.index(found[2])
