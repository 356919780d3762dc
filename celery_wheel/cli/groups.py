"""``celery wheel groups`` and ``limits …``: groups whose tasks wait or are in flight, and limits of single groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, WheelGroup, open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.selection import request
from celery_wheel.conf.limits import PARTS, format_rate
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, print_json, print_table
from celery_wheel.errors import ArgumentError
from celery_wheel.store.ports.pages import SORTS
from celery_wheel.values.format import format_duration

if TYPE_CHECKING:
    from celery_wheel.requests.limits import GroupLimits
    from celery_wheel.store.model import GroupLimit
    from celery_wheel.store.ports.pages import GroupPage, GroupState


@wheel.command(short_help="List groups with waiting tasks or tasks in flight.")
@click.option("--search", help="A part of the name; case is ignored.")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order of the groups.")
@options.paging_by_name
@click.pass_context
def groups(ctx: click.Context, /, search: str | None, sort: Any, **paging: Any) -> None:
    """List the groups whose tasks wait for a slot, a rate or room in their queue, or are in flight.

    A waiting task is due, and pending. In flight are the dispatched tasks that no worker has reported as ended; they
    are counted where the group has a concurrency. The name is "-" for tasks without a group. Limits are those that the
    group has of its own, beside those of its class in wheel_limits. With more than 2,000 groups, a list sorted by
    waiting has at most the hundred largest.
    """
    now_ms = options.now_ms()
    columns: list[Column[GroupState]] = [
        Column("group", lambda one: one.name or "-"),
        Column("waiting", lambda one: f"{one.waiting:,}", "right"),
        Column("in flight", lambda one: f"{one.in_flight:,}", "right"),
        Column("oldest waits", lambda one: age_text(one.oldest_ms, now_ms), "right"),
        Column("own limits", lambda one: limit_text(one.limit), optional=True),
    ]
    others = 0

    with open_wheel(ctx) as opened:

        def read(after: str, rows: int) -> GroupPage:
            nonlocal others
            page: GroupPage = opened.groups(search, rows, sort=sort, after=after or None)
            others = page.others
            return page

        Listing("groups", columns, asdict, read, "", str, str).show(**paging)
    if others and not paging["as_json"]:
        click.echo(f"{others:,} more groups: --all lists them, --sort name shows them by pages, --search finds one")


def age_text(due_ms: int | None, now_ms: int) -> str:
    return "-" if due_ms is None else format_duration(max(0, now_ms - due_ms))


def limit_text(limit: GroupLimit | None) -> str:
    if limit is None:
        return ""
    parts = [(limit.concurrency, f"concurrency {limit.concurrency}"), (limit.weight, f"weight {limit.weight}")]
    found = [text for value, text in parts if value is not None]
    if limit.rate_count is not None:
        found.append(f"rate {format_rate((limit.rate_count, limit.rate_per_ms or 0))}")
    if limit.max_runtime_ms is not None:
        found.append(f"max_runtime {format_duration(limit.max_runtime_ms)}")
    return ", ".join(found)


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
        _show_limits(wheel.limits.list(), as_json)


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
        _show_limits([wheel.limits.get(group)], as_json)


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
        _show_limits([wheel.limits.get(group)], as_json)
    ctx.exit(0 if had_any else NEEDS_ACTION)


def _show_limits(found: list[GroupLimits], as_json: bool) -> None:
    if as_json:
        names = ("group", *PARTS, "sources", "actor")
        print_json({"limits": [{name: getattr(one, name) for name in names} | {"at": _since(one)} for one in found]})
        return
    columns: list[Column[GroupLimits]] = [
        Column("group", lambda one: one.group),
        *(Column(name, _limit_part(name), "right") for name in PARTS),
        Column("since", _since, no_wrap=True, optional=True),
        Column("by", lambda one: one.actor, optional=True),
    ]
    print_table(columns, found, empty="no group has limits of its own")


def _limit_part(name: str) -> Callable[[GroupLimits], str]:
    def text(one: GroupLimits) -> str:
        value = getattr(one, name)
        shown = "-" if value is None else f"{value:g} s" if name == "max_runtime" else f"{value}"
        return shown if one.sources[name] == "own" or value is None else f"({shown})"

    return text


def _since(one: GroupLimits) -> str:
    return "" if one.at is None else one.at.isoformat(timespec="milliseconds")
