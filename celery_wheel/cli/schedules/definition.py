"""The options of a definition, as arguments of ``app.wheel.schedules``.

::

    --every 90s | --cron "30 2 * * mon-fri" | --rrule RRULE:FREQ=… | --at … --at …      one of them
    --zone, --gap, --fold, --start, --until, --times, --without
    --task, --args, --kwargs, --queue, --priority, --expires, --option headers='{"a": "b"}'
    --catch-up, --catch-up-window, --overlap, --max-runtime, --jitter, --jitter-by
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from celery_wheel.console import parameters as options
from celery_wheel.errors import RecurrenceError
from celery_wheel.values.format import to_datetime

F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("every", "cron", "rrule", "at")


class JsonParameter(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A JSON value of a kind, like a list."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self.kind):
            return value
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, self.kind):
            self.fail(f"must be JSON, {self.name}, got {value!r:.60}", param, ctx)
        return found


class OptionParameter(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE; a value that is not JSON is a text."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"must be like shadow=nightly, got {value!r:.60}", param, ctx)
        try:
            return name, json.loads(text)
        except ValueError:
            return name, text


recurrence = options.all_of(
    click.option("--every", type=options.DurationParameter(), help="Interval: seconds, or a time like 90s or 1h30m."),
    click.option(
        "--cron",
        metavar="FIELDS",
        help="Minute, hour, day of month, month and day of week, as in '30 2 * * mon-fri', or @daily. A day must match "
        "both day fields.",
    ),
    click.option("--rrule", metavar="RULES", help="Lines of RFC 5545: DTSTART and RRULE, RDATE, EXDATE."),
    click.option("--at", type=options.InstantParameter(), multiple=True, help="An instant; may be repeated."),
    click.option("--zone", help="Time zone, like Europe/Berlin; by default that of the app."),
    click.option("--gap", type=click.Choice(["shift", "skip"]), help="Rule for times that the clocks skip."),
    click.option("--fold", type=click.Choice(["first", "second", "both"]), help="Rule for times that occur twice."),
    click.option(
        "--start", type=options.InstantParameter(), help="No instant before this one; an interval counts from it."
    ),
    click.option("--until", type=options.InstantParameter(), help="No instant after this one."),
    click.option("--times", type=click.IntRange(1), help="Largest number of occurrences."),
    click.option(
        "--without", type=JsonParameter(dict, "a calendar"), help="Calendar of instants to leave out, as JSON."
    ),
)
call = options.all_of(
    click.option("--task", help="Name of the task."),
    click.option("--args", type=JsonParameter(list, "a list"), help="Arguments of the task, a JSON list."),
    click.option("--kwargs", type=JsonParameter(dict, "an object"), help="Keyword arguments, a JSON object."),
    click.option("--queue", help="Queue of the task."),
    click.option("--priority", type=click.IntRange(0, 255), help="Priority of the task."),
    click.option(
        "--expires", type=options.DurationParameter(), help="Time after its instant within which a run may start."
    ),
    click.option(
        "--option",
        "more",
        type=OptionParameter(),
        multiple=True,
        help="Another option of apply_async, NAME=JSON; may be repeated.",
    ),
)
policies = options.all_of(
    click.option("--catch-up", type=click.Choice(["latest", "all", "none"]), help="Missed instants that run."),
    click.option(
        "--catch-up-window", type=options.DurationParameter(), help="With --catch-up all: the time back from now."
    ),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "queue_one", "cancel_running"]),
        help="Policy for an instant at which an earlier run is not over.",
    ),
    click.option("--max-runtime", type=options.DurationParameter(), help="Time after which a run counts as over."),
    click.option("--jitter", type=options.DurationParameter(), help="Longest delay of a run after its instant."),
    click.option("--jitter-by", type=click.Choice(["run", "name"]), help="Draw the jitter for each run, or once."),
)


def recurrence_arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Take the recurrence's options out of a command's, and return those that were given as arguments of ``create``.

    Raises UsageError for two kinds of recurrence, and BadParameter for an invalid one.
    """
    given = [name for name in KINDS if params[name] not in (None, ())]
    if len(given) > 1:
        raise click.UsageError(f"name one of {', '.join(f'--{name}' for name in KINDS)}")
    values = {name: params.pop(name) for name in KINDS}
    found: dict[str, Any] = {}
    if given:
        [name] = given
        try:
            found["recurrence"] = _spec(name, values[name])
        except RecurrenceError as error:
            raise click.BadParameter(str(error), param_hint=f"--{name}") from error
    for name in ("zone", "gap", "fold", "times"):
        found[name] = params.pop(name)
    for name in ("start", "until"):
        at_ms = params.pop(name)
        found[name] = None if at_ms is None else to_datetime(at_ms)
    found["without"] = _calendar(params.pop("without"))
    return {name: value for name, value in found.items() if value is not None}


def call_arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Take the call's and the policies' options out of a command's, and return those that were given."""
    names = ["task", "args", "kwargs", "queue", "priority", "expires"]
    names += ("catch_up", "catch_up_window", "overlap", "max_runtime", "jitter", "jitter_by")
    found = {name: params.pop(name) for name in names}
    return {name: value for name, value in found.items() if value is not None} | dict(params.pop("more"))


def _spec(name: str, value: Any) -> Any:
    from celery_wheel.recurring import Crontab, Instants, RRule  # imports Celery's parser

    if name == "cron":
        from celery_wheel.operations.schedule_import.crontab import NICKNAMES

        fields = NICKNAMES.get(value.strip(), value).split()
        if len(fields) != 5:
            raise RecurrenceError(f"a crontab must have five fields, like '30 2 * * mon-fri', got {value!r:.60}")
        minute, hour, day, month, weekday = fields
        return Crontab(minute, hour, weekday, day, month)
    if name == "rrule":
        return RRule(value.replace("\\n", "\n"))
    return Instants(value) if name == "at" else value


def _calendar(document: Any) -> Any:
    from celery_wheel.recurring import Calendar, from_json

    if document is None:
        return None
    try:
        found = from_json(document)
    except RecurrenceError as error:
        raise click.BadParameter(str(error), param_hint="--without") from error
    if not isinstance(found, Calendar):
        raise click.BadParameter('must be a calendar, like {"kind": "weekdays", …}', param_hint="--without")
    return found
