"""``celery wheel limits …``: the limits of single groups, as ``app.wheel.limits`` shows and changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, WheelGroup, open_wheel, wheel
from celery_wheel.cli.selection import request
from celery_wheel.conf.limits import PARTS
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, print_json, print_table
from celery_wheel.errors import ArgumentError

if TYPE_CHECKING:
    from celery_wheel.requests.limits import GroupLimits

group_name = click.argument("group")


@wheel.group(name="limits", cls=WheelGroup, short_help="Show and change the limits of single groups.")
def limits() -> None:
    """Show and change the limits of single groups, which have those of their class in wheel_limits otherwise.

    Reading works without a scheduler. Exit code: 0 when it is done; 3 when there was nothing to clear; 4 when no
    scheduler answered in time: the request was withdrawn.
    """


@limits.command(name="list", short_help="List the groups that have limits of their own.")
@options.as_json
@click.pass_context
def list_(ctx: click.Context, /, as_json: bool) -> None:
    """List the groups that have limits of their own. A part in brackets is that of the class, or the default."""
    with open_wheel(ctx) as wheel:
        _show(wheel.limits.list(), as_json)


@limits.command(name="set", short_help="Give a group limits of its own.")
@group_name
@click.option("--concurrency", type=int, help="Most runs in flight.")
@click.option("--rate", help="Most tasks in a second, a minute or an hour, like 100/m.")
@click.option("--weight", type=int, help="Share of a queue beside other groups.")
@options.length("--max-runtime", help="A run counts as over after this time: seconds, or a length like 2h.")
@request
@click.pass_context
def set_(ctx: click.Context, /, group: str, how: dict[str, Any], as_json: bool, **parts: Any) -> None:
    """Give a GROUP limits of its own, in the place of all that it had; show those that are in force now.

    A part that is left out is as the group's class has it.
    """
    if all(parts[name] is None for name in PARTS):
        raise click.UsageError("name one of --concurrency, --rate, --weight and --max-runtime")
    with open_wheel(ctx) as wheel:
        try:
            wheel.limits.set(group, **parts, **how)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error
        _show([wheel.limits.get(group)], as_json)


@limits.command(short_help="End the own limits of a group.")
@group_name
@request
@click.pass_context
def clear(ctx: click.Context, /, group: str, how: dict[str, Any], as_json: bool) -> None:
    """End the own limits of a GROUP, which is limited as its class is then; show the limits that are in force now."""
    with open_wheel(ctx) as wheel:
        had_any = wheel.limits.clear(group, **how)
        if not had_any:
            click.echo("the group had no limits of its own; nothing was changed", err=True)
        _show([wheel.limits.get(group)], as_json)
    ctx.exit(0 if had_any else NEEDS_ACTION)


def _show(found: list[GroupLimits], as_json: bool) -> None:
    if as_json:
        names = ("group", *PARTS, "sources", "actor")
        print_json({"limits": [{name: getattr(one, name) for name in names} | {"at": _instant(one)} for one in found]})
        return
    columns: list[Column[GroupLimits]] = [
        Column("group", lambda one: one.group),
        *(Column(name, _part(name), "right") for name in PARTS),
        Column("since", _instant, no_wrap=True, optional=True),
        Column("by", lambda one: one.actor, optional=True),
    ]
    print_table(columns, found, empty="no group has limits of its own")


def _part(name: str) -> Callable[[GroupLimits], str]:
    def text(one: GroupLimits) -> str:
        value = getattr(one, name)
        shown = "-" if value is None else f"{value:g} s" if name == "max_runtime" else f"{value}"
        return shown if one.sources[name] == "own" or value is None else f"({shown})"

    return text


def _instant(one: GroupLimits) -> str:
    return "" if one.at is None else one.at.isoformat(timespec="milliseconds")
