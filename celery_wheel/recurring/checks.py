"""The checks of a definition: each failure names the field, the rule and the value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, NoReturn

from celery_wheel.errors import RecurrenceError
from celery_wheel.values.format import format_duration
from celery_wheel.values.instants import ceil_ms
from celery_wheel.values.text import END_OF_TIME_MS

#: The longest list of instants, dates, RDATE, EXDATE or COUNT in a definition, which is read whole at each use.
MAX_LIST = 10_000


def refuse(field: str, rule: str, value: Any) -> NoReturn:
    raise RecurrenceError(f"{field} must be {rule}, got {value!r:.100}")


def check_whole(field: str, value: Any, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return ``value``, a whole number; True and False are not."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (at_least is not None and value < at_least)
        or (at_most is not None and value > at_most)
    ):
        limits = [f"of at least {at_least:,}"] if at_least is not None else []
        limits += [f"of at most {at_most:,}"] if at_most is not None else []
        refuse(field, " ".join(["a whole number", " and ".join(limits)]).strip(), value)
    return value


def check_instant(field: str, value: Any) -> int:
    """Return an instant as Unix milliseconds; a datetime needs a time zone, and is rounded up as an eta is."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            refuse(field, "a datetime with a time zone, as of value.replace(tzinfo=ZoneInfo('Europe/Paris'))", value)
        value = ceil_ms(value)
    return check_whole(field, value, 0, END_OF_TIME_MS - 1)


def check_duration(field: str, value: Any, at_least_ms: int, at_most_ms: int) -> int:
    """Return ``value``, whole milliseconds. The sentence has units, since users may have given another unit."""
    whole = check_whole(field, value)
    if not at_least_ms <= whole <= at_most_ms:
        limit, ms = ("at least", at_least_ms) if whole < at_least_ms else ("at most", at_most_ms)
        raise RecurrenceError(f"{field} must be {limit} {format_duration(ms)}, got {format_duration(whole)}")
    return whole


def check_text(field: str, value: Any, example: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(field, f"a text like {example!r}", value)
    return value


def check_choice(field: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        refuse(field, f"one of {', '.join(choices)}", value)
    return value


def check_type(field: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        refuse(field, f"a {kind.__name__}", value)


def check_names(path: str, values: Mapping[Any, Any], known: Iterable[str], what: str) -> None:
    """Refuse a name of ``values``, which stand at ``path``, that is not known."""
    names = tuple(known)
    for name, value in values.items():
        if name not in names:
            close = get_close_matches(str(name), names, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            refuse(join(path, str(name)), f"{what} ({hint})", value)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def check_list(field: str, value: Any, content: str) -> tuple[Any, ...]:
    """Return a list's items as a tuple; a text is not a list."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        refuse(field, f"a list of {content}", value)
    items = tuple(value)
    if not 0 < len(items) <= MAX_LIST:
        refuse(field, f"a list of 1 to {MAX_LIST:,} {content}", f"{len(items):,} of them")
    return items
