"""``celery wheel schedules list``, ``show``, ``history`` and ``preview``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, start_project
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.schedules.define import recurrence, recurrence_arguments
from celery_wheel.cli.schedules.group import criteria_of, filters, instant_ms, schedules
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, console, facts_table, print_json, print_table
from celery_wheel.store.schedule_model import AHEAD_MS, REPLACED
from celery_wheel.values.format import PART_CUT, format_duration, format_utc, printable, to_datetime

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence
    from celery_wheel.recurring.words import UpcomingInstant
    from celery_wheel.requests.schedules import definitions
    from celery_wheel.values.mask import Mask


@schedules.command(name="list", short_help="List schedules, in the order of their names.")
@filters
@options.shard
@options.paging_by_name
@click.pass_context
def list_(ctx: click.Context, /, shard: int | None, **params: Any) -> None:
    """List schedules, in the order of their names, with their next instant.

    The state is active, paused, broken, ended (without a further instant) or run by Beat (an entry that Beat's own
    scheduler runs). A page prints the name after which the next page begins (--after).
    """
    criteria = criteria_of(params) | ({} if shard is None else {"shard": shard})
    columns: list[Column[definitions.RecurringSchedule]] = [
        Column("schedule", lambda one: one.name),
        Column("when", when),
        Column("next", lambda one: format_utc(instant_ms(one.next_at)), no_wrap=True),
        Column("state", lambda one: one.state, no_wrap=True),
        Column("task", lambda one: one.task),
        Column("zone", lambda one: "" if one.recurrence is None else one.recurrence.zone, optional=True),
        Column("source", lambda one: one.source, optional=True),
        Column("made", lambda one: f"{one.made:,}", "right", optional=True),
    ]
    with open_wheel(ctx, shard) as wheel:
        mask = wheel.mask

        def read(after: str, limit: int) -> Any:
            page = wheel.schedules.list(after=after, limit=limit, **criteria)
            return replace(page, items=[masked(one, mask) for one in page.items])

        Listing("schedules", columns, schedule_as_dict, read, "", str, str).show(**params)


def masked(one: definitions.RecurringSchedule, mask: Mask) -> definitions.RecurringSchedule:
    """Return a schedule without the values that ``wheel_mask`` names."""
    if not mask:
        return one
    args, kwargs, options = map(mask.value, (one.args, one.kwargs, one.options))
    definition, note = mask.part(one.definition.encode()).decode(), mask.text(one.note)
    return replace(one, args=args, kwargs=kwargs, options=options, definition=definition, note=note)


def when(one: definitions.RecurringSchedule) -> str:
    """Return the recurrence in words, or else the note, with the reason."""
    from celery_wheel.recurring.words import in_words  # imports the specs

    return one.note if one.recurrence is None else in_words(one.recurrence)


def schedule_as_dict(one: definitions.RecurringSchedule) -> dict[str, Any]:
    """Return a schedule as JSON shows it; instants are Unix milliseconds."""
    same = ("name", "source", "revision", "made", "paused", "broken", "note", "state")
    return {
        **{name: getattr(one, name) for name in same},
        "when": when(one),
        "next_ms": instant_ms(one.next_at),
        "last_ms": instant_ms(one.last_at),
        "since_ms": instant_ms(one.since),
        "definition": definition_of(one.definition),
    }


def definition_of(text: str) -> Any:
    """Return the JSON of a definition; its text, if it is not JSON, as in a broken schedule."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


#: Runs, skips and revisions that ``show`` prints; ``history`` prints all that the store returns.
LATEST = 5

_count = click.option(
    "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="Instants to compute."
)


@schedules.command(short_help="Show a schedule, its next instants and its last runs.")
@click.argument("name")
@_count
@options.as_json
@click.pass_context
def show(ctx: click.Context, name: str, count: int, as_json: bool) -> None:
    """Show the schedule NAME: its definition, its next instants, and its last runs, skips and changes.

    Exit code: 0 when the schedule exists, 3 when it does not.
    """
    with open_wheel(ctx) as wheel:
        start_project()
        found = _masked(wheel.schedules.history(name), wheel.mask)
    if found is None or found.schedule is None:
        _say_unknown(name, deleted=found is not None)
        ctx.exit(NEEDS_ACTION)
    one = found.schedule
    upcoming = [] if one.recurrence is None or one.paused else _upcoming(one.recurrence, count, one.made)
    warning = _unknown_task(ctx.obj.app, one.task)
    if as_json:
        instants = [at.at_ms for at in upcoming if at.left_out is None]
        own = {**schedule_as_dict(one), "warning": warning, "upcoming_ms": instants, "replaced": found.replaced}
        print_json({**own, **_past(found, LATEST)})
        return
    console().print(facts_table(printable(one.name), _facts(one, found.replaced)))
    if warning:
        click.echo(f"Warning: {warning}", err=True)
    if one.recurrence is not None and upcoming:
        _print_upcoming(one.recurrence, upcoming)
    _print_past(found, LATEST)


