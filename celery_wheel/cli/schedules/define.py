"""``celery wheel schedules create`` and ``update``: a definition from options, or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from celery_wheel.cli.group import open_wheel, start_project
from celery_wheel.cli.schedules.group import print_answers, schedules
from celery_wheel.cli.selection import request
from celery_wheel.console import parameters as options
from celery_wheel.errors import RecurrenceError, ScheduleExists
from celery_wheel.values.instants import utc

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
    options.length("--every", help="Interval: seconds, or a time like 90s or 1h30m."),
    click.option(
        "--cron",
        metavar="FIELDS",
        help="Minute, hour, day of month, month and day of week, as in '30 2 * * mon-fri', or @daily.",
    ),
    click.option("--rrule", metavar="RULES", help="Lines of RFC 5545: DTSTART and RRULE, RDATE, EXDATE."),
    options.instant("--at", multiple=True, help="An instant; may be repeated."),
    click.option("--zone", help="Time zone, like Europe/Berlin; by default that of the app."),
    click.option("--gap", type=click.Choice(["shift", "skip"]), help="Rule for times that the clocks skip."),
    click.option("--fold", type=click.Choice(["first", "second", "both"]), help="Rule for times that occur twice."),
    options.instant("--start", help="No instant before this one; an interval counts from it."),
    options.instant("--until", help="No instant after this one."),
    click.option("--times", type=click.IntRange(1), help="Largest number of occurrences."),
    click.option(
        "--without", type=JsonParameter(dict, "a calendar"), help="Calendar of instants to leave out, as JSON."
    ),
)
_defining = options.all_of(
    click.argument("name"),
    recurrence,
    click.option("--task", help="Name of the task."),
    click.option("--args", type=JsonParameter(list, "a list"), help="Arguments of the task, a JSON list."),
    click.option("--kwargs", type=JsonParameter(dict, "an object"), help="Keyword arguments, a JSON object."),
    click.option("--queue", help="Queue of the task."),
    click.option("--priority", type=click.IntRange(0, 255), help="Priority of the task."),
    options.length("--expires", help="Time after its instant within which a run may start."),
    click.option(
        "--option",
        "more",
        type=OptionParameter(),
        multiple=True,
        help="Another option of apply_async, NAME=JSON; may be repeated.",
    ),
    click.option("--catch-up", type=click.Choice(["latest", "all", "none"]), help="Missed instants that run."),
    options.length("--catch-up-window", help="With --catch-up all: the time back from now."),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "queue_one", "cancel_running"]),
        help="Policy for an instant at which an earlier run is not over.",
    ),
    options.length("--max-runtime", help="Time after which a run counts as over."),
    options.length("--jitter", help="Longest delay of a run after its instant."),
    click.option("--jitter-by", type=click.Choice(["run", "name"]), help="Draw the jitter for each run, or once."),
    click.option("--any-task", is_flag=True, help="Accept a task that its module does not have."),
    click.option(
        "--definition",
        type=click.File("r", encoding="utf-8"),
        help="File with the whole definition as JSON; - for stdin. It is `definition` in `schedules show --json`.",
    ),
)


def recurrence_arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Take the recurrence's options out of a command's, and return those that were given as arguments of ``create``.

    Raises UsageError for two kinds of recurrence, and BadParameter for an invalid one.
    """
    given = [name for name in KINDS if params[name] not in (None, ())]
    if len(given) > 1:
        raise click.UsageError(f"name one of {', '.join(f'--{name}' for name in KINDS)}")
    values = {name: params.pop(name) for name in KINDS}
    found = options.taken(params, "zone", "gap", "fold", "times", "start", "until", "without")
    for name in given:
        try:
            found["recurrence"] = _spec(name, values[name])
        except RecurrenceError as error:
            raise click.BadParameter(str(error), param_hint=f"--{name}") from error
    found |= {name: utc(found[name]) for name in ("start", "until") if name in found}
    if "without" in found:
        found["without"] = _calendar(found["without"])
    return found


def call_arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Take the call's and the policies' options out of a command's, and return those that were given."""
    found = options.taken(params, "task", "args", "kwargs", "queue", "priority", "expires")
    found |= options.taken(params, "catch_up", "catch_up_window", "overlap", "max_runtime", "jitter", "jitter_by")
    return found | dict(params.pop("more"))


def _spec(name: str, value: Any) -> Any:
    from celery_wheel.recurring import Crontab, Instants, RRule  # imports Celery's parser

    if name == "cron":
        return Crontab.from_string(value)
    if name == "rrule":
        return RRule(value.replace("\\n", "\n"))
    return Instants(value) if name == "at" else value


