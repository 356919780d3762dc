"""``celery wheel clock``: show the clocks of the holders, and accept a disputed wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.results import request_options
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, print_json
from celery_wheel.values.format import format_duration

if TYPE_CHECKING:
    from celery_wheel.overview import ShardStatus

ANSWERS = {
    "accepted": "due time follows the wall clock now",
    "agreed": "no shard disputes the wall clock; nothing was changed",
    "refused": "the wall clock differs from that of the broker or the store by more than wheel_max_clock_skew; nothing "
    "was changed there; set the clock of the scheduler's host right",
}


@wheel.command(short_help="Show the schedulers' clocks; accept a disputed clock.")
@click.argument("action", required=False, type=click.Choice(["accept"]), metavar="[accept]")
@options.request
@click.pass_context
def clock(ctx: click.Context, action: str | None, reason: str, timeout: float, as_json: bool) -> None:
    """Show each holder's wall clock against due time, and due time against the clock of the broker or the store.

    A wall clock that was stepped is disputed until the broker's or the store's clock agrees with it; `accept` makes due
    time follow it where neither has a clock. Exit code: 0 when no clock is disputed, or it was accepted; 3 when a clock
    is disputed, or nothing was to be accepted, or it was refused; 4 when no scheduler answered in time: the request was
    withdrawn.
    """
    with open_wheel(ctx) as wheel:
        if action is None:
            shards = wheel.status()
            _show(shards, as_json)
            ctx.exit(NEEDS_ACTION if any(one.clock_dispute for one in shards) else 0)
        answer = wheel.accept_clock(**request_options(reason, timeout))
    if as_json:
        print_json({"answer": answer})
    else:
        click.echo(ANSWERS[answer])
    ctx.exit(0 if answer == "accepted" else NEEDS_ACTION)


def _show(shards: list[ShardStatus], as_json: bool) -> None:
    if as_json:
        print_json({"clocks": [_as_dict(one) for one in shards]})
        return
    columns: list[Column[ShardStatus]] = [
        Column("shard", lambda one: str(one.shard), "right"),
        Column("holder", lambda one: one.holder if one.holder and one.live else "none"),
        Column("wall clock", lambda one: _difference(_as_dict(one)["disputed_ms"], "due time", "")),
        Column("due time", lambda one: _difference(_as_dict(one)["skew_ms"], "the second clock", "no second clock")),
    ]
    GrowingTable(columns).print(shards)
    for dispute in sorted({one.clock_dispute for one in shards} - {""}):
        click.echo(dispute)


def _difference(ms: int | None, other: str, unknown: str) -> str:
    if ms is None:
        return unknown
    return f"{format_duration(abs(ms))} {'ahead of' if ms > 0 else 'behind'} {other}" if ms else f"agrees with {other}"


def _as_dict(one: ShardStatus) -> dict[str, Any]:
    snapshot = (one.live and one.snapshot) or {}
    return {
        "shard": one.shard,
        "holder": one.holder,
        "live": one.live,
        "disputed_ms": snapshot.get("clock_disputed_ms"),
        "skew_ms": snapshot.get("clock_skew_ms"),
    }