@schedules.command(short_help="Show the runs, skips and changes of a schedule.")
@click.argument("name")
@options.as_json
@click.pass_context
def history(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show the last runs, skips and changes of the schedule NAME, sixty of each at most; also of a deleted one.

    Exit code: 0 when the store knows the name, 3 when it does not.
    """
    with open_wheel(ctx) as wheel:
        found = _masked(wheel.schedules.history(name), wheel.mask)
    if found is None:
        _say_unknown(name)
        ctx.exit(NEEDS_ACTION)
    if as_json:
        print_json({"name": name, "exists": found.schedule is not None, **_past(found, None)})
    else:
        _print_past(found, None)


@schedules.command(short_help="Compute the next instants of a schedule, or of a recurrence.")
@click.argument("name", required=False)
@recurrence
@options.instant("--from", "from_ms", default="now", help="After this instant; now.")
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Instants to compute.")
@options.as_json
@click.pass_context
def preview(ctx: click.Context, /, name: str | None, from_ms: int, count: int, as_json: bool, **params: Any) -> None:
    """Compute the next instants of the schedule NAME, or of a recurrence that need not exist (--cron, …).

    Days on which the clocks of the zone change are marked, and so are instants that are left out, with the reason. Exit
    code: 3 when there is no such schedule.
    """
    fields = recurrence_arguments(params)
    if (name is None) != ("recurrence" in fields) or (name is not None and fields):
        raise click.UsageError("name a schedule, or one of --every, --cron, --rrule and --at")
    with open_wheel(ctx) as wheel:
        made, found = 0, None
        if name is None:
            from celery_wheel.requests.schedules.definitions import recurrence_of

            start_project()
            found = recurrence_of(ctx.obj.app, fields)
        elif (one := wheel.schedules.get(name)) is not None:
            found, made = one.recurrence, one.made
            if found is None:
                raise click.BadParameter(f"must be a schedule with instants, got {one.note!r:.200}", param_hint="NAME")
    if found is None:
        _say_unknown(str(name))
        ctx.exit(NEEDS_ACTION)
    upcoming = _upcoming(found, count, made, from_ms)
    if as_json:
        print_json({"zone": found.zone, "instants": [asdict(at) for at in upcoming]})
    else:
        _print_upcoming(found, upcoming)


def _masked(found: definitions.ScheduleHistory | None, mask: Mask) -> definitions.ScheduleHistory | None:
    if found is None:
        return None
    schedule = None if found.schedule is None else masked(found.schedule, mask)
    changes = [one if one.before is None else replace(one, before=masked(one.before, mask)) for one in found.revisions]
    return replace(found, schedule=schedule, revisions=changes)


def _say_unknown(name: str, *, deleted: bool = False) -> None:
    text = "was deleted: `schedules history` shows its changes" if deleted else "does not exist: see `schedules list`"
    click.echo(f"schedule {printable(name)} {text}", err=True)


def _unknown_task(app: Any, name: str) -> str:
    """Return a warning where the app does not have the task; empty where it has."""
    from celery_wheel.requests.arguments import unknown_tasks

    try:
        is_unknown = bool(unknown_tasks(app, [name]))
    except Exception as error:  # raised by modules of the project
        return f"the modules of the app's tasks cannot be imported ({printable(repr(error), PART_CUT)})"
    text = (
        f"the app does not have the task {printable(name)}: it is sent by its name, and a worker without it discards it"
    )
    return text if is_unknown else ""


def _upcoming(recurrence: Recurrence, count: int, made: int, at_ms: int | None = None) -> list[UpcomingInstant]:
    from celery_wheel.recurring.words import upcoming

    return upcoming(recurrence, options.now_ms() if at_ms is None else at_ms, count, made)


def _print_upcoming(recurrence: Recurrence, upcoming: list[UpcomingInstant]) -> None:
    from celery_wheel.recurring.local import zone_of

    zone = zone_of(recurrence.zone) or UTC

    def local(one: UpcomingInstant) -> str:
        at = to_datetime(one.at_ms)
        return "-" if at is None else f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}"

    columns: list[Column[UpcomingInstant]] = [
        Column(f"in {recurrence.zone}", local, no_wrap=True),
        Column("UTC", lambda one: format_utc(one.at_ms), no_wrap=True),
        Column("", _mark),
    ]
    print_table(columns, upcoming, empty="there is no further instant")


def _mark(one: UpcomingInstant) -> str:
    marks = [f"does not run: {one.left_out}"] if one.left_out else []
    if one.shift_ms:
        marks.append(f"clocks {'forward' if one.shift_ms > 0 else 'back'} {format_duration(abs(one.shift_ms))}")
    return ", ".join(marks)


def _facts(one: definitions.RecurringSchedule, replaced: int) -> list[tuple[str, str]]:
    last_ms = instant_ms(one.last_at)
    silent = one.next_at is not None and last_ms is not None and last_ms > options.now_ms() + AHEAD_MS
    silence = f"until {format_utc(last_ms)}: it ran up to then before the clock went back"
    starved = f"each of the last {replaced} runs was cancelled by the next one (cancel_running), begun or not"
    lines = [
        ("state", one.state + (f": {printable(one.note, PART_CUT)}" if one.note else "")),
        ("when", printable(when(one), PART_CUT)),
        ("zone", "-" if one.recurrence is None else one.recurrence.zone),
        ("next", format_utc(instant_ms(one.next_at))),
        ("last", format_utc(last_ms)),
        *([("silent", silence)] if silent else []),
        *([("starved", starved)] if replaced >= REPLACED else []),
        ("made", f"{one.made:,}"),
        ("task", printable(one.task)),
        ("args", printable(json.dumps(one.args), PART_CUT)),
        ("kwargs", printable(json.dumps(one.kwargs), PART_CUT)),
        ("source", printable(one.source)),
        ("revision", str(one.revision)),
    ]
    more = {**one.policies, **one.options}
    return lines + [(name.replace("_", " "), printable(str(value), PART_CUT)) for name, value in more.items()]


def _past(found: definitions.ScheduleHistory, limit: int | None) -> dict[str, Any]:
    parts: dict[str, list[Any]] = {"runs": found.runs, "skips": found.skips, "revisions": found.revisions}
    return {name: [dict(_values(one)) for one in part[:limit]] for name, part in parts.items()}


def _values(one: definitions.PastRun | definitions.PastSkip | definitions.PastRevision) -> Iterator[tuple[str, Any]]:
    """Yield the values of a part of the past as JSON shows them; instants are Unix milliseconds."""
    for name in (field.name for field in fields(one)):
        value = getattr(one, name)
        if name == "before":
            yield "definition_before", None if value is None else definition_of(value.definition)
        elif name.endswith("_at") or name in ("scheduled_for", "first", "last"):
            yield f"{name.removesuffix('_at')}_ms", instant_ms(value)
        else:
            yield name, value


def _print_past(found: definitions.ScheduleHistory, limit: int | None) -> None:
    runs: list[Column[definitions.PastRun]] = [
        Column("run for", lambda one: format_utc(instant_ms(one.scheduled_for)), no_wrap=True),
        Column("state", lambda one: one.state + (": " + one.reason if one.reason else "")),
        Column("late", _late, "right"),
        Column("task id", lambda one: one.task_id),
        Column("requested", lambda one: "yes" if one.requested else "", optional=True),
        Column("ended", lambda one: format_utc(instant_ms(one.ended_at)), no_wrap=True, optional=True),
    ]
    skips: list[Column[definitions.PastSkip]] = [
        Column("skipped from", lambda one: format_utc(instant_ms(one.first)), no_wrap=True),
        Column("to", lambda one: format_utc(instant_ms(one.last)), no_wrap=True),
        Column("instants", lambda one: f"{one.count:,}" if one.is_exact else f"over {one.count:,}", "right"),
        Column("reason", lambda one: one.reason, no_wrap=True),
    ]
    revisions: list[Column[definitions.PastRevision]] = [
        Column("revision", lambda one: one.number, "right"),
        Column("change", lambda one: one.what, no_wrap=True),
        Column("at", lambda one: format_utc(instant_ms(one.changed_at)), no_wrap=True),
        Column("by", lambda one: one.actor),
        Column("reason", lambda one: one.reason, max_chars=200),
    ]
    print_table(runs, found.runs[:limit], empty="no runs")
    if found.skips:
        print_table(skips, found.skips[:limit], empty="")
    print_table(revisions, found.revisions[:limit], empty="no changes")


def _late(one: definitions.PastRun) -> str:
    if one.dispatched_at is None:
        return ""
    return format_duration(max(0, round((one.dispatched_at - one.due_at).total_seconds() * 1_000)))
