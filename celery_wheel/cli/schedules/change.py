"""``celery wheel schedules delete``, ``pause``, ``resume``, ``trigger``, ``backfill`` and ``rollback``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import open_wheel
from celery_wheel.cli.schedules.group import change_each, criteria_of, filters, names, print_answers, schedules
from celery_wheel.cli.selection import request
from celery_wheel.console import parameters as options
from celery_wheel.values.format import to_datetime

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.schedules.schedules import BackfillOverlap

_many = options.all_of(names, filters, options.yes, request)


@schedules.command(short_help="Delete schedules.")
@_many
@click.pass_context
def delete(ctx: click.Context, /, **params: Any) -> None:
    """Delete schedules: by name, by names on stdin (-, one a line), or all that match a filter.

    Their pending occurrences are withdrawn. Their changes stay: `schedules history` shows them. The command counts the
    matches of a filter and asks for confirmation.
    """
    _change(ctx, "Delete {}?", lambda wheel, names, how: wheel.schedules.delete(names, **how), **params)


@schedules.command(short_help="Pause schedules.")
@_many
@click.option("--note", default="", help="Reason, shown with the schedules until they are resumed.")
@click.pass_context
def pause(ctx: click.Context, /, note: str, **params: Any) -> None:
    """Pause schedules until `schedules resume`: by name, by names on stdin (-, one a line), or by a filter.

    Their pending occurrences are withdrawn, except those that `trigger` or `backfill` requested.
    """
    _change(ctx, "Pause {}?", lambda wheel, names, how: wheel.schedules.pause(names, note, **how), **params)


@schedules.command(short_help="Resume paused or broken schedules.")
@_many
@click.pass_context
def resume(ctx: click.Context, /, **params: Any) -> None:
    """Resume paused or broken schedules: by name, by names on stdin (-, one a line), or by a filter.

    They run from their next instant after now on; `schedules history` shows the instants in between as skipped. Fix the
    cause of a broken schedule first.
    """
    _change(ctx, "Resume {}?", lambda wheel, names, how: wheel.schedules.resume(names, **how), **params)


@schedules.command(short_help="Run the tasks of schedules now.")
@_many
@click.pass_context
def trigger(ctx: click.Context, /, **params: Any) -> None:
    """Run the tasks of schedules now: by name, by names on stdin (-, one a line), or by a filter.

    These runs are beside the schedules' own instants, also of paused ones, and no overlap policy holds them back.
    """
    _change(ctx, "Run the tasks of {} now?", lambda wheel, names, how: wheel.schedules.trigger(names, **how), **params)


@schedules.command(short_help="Run past instants of a schedule.")
@click.argument("name")
@click.option("--from", "from_ms", type=options.InstantParameter(), required=True, help="The first instant.")
@click.option("--to", "to_ms", type=options.InstantParameter(), default="now", help="The last instant; now.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue_one", "queue_all", "cancel_running"]),
    help="Policy for these runs; by default that of the schedule.",
)
@request
@click.pass_context
def backfill(
    ctx: click.Context,
    name: str,
    from_ms: int,
    to_ms: int,
    overlap: BackfillOverlap | None,
    how: Any,
    as_json: bool,
) -> None:
    """Run the task of NAME for its past instants, from one to another: at most a thousand.

    With --overlap allow all instants run at once; with skip the first, unless a run is going on; with queue_one the
    first and then the last; with queue_all each when the run before it is over; with cancel_running the last, in place
    of the run that is going on. Instants that the schedule itself has yet to make are left to it. Exit code: 3 when
    there is no such schedule.
    """
    if from_ms > to_ms:
        raise click.BadParameter("must not be before --from", param_hint="--to")
    first, last = to_datetime(from_ms), to_datetime(to_ms)
    if first is None or last is None:
        raise click.BadParameter("is beyond the calendar", param_hint="--from" if first is None else "--to")
    with open_wheel(ctx) as wheel:
        answer = wheel.schedules.backfill(name, first, last, overlap=overlap, **how)
    print_answers(ctx, {name: answer}, as_json=as_json)


@schedules.command(short_help="Return a schedule to an earlier revision.")
@click.argument("name")
@click.argument("revision", type=click.IntRange(1))
@request
@click.pass_context
def rollback(ctx: click.Context, name: str, revision: int, how: Any, as_json: bool) -> None:
    """Give NAME the definition that it had at REVISION; `schedules history` shows the revisions.

    The rollback is a new revision, so it can be undone in the same way. Exit code: 3 when there is no such schedule.
    """
    with open_wheel(ctx) as wheel:
        try:
            answer = wheel.schedules.rollback(name, revision, **how)
        except LookupError as error:
            raise click.BadParameter(str(error), param_hint="REVISION") from error
    print_answers(ctx, {name: answer}, as_json=as_json)


def _change(
    ctx: click.Context, question: str, send: Callable[[Wheel, list[str], Any], Any], *, how: Any, **params: Any
) -> None:
    criteria = criteria_of(params)
    with open_wheel(ctx) as wheel:
        change_each(ctx, wheel, criteria, lambda part: send(wheel, part, how), question=question, **params)
