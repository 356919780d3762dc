"""``celery wheel clock``: show the clocks of the holders, and accept a disputed wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options, verdicts
from celery_wheel.cli.group import TO_ACT_UPON, answered, asking, wheel
from celery_wheel.cli.output import Column, Lines, put_json
from celery_wheel.present import duration

if TYPE_CHECKING:
    from celery_wheel.status import ShardStatus

ANSWERS = {
    "accepted": "due time follows the wall clock now",
    "agreed": "no shard disputes the wall clock; nothing was changed",
    "refused": "the wall clock differs from that of the broker or the store by more than wheel_max_clock_skew; nothing "
    "was changed there; set the clock of the scheduler's host right",
}


@wheel.command(cls=CeleryCommand, short_help="Show the schedulers' clocks; accept a disputed one.")
@click.argument("action", required=False, type=click.Choice(["accept"]), metavar="[accept]")
@options.asking
@click.pass_context
def clock(ctx: click.Context, action: str | None, reason: str, timeout: float, as_json: bool) -> None:
    """Show each holder's wall clock against due time, and due time against the clock of the broker or the store.

    A wall clock that was stepped is disputed until the broker's or the store's clock agrees with it; `accept` makes due
    time follow it where neither has a clock. Exit code: 0 when no clock is disputed, or it was accepted; 3 when one is
    disputed, or there was nothing to accept, or it was refused; 4 when no scheduler answered in time: then the request
    was withdrawn.
    """
    with asking(ctx) as wheel, answered(ctx):
        if action is None:
            shards = wheel.status()
            _show(shards, as_json)
            ctx.exit(TO_ACT_UPON if any(one.clock_dispute for one in shards) else 0)
        answer = wheel.accept_clock(reason=reason, timeout=timeout, actor=verdicts.whoever())
    if as_json:
        put_json({"answer": answer})
    else:
        click.echo(ANSWERS[answer])
    ctx.exit(0 if answer == "accepted" else TO_ACT_UPON)


def _show(shards: list[ShardStatus], as_json: bool) -> None:
    if as_json:
        put_json({"clocks": [_as_dict(one) for one in shards]})
        return
    columns: list[Column[ShardStatus]] = [
        Column("shard", lambda one: str(one.shard), "right"),
        Column("holder", lambda one: one.holder if one.holder and one.live else "none"),
        Column("wall clock", lambda one: _apart(_as_dict(one)["disputed_ms"], "due time")),
        Column("due time", lambda one: _apart(_as_dict(one)["skew_ms"], "the second clock")),
    ]
    Lines(columns).print(shards)
    for dispute in sorted({one.clock_dispute for one in shards} - {""}):
        click.echo(dispute)


def _apart(ms: int | None, other: str) -> str:
    if ms is None:
        return "no second clock" if other != "due time" else ""
    if not ms:
        return f"agrees with {other}"
    return f"{duration(abs(ms))} {'ahead of' if ms > 0 else 'behind'} {other}"


def _as_dict(one: ShardStatus) -> dict[str, Any]:
    snapshot = (one.live and one.snapshot) or {}
    return {
        "shard": one.shard,
        "holder": one.holder,
        "live": one.live,
        "disputed_ms": snapshot.get("clock_disputed_ms"),
        "skew_ms": snapshot.get("clock_skew_ms"),
    }
