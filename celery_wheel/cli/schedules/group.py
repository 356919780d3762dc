"""The group ``celery wheel schedules``; the filter, the names and the results of its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import WheelGroup, wheel
from celery_wheel.cli.selection import GOOD, ResultLine, print_results
from celery_wheel.conf import Conf
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm, progress
from celery_wheel.errors import RequestInDoubt, WheelUnavailable
from celery_wheel.values.format import format_count
from celery_wheel.values.mask import Mask

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.results import ScheduleAnswer
    from celery_wheel.requests.schedules.definitions import RecurringSchedule

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
    found = {name: params.pop(name) for name in ("part", "prefix", "source", "task", "queue", "paused", "broken")}
    return {name: value for name, value in found.items() if value is not None}


def state_of(one: RecurringSchedule) -> str:
    """Return the state of a schedule, as Django's admin names it."""
    if one.broken or one.paused:
        return "broken" if one.broken else "paused"
    if one.next_at is None:
        return "ended" if one.recurrence is not None else "run by Beat"
    return "failing" if one.note else "active"


def change_each(
    ctx: click.Context,
    wheel: Wheel,
    criteria: Mapping[str, Any],
    send: Callable[[list[str]], Any],
    *,
    question: str,
    names: Iterable[str],
    yes: bool,
    as_json: bool,
) -> None:
    """Change the schedules of these names, or those that match the filter; print the results, and end the command.

    Args:
        send: sends the change of several names.
        question: asks for confirmation of the matches of a filter; ``{}`` stands for "12 schedules".
    """
    chosen = list(dict.fromkeys(_named(names)))
    if bool(chosen) == bool(criteria):
        raise click.UsageError("name schedules, - for names on stdin, or a filter (--part, --source, …); not both")
    if criteria:
        chosen = _matches(wheel, criteria)
        if chosen and not yes:
            confirm(question.format(format_count(len(chosen), "schedule")))
    answers: dict[str, ScheduleAnswer] = {}
    unavailable = None
    try:
        answers = send(chosen) if chosen else {}
    except (WheelUnavailable, RequestInDoubt) as error:
        answers, unavailable = dict(error.results), str(error)
    print_answers(ctx, answers, unavailable, every=not criteria, as_json=as_json)


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
        ResultLine(
            name,
            one.result,
            _explained(one),
            _answer_as_dict(one),
            one.result not in GOOD or bool(one.too_late or one.reason),
        )
        for name, one in answers.items()
    ]
    print_results(ctx, "schedule", lines, WORDS, unavailable, counted=unavailable is None, every=every, as_json=as_json)


def _answer_as_dict(one: ScheduleAnswer) -> dict[str, Any]:
    return {
        "result": one.result,
        "reason": one.reason,
        "too_late_ms": [instant_ms(at) for at in one.too_late],
        "task_ids": list(one.task_ids),
    }


def instant_ms(moment: Any) -> int | None:
    """Return the Unix milliseconds of a datetime; None for None."""
    return None if moment is None else round(moment.timestamp() * 1_000)


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


def _matches(wheel: Wheel, criteria: Mapping[str, Any]) -> list[str]:
    found, after = list[str](), ""
    with progress("reading schedules") as done:
        while True:
            page = wheel.schedules.list(after=after, limit=1_000, **criteria)
            found += [one.name for one in page.items]
            done(len(page.items))
            if page.next is None:
                return found
            after = page.next
