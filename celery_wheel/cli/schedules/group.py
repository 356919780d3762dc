"""The group ``celery wheel schedules``: its filter, its results, and the commands that change schedules by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import WheelGroup, open_wheel, wheel
from celery_wheel.cli.selection import GOOD, ResultLine, Selection, matches, print_results, request, send_each
from celery_wheel.conf import Conf
from celery_wheel.console import parameters as options
from celery_wheel.values.format import format_count
from celery_wheel.values.instants import ms_of, utc
from celery_wheel.values.mask import Mask

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.results import ScheduleAnswer
    from celery_wheel.requests.schedules.schedules import BackfillOverlap


WORDS = (*GOOD, "unknown", "refused")


@wheel.group(name="schedules", cls=WheelGroup, short_help="Show and change recurring schedules.")
def schedules() -> None:
    """Show and change recurring schedules: their tasks, their next instants and their past runs.

    Reading works without a scheduler. Exit code: as of the other commands; 3 when a schedule is unknown, or a change of
    it is refused; 4 when no scheduler answered in time, and the request was withdrawn.
    """


filters = options.all_of(
    click.option("--part", help="Only schedules whose name has this part; case is ignored."),
    click.option("--prefix", help="Only schedules whose name begins with this text."),
    click.option("--source", help="Only schedules of this source: api, code, beat, django-celery-beat."),
    click.option("--task", help="Only schedules of this task."),
    click.option("--queue", help="Only schedules that name this queue."),
    click.option("--paused/--not-paused", default=None, help="Only schedules that are paused, or are not."),
    click.option("--broken/--not-broken", default=None, help="Only schedules that are broken, or are not."),
)
names = click.argument("names", nargs=-1, metavar="[NAME]...")


def criteria_of(params: dict[str, Any]) -> dict[str, Any]:
    """Take the filter out of a command's options, and return its criteria."""
    return options.taken(params, "part", "prefix", "source", "task", "queue", "paused", "broken")


def print_answers(
    ctx: click.Context,
    answers: Mapping[str, ScheduleAnswer],
    unavailable: str | None = None,
    *,
    every: bool = True,
    as_json: bool,
) -> None:
    """Print the results of a change, and end the command."""
    mask = Mask(Conf(ctx.obj.app).mask)
    answers = {name: replace(one, reason=mask.text(one.reason)) for name, one in answers.items()}
    lines = [
        ResultLine(name, one.result, _explained(one), value, one.result not in GOOD or bool(one.too_late or one.reason))
        for name, one in answers.items()
        for late in (list(map(instant_ms, one.too_late)),)
        for value in (
            {"result": one.result, "reason": one.reason, "too_late_ms": late, "task_ids": list(one.task_ids)},
        )
    ]
    print_results(ctx, "schedule", lines, WORDS, unavailable, every=every, as_json=as_json)


def instant_ms(moment: Any) -> int | None:
    """Return the Unix milliseconds of a datetime; None for None."""
    return None if moment is None else ms_of(moment)


def _explained(one: ScheduleAnswer) -> str:
    if one.too_late:
        late = f"{format_count(len(one.too_late), 'occurrence')} had been dispatched, or may have been"
        return f"{late}; {one.reason}" if one.reason else late
    if one.task_ids:
        more = f", and {len(one.task_ids) - 1:,} more" if len(one.task_ids) > 1 else ""
        return f"task {one.task_ids[0]}{more}" + (f"; {one.reason}" if one.reason else "")
    return one.reason or {"already": "it was so before", "unknown": "there is no schedule of that name"}.get(
        one.result, ""
    )


def _named(arguments: Iterable[str]) -> Iterable[str]:
    """Yield the arguments, with the lines on stdin in the place of ``-``: a name may have blanks."""
    for one in arguments:
        yield from (line for line in sys.stdin.read().splitlines() if line) if one == "-" else [one]


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
@options.instant("--from", "from_ms", required=True, help="The first instant.")
@options.instant("--to", "to_ms", default="now", help="The last instant; now.")
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
    with open_wheel(ctx) as wheel:
        answer = wheel.schedules.backfill(name, utc(from_ms), utc(to_ms), overlap=overlap, **how)
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
    ctx: click.Context,
    question: str,
    send: Callable[[Wheel, list[str], Any], Any],
    *,
    names: Iterable[str],
    how: Any,
    yes: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Change the schedules of these names, or those that match the filter; print the results, and end the command."""
    criteria = criteria_of(params)
    with open_wheel(ctx) as wheel:
        chosen = Selection(list(dict.fromkeys(_named(names))))
        if bool(chosen.names) == bool(criteria):
            raise click.UsageError("name schedules, - for names on stdin, or a filter (--part, --source, …); not both")
        if criteria:
            chosen = matches(
                lambda after, limit: wheel.schedules.list(after=after, limit=limit, **criteria),
                "",
                attrgetter("name"),
                doing="reading schedules",
            )
        answers, unavailable = send_each(
            chosen, lambda part: send(wheel, part, how), question, "schedule", yes, most=max(1, len(chosen.names))
        )
    print_answers(ctx, answers, unavailable, every=not criteria, as_json=as_json)
