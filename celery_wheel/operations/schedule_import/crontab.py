"""Crontabs: their fields as numbers, and the reader of a file, whose lines become arguments of a task.

::

                      cron, rq-scheduler             APScheduler            here (``recurring.Crontab``)
    weekday 0         Sunday, as 7                   Monday                 Sunday
    day and weekday   cron: either, where both are   both                   both
                      limited; rq-scheduler: both

So a field becomes a list of numbers, and a rule of cron with both kinds of days becomes two rules of RFC 5545. A
schedule is named by its command. Cron forgets the instants that it missed, so catch-up is "none".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from celery_wheel.errors import FileUnusable, RecurrenceError, SettingError
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule, ImportOptions, NotImportable
from celery_wheel.recurring import Crontab, Recurrence, RRule, Spec
from celery_wheel.recurring.crontab import NICKNAMES
from celery_wheel.values.text import whole_number

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_PART = re.compile(r"(\*|\w+(?:-\w+)?)(?:/([0-9]{1,9}))?").fullmatch


def numbers(text: str, least: int, most: int, names: Sequence[str] = ()) -> list[int]:
    """Return the numbers that a field allows, in order. Raises NotImportable."""
    found: set[int] = set()
    for part in text.lower().split(","):
        match = _PART(part)
        if match is None:
            raise NotImportable(f"cron field {text!r} has a part that only its system knows: {part!r}")
        span, step = match[1], int(match[2] or 1)
        first, _, last = span.partition("-")
        if span == "*":
            low, high = least, most
        else:
            low = _number(first, least, names, text)
            high = _number(last, least, names, text) if last else most if match[2] else low
        if not least <= low <= high <= most or not step:
            raise NotImportable(f"cron field {text!r} must have numbers from {least} to {most}, got {part!r}")
        found.update(range(low, high + 1, step))
    return sorted(found)


def _number(text: str, least: int, names: Sequence[str], field: str) -> int:
    number = whole_number(text)
    if number is not None:
        return number
    if text[:3] in names:
        return least + names.index(text[:3])
    raise NotImportable(f"cron field {field!r} has an unknown name: {text!r}")


def spec_of(fields: str, *, either_day: bool) -> Spec:
    """Return the spec of the five fields of cron; ``either_day``: with both kinds of days, one is enough."""
    parts = NICKNAMES.get(fields.strip(), fields).split()
    if len(parts) != 5:
        raise NotImportable(f"a crontab must have five fields, got {fields!r}")
    minute, hour, day, month, weekday = parts
    minutes, hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
    days, months = numbers(day, 1, 31), numbers(month, 1, 12, MONTHS)
    weekdays = sorted({number % 7 for number in numbers(weekday, 0, 7, WEEKDAYS)})
    if either_day and not day.startswith("*") and not weekday.startswith("*"):
        return _either(minutes, hours, days, months, weekdays)
    return Crontab(_field(minutes, 60), _field(hours, 24), _field(weekdays, 7), _field(days, 31), _field(months, 12))


def _field(values: Sequence[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(map(str, values))


def _either(
    minutes: Sequence[int], hours: Sequence[int], days: Sequence[int], months: Sequence[int], weekdays: Sequence[int]
) -> RRule:
    def listed(values: Sequence[int]) -> str:
        return ",".join(map(str, values))

    times = f"BYMONTH={listed(months)};BYHOUR={listed(hours)};BYMINUTE={listed(minutes)};BYSECOND=0"
    named = ",".join(WEEKDAYS[number][:2].upper() for number in weekdays)
    start = "DTSTART:19700101T000000"
    return RRule(f"{start}\nRRULE:FREQ=DAILY;BYMONTHDAY={listed(days)};{times}\nRRULE:FREQ=DAILY;BYDAY={named};{times}")


_ASSIGNMENT = re.compile(r"""\s*(["']?)(\w+)\1\s*=\s*(["']?)(.*?)\3\s*""").fullmatch
_UNESCAPED_PERCENT = re.compile(r"(?<!\\)%").search


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    if options.file is None or not options.task:
        raise SettingError("a crontab must have --file and --task: the file, and the task that gets a command line")
    zone, names = options.zone, Counter[str]()
    for number, line in enumerate(_lines(options.file), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if (found := _ASSIGNMENT(text)) is not None:
            zone = found[4] if found[2] == "CRON_TZ" and not options.zone else zone
            continue
        try:
            schedule, command = _parts(text, options.system)
        except NotImportable as error:
            yield ForeignSchedule.refused(f"line {number}", error)
            continue
        names[command] += 1
        name = command[:120] + (f" #{names[command]}" if names[command] > 1 else "")
        try:
            yield _entry(name, schedule, command, zone or options.local_zone, options.task)
        except (NotImportable, RecurrenceError) as error:
            yield ForeignSchedule.refused(name, f"line {number}: {error}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileUnusable(f"{file} must be a readable crontab, got {error}; nothing was done") from error


def _parts(text: str, has_user: bool) -> tuple[str, str]:
    count = (1 if text.startswith("@") else 5) + has_user
    words = text.split(None, count)
    if len(words) <= count:
        shape = "a schedule, a user and a command" if has_user else "a schedule and a command"
        raise NotImportable(f"a line must have {shape}, got {text!r:.80}")
    return " ".join(words[: count - has_user]), words[-1].strip()


def _entry(name: str, schedule: str, command: str, zone: str, task: str) -> ForeignSchedule:
    if schedule == "@reboot":
        raise NotImportable("@reboot has no instants")
    if _UNESCAPED_PERCENT(command):
        raise NotImportable("its command has an input (the text after %), for which a task has no place")
    recurrence = Recurrence(spec_of(schedule, either_day=True), zone)
    return ForeignSchedule.of(name, recurrence, task, [command.replace("\\%", "%")], catch_up="none")
