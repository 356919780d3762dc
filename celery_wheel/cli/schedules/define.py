"""``celery wheel schedules create`` and ``update``: definitions from options, or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from celery_wheel.cli.group import open_wheel
from celery_wheel.cli.project import start_project
from celery_wheel.cli.results import request_options
from celery_wheel.cli.schedules.definition import (
    KINDS,
    call,
    call_arguments,
    policies,
    recurrence,
    recurrence_arguments,
)
from celery_wheel.cli.schedules.group import print_answers, schedules
from celery_wheel.console import parameters as options
from celery_wheel.errors import RecurrenceError, ScheduleExists
from celery_wheel.requests.arguments import CommandOptions

_document = click.option(
    "--definition",
    type=click.File("r", encoding="utf-8"),
    help="File with the whole definition as JSON; - for stdin. It is `definition` in `schedules show --json`.",
)


_any_task = click.option("--any-task", is_flag=True, help="Accept a task that its module does not have.")


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


def _defining(command: Callable[..., None]) -> Callable[..., None]:
    """Add the name of a schedule, and the options that define it."""
    for option in (_document, _any_task, policies, call, recurrence, click.argument("name")):
        command = option(command)
    return command


@schedules.command(short_help="Create a schedule.")
@_defining
@click.option("--replace", is_flag=True, help="Replace the definition of a schedule that exists.")
@options.request
@click.pass_context
def create(
    ctx: click.Context, /, name: str, definition: IO[str] | None, replace: bool, as_json: bool, **params: Any
) -> None:
    """Create the schedule NAME: a task and a recurrence (--every, --cron, --rrule or --at).

    \b
    Every weekday at 9 in Berlin:
      create report --task app.report --zone Europe/Berlin --cron '0 9 * * mon-fri'

    Exit code: 0 when it is created; 1 when the name is in use or the definition is refused, with the reason; 4 when no
    scheduler answered in time: the request was withdrawn.
    """
    how, check_task, fields, document = _given(definition, params)
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
    print_answers(ctx, {name: answer}, None, every=True, as_json=as_json)


@schedules.command(short_help="Change parts of a schedule.")
@_defining
@options.request
@click.pass_context
def update(ctx: click.Context, /, name: str, definition: IO[str] | None, as_json: bool, **params: Any) -> None:
    """Change parts of the schedule NAME; the other parts stay as they are. --definition replaces all of it.

    The occurrences after now are withdrawn, and made anew by the new definition. Exit code: 0 when it is changed, or
    was so before; 1 when the definition is refused; 3 when there is no such schedule; 4 when no scheduler answered in
    time: the request was withdrawn.
    """
    how, check_task, fields, document = _given(definition, params)
    if document is None and not fields:
        raise click.UsageError("name the parts that change: --every, --zone, --args, …; or --definition")
    with open_wheel(ctx) as wheel, _options_named(ctx):
        start_project()
        if document is None:
            answer = wheel.schedules.update(name, check_task=check_task, **fields, **how)
        else:
            answer = wheel.schedules.change("update", {name: document}, how, single=name)
    print_answers(ctx, {name: answer}, None, every=True, as_json=as_json)


def _given(definition: IO[str] | None, params: dict[str, Any]) -> tuple[CommandOptions, bool, dict[str, Any], Any]:
    """Return the options of the request, whether the task is checked, the fields, and the document in their place."""
    how, check_task = request_options(params.pop("reason"), params.pop("timeout")), not params.pop("any_task")
    fields = recurrence_arguments(params) | call_arguments(params)
    return how, check_task, fields, _read(definition, fields)


def _read(file: IO[str] | None, fields: dict[str, Any]) -> Any:
    """Return the JSON of a definition; None where there is no file."""
    if file is None:
        return None
    if fields:
        raise click.UsageError("--definition is a whole definition: name no other part of one")
    try:
        return json.load(file)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON ({error})", param_hint="--definition") from error
