"""The store's state: ``celery wheel status``, ``levels`` of the wheel in memory, and ``forecast`` from the tally."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.groups import age_text
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, console, facts_table, print_json, print_table, progress
from celery_wheel.metrics.probe import ADDRESS, probe
from celery_wheel.results import BacklogEstimate, estimate_backlog
from celery_wheel.store.model import HOUR_MS, WAITING
from celery_wheel.store.ports.pages import FORECASTS
from celery_wheel.store.schedule_model import ScheduleCriteria
from celery_wheel.values.format import PART_CUT, format_duration, format_utc, printable

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.overview import ShardStatus
    from celery_wheel.store.ports.pages import GroupPage, NamedHourCount
    from celery_wheel.store.schedule_model import Schedule, ScheduleCounts, SilentSchedules


#: Broken schedules, and groups, that are shown.
BROKEN = GROUPS = 5


def report(wheel: Wheel, *, as_json: bool) -> tuple[str, int]:
    """Return the text, and the exit code: 3 while a shard has no live holder.

    Raises ImportError, with the remedy, where tables are wanted and rich is not installed.
    """
    shards, counts = wheel.status(), wheel.store.browse.schedule_counts()
    broken = wheel.store.browse.schedules(ScheduleCriteria(broken=True), limit=BROKEN).items if counts.broken else []
    silent = wheel.store.browse.silent_schedules(options.now_ms())
    groups = wheel.groups(limit=GROUPS)
    broken = [replace(one, note=wheel.mask.text(one.note)) for one in broken]
    code = 0 if all(shard.live for shard in shards) else NEEDS_ACTION
    if as_json:
        schedules = {**asdict(counts), "silent": asdict(silent), "reasons": {one.name: one.note for one in broken}}
        found: dict[str, Any] = {"store": wheel.store.name, "shards": [shard.as_dict() for shard in shards]}
        found |= {"schedules": schedules, "groups": [asdict(one) for one in groups]}
        return json.dumps(found), code
    terminal = console()
    with terminal.capture() as captured:
        terminal.print(f"store {printable(wheel.store.name, PART_CUT)}", highlight=False, markup=False, soft_wrap=True)
        for shard in shards:
            terminal.print(facts_table(f"shard {shard.shard}", _shard_facts(shard)))
            if shard.live and shard.snapshot:
                terminal.print(_levels_table(shard.snapshot))
        if groups.items:
            terminal.print(facts_table("groups", _group_facts(groups)))
        if counts.total:
            terminal.print(facts_table("schedules", _schedule_facts(counts, broken, silent)))
    return captured.get().rstrip("\n"), code


def _shard_facts(shard: ShardStatus) -> Iterator[tuple[str, str]]:
    heard = "never" if shard.snapshot_age_ms is None else f"{shard.snapshot_age_ms / 1000:.1f} s ago"
    yield "holder", f"{shard.holder or 'none'} (epoch {shard.epoch}, last seen: {heard})"
    yield "pending", f"{shard.pending:,} accepted by a scheduler"
    yield "next due", "nothing" if shard.next_free_ms is None else instant(shard.next_free_ms)
    yield "behind", f"{shard.behind_ms / 1000:.1f} s, {shard.overdue:,} overdue" if shard.behind_ms else "no"
    if shard.held:
        first = min(lane["next_due_ms"] for lane in shard.held_lanes)
        yield "held", f"{shard.held:,} due tasks, by a pause, a limit or a group; the first was due {instant(first)}"
    for problem in shard.group_problems:
        yield "group", problem
    if shard.inbox:
        yield "inbox", f"{shard.inbox:,} messages and requests"
    if shard.clock_dispute:
        yield "clock", f"disputed: {shard.clock_dispute}"
    for lane in [one for one in shard.lanes if one["lane"] != WAITING]:  # nothing is published from it: see groups
        beside = ", beside the main lane" if lane["lane"] else ""
        refusing = f", waits for {printable(lane['target'])}" if lane["target"] else beside
        yield "offset", f"{instant(lane['offset'][0])} (seq {lane['offset'][1]}){refusing}"
    for gate in shard.gates:
        yield gate.state, f"{printable(gate.what)}, since {format_utc(gate.at_ms)}, by {printable(gate.actor)}"
    snapshot = shard.snapshot if shard.live else None
    if snapshot:
        yield "in memory", f"{snapshot['window_count']:,} tasks, {snapshot['window_bytes']:,} bytes"
        yield "dispatched", f"{snapshot['dispatched']:,} since this holder began"
        yield "rejected", f"{snapshot['rejected']:,} since this holder began"
        if snapshot.get("repacked") is not None:
            yield "encrypted anew", f"{snapshot['repacked']:,} messages so far"


def _group_facts(groups: GroupPage) -> Iterator[tuple[str, str]]:
    now_ms = options.now_ms()
    for one in groups:
        oldest = f", the oldest for {age_text(one.oldest_ms, now_ms)}" if one.waiting else ""
        yield printable(one.name) or "-", f"{one.waiting:,} waiting{oldest}; {one.in_flight:,} in flight"
    if groups.next is not None or groups.others:
        yield "more", "`celery -A proj wheel groups`"


def _schedule_facts(
    counts: ScheduleCounts, broken: Sequence[Schedule], silent: SilentSchedules
) -> Iterator[tuple[str, str]]:
    parts = (
        (counts.paused, "paused"),
        (counts.broken, "broken"),
        (counts.failing, "failing"),
        (counts.with_base, "run by Beat"),
    )
    found = ", ".join(f"{count:,} {state}" for count, state in parts if count)
    yield "number", f"{counts.total:,}" + (f", of which {found}" if found else "")
    yield "next", "-" if counts.next_ms is None else format_utc(counts.next_ms)
    if silent.count:
        until = format_utc(silent.until_ms)
        yield "silent", f"{silent.count:,}, until {until} at the latest: they ran up to then before the clock went back"
    for one in broken:
        yield "broken", f"{printable(one.name)}: {printable(one.note, PART_CUT)}"
    if counts.broken > len(broken):
        yield "broken", f"and {counts.broken - len(broken):,} more: `schedules list --broken`"


def _levels_table(snapshot: dict[str, Any]) -> Any:
    from rich.table import Table

    levels = Table("level", "tick", "interval", "buckets in use", "pending", title="levels", title_justify="left")
    for level in snapshot["levels"]:
        levels.add_row(
            str(level["level"]),
            f"{level['tick_ms']:,} ms",
            f"{level['interval_ms']:,} ms",
            str(len(level["buckets"])),
            f"{level['pending']:,}",
        )
    return levels


def instant(at_ms: int) -> str:
    """Return ISO 8601 in UTC; the position before everything is "the beginning"."""
    return format_utc(at_ms) if at_ms else "the beginning"


@wheel.command(short_help="Show each shard's holder, offset, pending tasks and levels.")
@options.as_json
@click.option(
    "--probe",
    "address",
    metavar="ADDRESS",
    is_flag=False,
    flag_value=ADDRESS,
    help=f"Ask only the scheduler on this address of wheel_metrics whether it is ready; {ADDRESS} by default.",
)
@click.pass_context
def status(ctx: click.Context, as_json: bool, address: str | None) -> None:
    """Show each shard's holder, offset, pending tasks and levels, and how many schedules there are.

    Tasks that a pause, a limit or a group holds back are held, and not behind.

    With --probe no app is started and no store is opened: the scheduler's page /readyz answers. celery-wheel-probe does
    the same without Celery's command line.

    Exit code: 0 when every shard has a holder that was seen in the last 5 seconds, 3 when one has not; with --probe, 0
    when the scheduler is ready, 3 when it is not, 4 when it does not answer.
    """
    if address is not None:
        code, text = probe(address)
        click.echo(text, err=code != 0)
        ctx.exit(code)
    with open_wheel(ctx) as wheel:
        text, code = report(wheel, as_json=as_json)
    click.echo(text)
    ctx.exit(code)


@wheel.command(short_help="Show each level of the wheel with its buckets.")
@options.shard
@options.as_json
@click.pass_context
def levels(ctx: click.Context, shard: int | None, as_json: bool) -> None:
    """Show each level of the wheel with its buckets, as the holder of the shard has them in memory.

    The wheel holds the tasks that are due within wheel_window; `forecast` shows later ones. Exit code: 0 when every
    shard that is shown has a holder that was seen in the last 5 seconds; 3 when one has not: its last snapshot is
    shown.
    """
    with open_wheel(ctx, shard) as wheel:
        shown = [one for one in wheel.status() if shard in (None, one.shard)]
    if as_json:
        names = ("shard", "holder", "live", "snapshot_age_ms", "pending")
        same = [(one, {name: getattr(one, name) for name in names}) for one in shown]
        print_json({"shards": [{**found, "levels": (one.snapshot or {}).get("levels", [])} for one, found in same]})
    else:
        for one in shown:
            _print_levels(one)
    ctx.exit(0 if all(one.live for one in shown) else NEEDS_ACTION)


def _print_levels(one: ShardStatus) -> None:
    heard = "never seen" if one.snapshot_age_ms is None else f"last seen {format_duration(one.snapshot_age_ms)} ago"
    click.echo(f"shard {one.shard}: holder {one.holder or 'none'}, {heard}; {one.pending:,} pending in the store")
    if one.snapshot is None:
        return
    found: Any = one.snapshot.get("levels", [])
    buckets = [(level, bucket) for level in found for bucket in level["buckets"]]
    columns: list[Column[Any]] = [
        Column("level", lambda pair: pair[0]["level"], "right"),
        Column("tick", lambda pair: format_duration(pair[0]["tick_ms"]), "right"),
        Column("interval", lambda pair: format_duration(pair[0]["interval_ms"]), "right"),
        Column("bucket", lambda pair: pair[1]["index"], "right"),
        Column("expiration", lambda pair: format_utc(pair[1]["expiration_ms"]), no_wrap=True),
        Column("pending", lambda pair: f"{pair[1]['pending']:,}", "right"),
    ]
    print_table(columns, buckets, empty="every bucket is empty")


WIDTH_MS = {"hour": HOUR_MS, "day": 24 * HOUR_MS}


class ForecastSpan(NamedTuple):
    from_ms: int
    to_ms: int
    name: str
    pending: int


@wheel.command(short_help="Show how many tasks are due by the hour or by the day.")
@click.option(
    "--per", type=click.Choice(list(WIDTH_MS)), default="hour", show_default=True, help="Length of a line's time."
)
@click.option("--by", type=click.Choice(FORECASTS), help="Print a line for each queue, task or large group.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Tasks a second: estimate when the backlog drains."
)
@options.names
@options.shard
@options.span
@options.as_json
@click.pass_context
def forecast(ctx: click.Context, /, per: str, by: str | None, rate: float | None, as_json: bool, **params: Any) -> None:
    """Show how many tasks are due by the hour (UTC) or by the day, with a bar.

    The store keeps counts by the hour: --from and --to take whole hours, and the estimate of --rate counts all tasks of
    an hour as due at its beginning. --by group has no such counts: it reads every pending task of the time, shows the
    twenty groups with the most, and adds up all others as _other; the name is "-" for tasks without a group.
    """
    criteria, now_ms = options.take_criteria(params), options.now_ms()
    with open_wheel(ctx, criteria["shard"]) as wheel, progress("adding up"):
        due = wheel.forecast(by, **criteria)
    spans = list(_spans(due, WIDTH_MS[per]))
    drain = None if rate is None else estimate_backlog([(one.from_ms, one.pending) for one in due], now_ms, rate)
    if as_json:
        print_json(_forecast_as_dict(spans, by, now_ms, rate, drain))
        return
    if not spans:
        click.echo("nothing is pending")
        return
    GrowingTable(_forecast_columns(spans, by)).print(spans)
    overdue = sum(one.pending for one in due if one.from_ms + HOUR_MS <= now_ms)
    click.echo(f"{sum(one.pending for one in spans):,} pending" + (f", {overdue:,} overdue" if overdue else ""))
    if drain is not None:
        click.echo(
            f"at {rate:,g} tasks/s the backlog drains by {format_utc(drain.done_ms)}, "
            f"in {format_duration(drain.done_ms - now_ms)}; "
            f"at most {drain.worst:,} are overdue, at {format_utc(drain.worst_ms)}"
        )


def _spans(due: Iterable[NamedHourCount], width_ms: int) -> Iterator[ForecastSpan]:
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for one in due:
        counts[one.from_ms - one.from_ms % width_ms, one.name] += one.pending
    for (from_ms, name), count in sorted(counts.items()):
        yield ForecastSpan(from_ms, from_ms + width_ms, name, count)


def _forecast_as_dict(
    spans: list[ForecastSpan], by: str | None, now_ms: int, rate: float | None, drain: BacklogEstimate | None
) -> dict[str, Any]:
    return {
        "now_ms": now_ms,
        "pending": sum(one.pending for one in spans),
        "spans": [
            {"from_ms": one.from_ms, "to_ms": one.to_ms, "pending": one.pending, **({by: one.name} if by else {})}
            for one in spans
        ],
        "rate": rate,
        "drain": drain and {**asdict(drain), "done_in_ms": drain.done_ms - now_ms},
    }


def _forecast_columns(spans: list[ForecastSpan], by: str | None) -> list[Column[ForecastSpan]]:
    most = max(one.pending for one in spans)
    named: list[Column[ForecastSpan]] = [Column(by, lambda one: one.name or "-")] if by else []
    return [
        Column("from (UTC)", lambda one: format_utc(one.from_ms)[:16].replace("T", " ")),
        *named,
        Column("pending", lambda one: f"{one.pending:,}", "right"),
        Column("", lambda one: "█" * max(1, round(40 * one.pending / most))),
    ]