def _calendar(document: Any) -> Any:
    from celery_wheel.recurring import Calendar, from_json

    try:
        found = from_json(document)
    except RecurrenceError as error:
        raise click.BadParameter(str(error), param_hint="--without") from error
    if not isinstance(found, Calendar):
        raise click.BadParameter('must be a calendar, like {"kind": "weekdays", …}', param_hint="--without")
    return found


_ARGUMENT = re.compile(r"(schedule '.*?': )?([a-z_]+)(?= must )").match


@contextmanager
def _options_named(ctx: click.Context) -> Iterator[None]:
    """Name the option in an error that names the argument: --catch-up-window for catch_up_window."""
    try:
        yield
    except RecurrenceError as error:
        text = str(error)
        given = [kind for kind in KINDS if ctx.params.get(kind) not in (None, ())]
        if (found := _ARGUMENT(text)) and ctx.params.get("definition") is None:
            name = given[0] if found[2] == "recurrence" and given else found[2]
            if name in ctx.params:
                text = f"{found[1] or ''}--{name.replace('_', '-')}{text[found.end() :]}"
        raise RecurrenceError(text) from error


@schedules.command(short_help="Create a schedule.")
@_defining
@click.option("--replace", is_flag=True, help="Replace the definition of a schedule that exists.")
@request
@click.pass_context
def create(
    ctx: click.Context, /, name: str, definition: IO[str] | None, replace: bool, how: Any, as_json: bool, **params: Any
) -> None:
    """Create the schedule NAME: a task and a recurrence (--every, --cron, --rrule or --at).

    \b
    Every weekday at 9 in Berlin:
      create report --task app.report --zone Europe/Berlin --cron '0 9 * * mon-fri'

    One of the two day fields of --cron may be limited, because Celery and cron differ where both are.

    Exit code: 0 when it is created; 1 when the name is in use or the definition is refused, with the reason; 4 when no
    scheduler answered in time: the request was withdrawn.
    """
    check_task, fields, document = _given(definition, params)
    if document is None and not fields.keys() >= {"recurrence", "task"}:
        raise click.UsageError("name --task and one of --every, --cron, --rrule and --at; or --definition")
    with open_wheel(ctx) as wheel, _options_named(ctx):
        start_project()
        if document is None:
            fields["check_task"] = check_task
            call_ = {key: fields.pop(key) for key in ("recurrence", "task", "args", "kwargs") if key in fields}
            answer = wheel.schedules.create(name, **call_, exists="update" if replace else "error", **fields, **how)
        else:
            answer = wheel.schedules.change("put" if replace else "create", {name: document}, how, single=name)
            if answer.result == "already" and not replace:
                raise ScheduleExists(f"schedule {name!r} exists already; nothing was changed; --replace replaces it")
    print_answers(ctx, {name: answer}, as_json=as_json)


@schedules.command(short_help="Change parts of a schedule.")
@_defining
@request
@click.pass_context
def update(
    ctx: click.Context, /, name: str, definition: IO[str] | None, how: Any, as_json: bool, **params: Any
) -> None:
    """Change parts of the schedule NAME; the other parts stay as they are. --definition replaces all of it.

    The occurrences after now are withdrawn, and made anew by the new definition. Exit code: 0 when it is changed, or
    was so before; 1 when the definition is refused; 3 when there is no such schedule; 4 when no scheduler answered in
    time: the request was withdrawn.
    """
    check_task, fields, document = _given(definition, params)
    if document is None and not fields:
        raise click.UsageError("name the parts that change: --every, --zone, --args, …; or --definition")
    with open_wheel(ctx) as wheel, _options_named(ctx):
        start_project()
        if document is None:
            answer = wheel.schedules.update(name, check_task=check_task, **fields, **how)
        else:
            answer = wheel.schedules.change("update", {name: document}, how, single=name)
    print_answers(ctx, {name: answer}, as_json=as_json)


def _given(definition: IO[str] | None, params: dict[str, Any]) -> tuple[bool, dict[str, Any], Any]:
    """Return whether the task is checked, the fields of the definition, and the document in their place."""
    check_task = not params.pop("any_task")
    fields = recurrence_arguments(params) | call_arguments(params)
    if definition is None:
        return check_task, fields, None
    if fields:
        raise click.UsageError("--definition is a whole definition: name no other part of one")
    try:
        return check_task, fields, json.load(definition)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON ({error})", param_hint="--definition") from error
