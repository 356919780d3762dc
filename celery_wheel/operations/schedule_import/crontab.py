"""A crontab file: each command line becomes the argument of the task that the user names.

::

    CRON_TZ=Europe/Paris
    30 2 * * 1-5  /usr/bin/report --all       ─►  run_command("/usr/bin/report --all"), at 02:30 on weekdays in Paris

A schedule is named by its command, since cron names nothing. Cron's own rules: where day and weekday are both limited,
either is enough; Sunday is 0 and 7. Cron forgets the instants that it missed, so catch-up is "none".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from celery_wheel.errors import FileUnusable, RecurrenceError, SettingError
from celery_wheel.operations.schedule_import.cron import spec_of
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule, NotImportable, foreign, refused
from celery_wheel.operations.schedule_import.options import ImportOptions
from celery_wheel.recurring import Recurrence

#: A name is shown in a column.
NAME_CUT = 120

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
            yield refused(f"line {number}", error)
            continue
        names[command] += 1
        name = command[:NAME_CUT] + (f" #{names[command]}" if names[command] > 1 else "")
        try:
            yield _entry(name, schedule, command, zone or options.local_zone, options.task)
        except (NotImportable, RecurrenceError) as error:
            yield refused(name, f"line {number}: {error}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileUnusable(f"{file} must be a readable crontab, got {error}; nothing was done") from error


def _parts(text: str, has_user: bool) -> tuple[str, str]:
    """Return the schedule and the command of a line."""
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
    return foreign(name, recurrence, task, [command.replace("\\%", "%")], catch_up="none")
