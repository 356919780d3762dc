"""Bulk actions: ``celery wheel bulk``, and the option ``--background`` of commands that take a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.selection import request
from celery_wheel.console.output import Column, confirm, print_json, print_table
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.values.format import format_utc

if TYPE_CHECKING:
    from celery_wheel.requests.bulk import BulkAction

#: Actions that a list shows.
LATEST = 20

background = click.option(
    "--background", is_flag=True, help="Only begin: the schedulers act on all matches of the filter."
)


def begin_in_background(
    wheel: Any,
    ids: Any,
    criteria: dict[str, Any],
    verb: str,
    question: str,
    how: Any,
    *,
    yes: bool,
    as_json: bool,
    **to: Any,
) -> None:
    """Begin a bulk action on all matches of a filter, and print its id; the holders count and change the tasks."""
    if ids or all(value is None for value in criteria.values()):
        raise click.UsageError("--background takes a filter (--task, --queue, …), and no ids")
    shown = ", ".join(f"{name.removesuffix('_ms')} {value}" for name, value in criteria.items() if value is not None)
    confirm(question.format(f"all tasks with {shown} in the background"), yes)
    action = wheel.bulk.begin(verb, Criteria(**criteria), **to, **how)
    if as_json:
        print_json({"bulk": action})
    else:
        click.echo(f"bulk action {action} has begun; see and stop it with: celery -A proj wheel bulk")


@wheel.command(name="bulk", short_help="List bulk actions; stop, continue or discard one.")
@click.option("--stop", metavar="ID", help="Stop this action before its next step.")
@click.option("--continue", "continue_", metavar="ID", help="Continue this action, after its last step.")
@click.option("--discard", metavar="ID", help="End this action for good; changed tasks stay changed.")
@request
@click.pass_context
def bulk(ctx: click.Context, /, how: Any, as_json: bool, **acts: str | None) -> None:
    """List the bulk actions under way and those of the last week, the newest first.

    A bulk action is begun by --background of cancel, reschedule, run-now and requeue, by the admin, or by
    app.wheel.bulk. It goes on without this terminal. Exit code: 3 when --stop, --continue or --discard names an action
    that the store does not know.
    """
    chosen = [(name, action) for name, action in acts.items() if action is not None]
    if len(chosen) > 1:
        raise click.UsageError("name one of --stop, --continue and --discard")
    with open_wheel(ctx) as wheel:
        for name, action in chosen:
            if wheel.bulk.get(action) is None:
                click.echo(f"the store knows no bulk action {action:.60} of the last week", err=True)
                ctx.exit(NEEDS_ACTION)
            getattr(wheel.bulk, name)(action, **how)
        found = wheel.bulk.latest(LATEST)
    if as_json:
        print_json({"bulks": [_as_dict(one) for one in found]})
        return
    columns: list[Column[BulkAction]] = [
        Column("asked", lambda one: format_utc(one.request.at_ms), no_wrap=True),
        Column("id", lambda one: one.id, no_wrap=True),
        Column("action", lambda one: one.request.word, no_wrap=True),
        Column("state", lambda one: _state(one), no_wrap=True),
        Column("of", lambda one: f"{one.found:,}" if one.is_counted else f"{one.found:,} so far", "right"),
        Column("results", lambda one: ", ".join(f"{count:,} {word}" for word, count in one.results.items())),
        Column("by", lambda one: one.request.actor),
        Column("reason", lambda one: one.request.reason, max_chars=200, optional=True),
    ]
    print_table(columns, found, empty="no bulk action of the last week")


def _state(one: BulkAction) -> str:
    """Return the state, and the commands that no scheduler has read yet."""
    return one.state + (f", asked to {', '.join(sorted(one.asked))}" if one.asked else "")


def _as_dict(one: BulkAction) -> dict[str, Any]:
    names = ("id", "state", "is_counted", "found", "results", "problems", "changed_ms")
    same = {name: getattr(one, name) for name in names}
    about = {"verb": one.request.word, "actor": one.request.actor, "reason": one.request.reason}
    return {**same, **about, "asked_ms": one.request.at_ms, "asked": sorted(one.asked)}
