"""Parameters of commands: filters, instants, lengths of time and cursors; a wrong one is refused with its rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import click

from celery_wheel.values.format import to_datetime
from celery_wheel.values.instants import ms_of
from celery_wheel.values.instants import now_ms as now_ms
from celery_wheel.values.text import whole_number

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_RELATIVE = re.compile(r"([+-])((?:\d{1,9}(?:ms|[smhdw]))+)").fullmatch
_LENGTH = re.compile(r"(?:\d{1,9}(?:ms|[smhdw]))+").fullmatch
_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?").fullmatch
_PART = re.compile(r"(\d+)(ms|[smhdw])")
#: From 1973 to 5138: a number of seconds, or a date without dashes, would silently be another instant.
_MILLISECONDS = range(10**11, 10**14)
#: The database's largest whole number is beyond 18 digits.
_CURSOR = re.compile(r"(\d{1,18}):(\d{1,18})").fullmatch


class InstantParameter(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """An instant of the calendar, as Unix milliseconds: 2027-01-15T08:00 (UTC, or an offset), now, +30m, -1h30m."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        at_ms = _instant(text)
        if at_ms is None or at_ms < 0 or to_datetime(at_ms) is None:
            self.fail(
                f"must be like 2027-01-15T08:00 (UTC, or with an offset: +01:00), 1800000000000 (Unix milliseconds), "
                f"now, +30m or -1h30m, got {text!r}",
                param,
                ctx,
            )
        return at_ms


def _instant(text: str) -> int | None:
    if text == "now":
        return now_ms()
    if found := _RELATIVE(text):
        length_ms = _length_ms(found[2])
        return now_ms() - length_ms if found[1] == "-" else now_ms() + length_ms
    number = whole_number(text)
    if number is not None:
        return number if number in _MILLISECONDS else None
    try:
        moment = datetime.fromisoformat(text)
        return ms_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


class DurationParameter(click.ParamType):  # type: ignore[type-arg]
    """A length of time, as seconds: 90, 90s, 10m, 1h30m, 2d."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return value
        text = str(value).strip()
        if _SECONDS(text):
            return float(text)
        if _LENGTH(text):
            return _length_ms(text) / 1_000
        self.fail(f"must be a length of time like 90 (seconds), 10m, 1h30m or 2d, got {text!r}", param, ctx)


def _length_ms(text: str) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))


class CursorParameter(click.ParamType):  # type: ignore[type-arg]
    """The position after which a page begins: (milliseconds, number)."""

    name = "cursor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = _CURSOR(str(value).strip())
        if found is None:
            self.fail(f"must be a cursor that a page printed, like 1800000000000:4352, got {value!r}", param, ctx)
        return int(found[1]), int(found[2])


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


length = partial(click.option, type=DurationParameter())
instant = partial(click.option, type=InstantParameter())
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
shard = click.option("--shard", type=click.IntRange(0), help="Only this shard.")
names = all_of(
    click.option("--task", help="Only tasks of this name."),
    click.option("--queue", help="Only tasks for this queue (or with this routing key, where they name no queue)."),
)
group = click.option("--group", help="Only tasks of this group.")
span = all_of(
    instant("--from", "from_ms", help="From this instant on: ISO 8601, Unix ms, now, +30m, -1h."),
    instant("--to", "to_ms", help="Before this instant."),
)
_limit = click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Lines of a page.")
_pages = all_of(
    click.option("--all", "whole", is_flag=True, help="All pages, as they are read; --json then is JSON Lines."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --all one on each line."),
)
_after = click.option("--after", type=CursorParameter(), help="Cursor printed by the previous page.")
#: The options of a list of tasks.
listing = all_of(names, group, shard, span, _limit, _after, _pages)
paging_by_name = all_of(_limit, click.option("--after", help="Name printed by the previous page."), _pages)
#: The options of every request to the schedulers.
request = all_of(
    click.option("--reason", default="", help="Reason, kept with the tasks or schedules and shown to people."),
    length(
        "--timeout",
        default=10,
        show_default=True,
        help="Time to wait for the schedulers' answers: seconds, or a length like 1m.",
    ),
    as_json,
)
yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def taken(params: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take options of these names out of a command's, and return those that were given."""
    found = {name: params.pop(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def take_criteria(options: dict[str, Any]) -> dict[str, Any]:
    """Take the filters out of a command's options, and return them as ``Wheel``'s methods accept them.

    Raises BadParameter for a span that no instant is in.
    """
    filters = ("shard", "task", "queue", "key", "group", "from_ms", "to_ms")
    criteria = {name: options.pop(name) for name in filters if name in options}
    from_ms, to_ms = criteria.get("from_ms"), criteria.get("to_ms")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.BadParameter("must be after --from", param_hint="--to")
    return criteria
