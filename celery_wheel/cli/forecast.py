"""``celery wheel forecast``: how much is due when, from the tally; no task is read."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import asking, wheel
from celery_wheel.cli.output import Column, Lines, progress, put_json
from celery_wheel.outflow import outflow
from celery_wheel.present import duration, utc
from celery_wheel.store.model import HOUR_MS

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import DueBy

WIDTH_MS = {"hour": HOUR_MS, "day": 24 * HOUR_MS}
#: Characters of the longest bar.
BAR = 40


@dataclass(frozen=True, slots=True)
class Span:
    from_ms: int
    to_ms: int
    name: str
    pending: int


@wheel.command(cls=CeleryCommand, short_help="Show how much is due by the hour or by the day.")
@click.option("--per", type=click.Choice(list(WIDTH_MS)), default="hour", show_default=True, help="Length of a line.")
@click.option("--by", type=click.Choice(["queue", "task"]), help="A line each for every queue or task.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Tasks a second: when will all have left?")
@options.names
@options.shard
@options.span
@options.as_json
@click.pass_context
def forecast(
    ctx: click.Context, /, per: str, by: str | None, rate: float | None, as_json: bool, **filters: Any
) -> None:
    """Show how much is due by the hour (UTC) or by the day, with a bar.

    Counts are kept by the hour: --from and --to take whole hours, and the drain time of --rate supposes that what is
    due in an hour is due at its beginning.
    """
    criteria = options.criteria(**filters)
    now_ms = int(time.time() * 1_000)
    with asking(ctx, criteria["shard"]) as wheel:
        with progress("adding up"):
            due = wheel.forecast(by, **criteria)
        spans = _spans(due, WIDTH_MS[per])
        emptied = _drain(due, now_ms, rate)
        if as_json:
            put_json(_as_dict(spans, by, now_ms, rate, emptied))
            return
        if not spans:
            click.echo("nothing is pending")
            return
        Lines(_columns(spans, by)).print(spans)
    overdue = sum(one.pending for one in due if one.from_ms + HOUR_MS <= now_ms)
    click.echo(f"{sum(one.pending for one in spans):,} pending" + (f", {overdue:,} overdue" if overdue else ""))
    if emptied is not None and rate is not None:
        click.echo(
            f"at {rate:,g} tasks/s all have left by {utc(emptied['done_ms'])}, in {duration(emptied['done_in_ms'])}; "
            f"at most {emptied['worst']:,} are overdue, at {utc(emptied['worst_ms'])}"
        )


def _spans(due: Iterable[DueBy], width_ms: int) -> list[Span]:
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for one in due:
        counts[one.from_ms - one.from_ms % width_ms, one.name] += one.pending
    return [Span(from_ms, from_ms + width_ms, name, count) for (from_ms, name), count in sorted(counts.items())]


def _drain(due: Iterable[DueBy], now_ms: int, rate: float | None) -> dict[str, int] | None:
    found = None if rate is None else outflow([(one.from_ms, one.pending) for one in due], now_ms, rate)
    if found is None:
        return None
    return {
        "worst": found.worst,
        "worst_ms": found.worst_ms,
        "done_ms": found.done_ms,
        "done_in_ms": found.done_ms - now_ms,
    }


def _as_dict(
    spans: list[Span], by: str | None, now_ms: int, rate: float | None, emptied: dict[str, int] | None
) -> dict[str, Any]:
    lines = [
        {"from_ms": one.from_ms, "to_ms": one.to_ms, "pending": one.pending, **({by: one.name} if by else {})}
        for one in spans
    ]
    pending = sum(one.pending for one in spans)
    return {"now_ms": now_ms, "pending": pending, "spans": lines, "rate": rate, "drain": emptied}


def _columns(spans: list[Span], by: str | None) -> list[Column[Span]]:
    most = max(one.pending for one in spans)

    def bar(one: Span) -> str:
        return "█" * max(1, round(BAR * one.pending / most))

    named: list[Column[Span]] = [Column(by, lambda one: one.name)] if by else []
    return [
        Column("from (UTC)", lambda one: utc(one.from_ms)[:16].replace("T", " ")),
        *named,
        Column("pending", lambda one: f"{one.pending:,}", "right"),
        Column("", bar),
    ]
