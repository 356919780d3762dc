"""``celery wheel schedules import``: the schedules of another system."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, NO_ANSWER, open_wheel, start_project
from celery_wheel.cli.schedules.group import schedules
from celery_wheel.cli.selection import Selection, request, send_each
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, print_json, progress
from celery_wheel.errors import StoreUnusable
from celery_wheel.values.format import format_utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheel.control import Wheel
    from celery_wheel.operations.schedule_import import ForeignSchedule
    from celery_wheel.requests.results import ScheduleAnswer

SYSTEMS = ("redbeat", "django-celery-beat", "crontab", "rq-scheduler", "apscheduler")

#: Schedules of one request.
PART = 500
#: Next instants that a dry run shows.
NEXT = 3

#: The results of schedules; "exists" is a name that stays as it is, "not importable" a schedule without a counterpart.
WORDS = ("created", "updated", "exists", "refused", "not importable")


@schedules.command(name="import", short_help="Import the schedules of another system.")
@click.option("--from", "system", type=click.Choice(SYSTEMS), required=True, help="The other system.")
@click.option("--url", default="", help="URL of its Redis or database; by default that of its own settings.")
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="crontab: file to read.")
@click.option("--task", default="", help="crontab: task that gets each command line as its argument.")
@click.option("--system-crontab", "has_user", is_flag=True, help="crontab: lines name a user, as in /etc/crontab.")
@click.option("--zone", default="", help="Zone of cron fields; by default the file's CRON_TZ, or that of this host.")
@click.option(
    "--map", "tasks", multiple=True, metavar="FUNCTION=TASK", help="rq-scheduler, apscheduler: task for a function."
)
@click.option("--trusted", is_flag=True, help="apscheduler: open its pickles, which runs their authors' code.")
@click.option("--update", is_flag=True, help="Give schedules that exist the definition of the other system.")
@click.option("--dry-run", is_flag=True, help="Only show the schedules, with their next instants.")
@request
@click.pass_context
def import_(
    ctx: click.Context, /, system: str, update: bool, dry_run: bool, how: Any, as_json: bool, **params: Any
) -> None:
    """Import the schedules of another system, which is only read; stop its scheduler first.

    A name that exists stays as it is, unless --update is given. A paused schedule is imported paused. Exit code: 0 when
    every schedule is imported or exists; 3 when some are not, with the reason of each; 4 when no scheduler answered in
    time: the request was withdrawn.
    """
    from celery_wheel.operations.schedule_import import READERS, ImportOptions, store_schedules

    how["reason"] = how["reason"] or f"imported from {system}"
    unavailable = None
    with open_wheel(ctx) as wheel:
        start_project()
        wanted = ImportOptions(ctx.obj.app, tasks=_pairs(params.pop("tasks")), system=params.pop("has_user"), **params)
        found: list[ForeignSchedule] = []
        with progress("reading schedules") as done:
            for one in READERS[system](wanted):
                found.append(one)
                done(1)
        good = [one for one in found if one.definition is not None]
        known = _known(wheel, [one.name for one in good], dry_run)
        answers: Mapping[str, ScheduleAnswer] = {}
        if not dry_run:
            answers, unavailable = send_each(
                Selection(good),
                lambda part: store_schedules(wheel, part, options.now_ms(), update=update, how=how),
                "",
                "schedule",
                yes=True,
                most=PART,
            )
    lines = [_line(one, one.name in known, update, dry_run, answers) for one in found]
    counts = Counter(line["result"] for line in lines)
    if as_json:
        print_json({"from": system, "dry_run": dry_run, "schedules": lines, "unavailable": unavailable})
    else:
        _print(lines, counts, dry_run)
        if unavailable is not None:
            click.echo(f"Error: {unavailable}", err=True)
    bad = counts["refused"] or counts["not importable"]
    ctx.exit(NO_ANSWER if unavailable is not None else NEEDS_ACTION if bad else 0)


def _known(wheel: Wheel, names: Sequence[str], dry_run: bool) -> set[str]:
    """Return the names that the store has; a dry run needs no store."""
    from celery_wheel.operations.schedule_import import existing

    try:
        return existing(wheel.store, names)
    except StoreUnusable as error:
        if not dry_run:
            raise
        click.echo(f"names are not compared with those of the store: {error}", err=True)
        return set()


def _line(
    one: ForeignSchedule, exists: bool, update: bool, dry_run: bool, answers: Mapping[str, ScheduleAnswer]
) -> dict[str, Any]:
    answer, result, reason = answers.get(one.name), "created", one.reason
    if one.definition is None:
        result = "not importable"
    elif answer is not None and answer.result == "refused":
        result, reason = "refused", answer.reason
    elif exists:
        result = "updated" if update else "exists"
    elif not dry_run and answer is None:
        result, reason = "refused", "no scheduler answered"
    return {
        "name": one.name,
        "result": result,
        "reason": reason,
        "paused": one.paused,
        "definition": one.definition,
        "next_ms": [] if one.definition is None or not dry_run else _next(one),
    }


def _next(one: ForeignSchedule) -> list[int]:
    from celery_wheel.recurring.definition import read_definition

    return read_definition(one.text).recurrence.preview(options.now_ms(), NEXT)


def _print(lines: Sequence[dict[str, Any]], counts: Mapping[str, int], dry_run: bool) -> None:
    columns: list[Column[dict[str, Any]]] = [
        Column("schedule", lambda line: line["name"]),
        Column("result", lambda line: line["result"] + (", paused" if line["paused"] else "")),
        Column("", lambda line: line["reason"], max_chars=300),
    ]
    if dry_run:
        columns.insert(2, Column("next", lambda line: format_utc((line["next_ms"] or [None])[0]), no_wrap=True))
    later = {"name": "", "result": "", "paused": False, "reason": ""}
    rows = [row for line in lines for row in (line, *({**later, "next_ms": [at]} for at in line["next_ms"][1:]))]
    if rows:
        GrowingTable(columns).print(rows)
    text = ", ".join(f"{counts[word]:,} {word}" for word in WORDS if counts[word])
    click.echo((text or "there are no schedules") + (": nothing was changed (--dry-run)" if dry_run else ""))


def _pairs(tasks: Sequence[str]) -> dict[str, str]:
    found = [one.partition("=") for one in tasks]
    if wrong := next((one for one in found if not one[0] or not one[2]), None):
        raise click.BadParameter(f"must be like jobs.report=app.report, got {''.join(wrong)!r}", param_hint="--map")
    return {function: task for function, _, task in found}
