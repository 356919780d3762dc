"""``celery wheel pause`` and ``resume``: stop dispatch to a queue, of a task, a group or everything, and resume it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.selection import request
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, print_json, print_table
from celery_wheel.values.format import format_duration, format_utc, printable

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.store.model import Gate

SCOPES = ("queue", "task", "group")

_names = options.all_of(
    click.option("--queue", help="Tasks for this queue (or with this routing key, where they name no queue)."),
    click.option("--task", help="Tasks of this name."),
    click.option("--group", help="Tasks of this group."),
    click.option("--all", "everything", is_flag=True, help="All tasks."),
)


@wheel.command(short_help="Stop dispatch to a queue, of a task, a group or everything.")
@_names
@request
@click.pass_context
def pause(ctx: click.Context, /, as_json: bool, **params: Any) -> None:
    """Stop dispatch to a queue, of a task, a group or everything; without options show the pauses.

    A pause holds until `resume`, also over a restart. Tasks that become due meanwhile wait in order and hold up no
    others; they can be cancelled and rescheduled. A second pause replaces the reason and the actor; one resume undoes
    both. Exit code: 0 when it is done; 4 when no scheduler answered in time: the request was withdrawn.
    """
    names = {name: params[name] for name in SCOPES if params[name] is not None}
    with open_wheel(ctx) as wheel:
        if names or params["everything"]:
            gate = _gate(**params)
            wheel.pause(**gate)
            if warning := wheel.unknown_gate(**gate):
                click.echo(printable(warning, 400), err=True)
        _show(wheel, as_json)


@wheel.command(short_help="Undo a pause.")
@_names
@options.length(
    "--over",
    help="Time over which the backlog is dispatched evenly: seconds, or a length like 10m or 1h.",
)
@request
@click.pass_context
def resume(ctx: click.Context, /, over: float | None, as_json: bool, **params: Any) -> None:
    """Undo a pause, of the same queue, task or group, or of everything; show the pauses that remain.

    Exit code: 0 when it is done; 3 when no such pause was in force; 4 when no scheduler answered in time: the request
    was withdrawn.
    """
    gate = _gate(**params)
    with open_wheel(ctx) as wheel:
        try:
            was_paused = wheel.resume(**gate, over=over)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--over") from error
        if not was_paused:
            click.echo("there was no such pause; nothing was changed", err=True)
        _show(wheel, as_json)
    ctx.exit(0 if was_paused else NEEDS_ACTION)


def _gate(everything: bool, how: dict[str, Any], **scopes: str | None) -> dict[str, Any]:
    names: dict[str, Any] = {scope: name for scope, name in scopes.items() if name is not None}
    if len(names) + everything != 1:
        raise click.UsageError("name one of --queue, --task, --group and --all")
    return {**(names or {"everything": True}), **how}


def _show(wheel: Wheel, as_json: bool) -> None:
    found, at_ms = wheel.gates(), options.now_ms()
    if as_json:
        names = ("scope", "name", "state", "per_ms", "reason", "actor", "at_ms")
        print_json({"gates": [{name: getattr(one, name) for name in names} for one in found]})
        return
    columns: list[Column[Gate]] = [
        Column("what", lambda one: one.what),
        Column("state", lambda one: one.state),
        Column("for", lambda one: format_duration(max(0, at_ms - one.at_ms)), "right"),
        Column("since", lambda one: format_utc(one.at_ms), no_wrap=True),
        Column("evenly over", lambda one: format_duration(one.per_ms) if one.per_ms else ""),
        Column("by", lambda one: one.actor, optional=True),
        Column("reason", lambda one: one.reason, max_chars=200),
    ]
    print_table(columns, found, empty="nothing is paused")
