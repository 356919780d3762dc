"""``celery wheel forecast``: counts of due tasks by the hour or the day, from the tally; no task is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, print_json, progress
from celery_wheel.results.backlog import BacklogEstimate, estimate_backlog
from celery_wheel.store.model import HOUR_MS
from celery_wheel.values.format import format_duration, format_utc

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import NamedHourCount

WIDTH_MS = {"hour": HOUR_MS, "day": 24 * HOUR_MS}
#: Characters of the longest bar.
BAR = 40


class ForecastSpan(NamedTuple):
    from_ms: int
    to_ms: int
    name: str
    pending: int


@wheel.command(short_help="Show how many tasks are due by the hour or by the day.")
@click.option(
    "--per", type=click.Choice(list(WIDTH_MS)), default="hour", show_default=True, help="Length of a line's time."
)
@click.option("--by", type=click.Choice(["queue", "task"]), help="Print a line for every queue or task.")
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
    an hour as due at its beginning.
    """
    criteria, now_ms = options.take_criteria(params), options.now_ms()
    with open_wheel(ctx, criteria["shard"]) as wheel, progress("adding up"):
        due = wheel.forecast(by, **criteria)
    spans = list(_spans(due, WIDTH_MS[per]))
    drain = None if rate is None else estimate_backlog([(one.from_ms, one.pending) for one in due], now_ms, rate)
    if as_json:
        print_json(_as_dict(spans, by, now_ms, rate, drain))
        return
    if not spans:
        click.echo("nothing is pending")
        return
    GrowingTable(_columns(spans, by)).print(spans)
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


def _as_dict(
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
        "drain": drain
        and {
            "worst": drain.worst,
            "worst_ms": drain.worst_ms,
            "done_ms": drain.done_ms,
            "done_in_ms": drain.done_ms - now_ms,
        },
    }


def _columns(spans: list[ForecastSpan], by: str | None) -> list[Column[ForecastSpan]]:
    most = max(one.pending for one in spans)
    named: list[Column[ForecastSpan]] = [Column(by, lambda one: one.name)] if by else []
    return [
        Column("from (UTC)", lambda one: format_utc(one.from_ms)[:16].replace("T", " ")),
        *named,
        Column("pending", lambda one: f"{one.pending:,}", "right"),
        Column("", lambda one: "█" * max(1, round(BAR * one.pending / most))),
    ]
