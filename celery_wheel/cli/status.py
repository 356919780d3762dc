"""``celery wheel status`` and ``levels``: the shards, and the wheel that their holders have in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.report import report
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, print_json, print_table
from celery_wheel.metrics.probe import ADDRESS, probe
from celery_wheel.values.format import format_duration, format_utc

if TYPE_CHECKING:
    from celery_wheel.overview import ShardStatus


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
        print_json({"shards": [_as_dict(one) for one in shown]})
    else:
        for one in shown:
            _print(one)
    ctx.exit(0 if all(one.live for one in shown) else NEEDS_ACTION)


def _as_dict(one: ShardStatus) -> dict[str, Any]:
    same = {name: getattr(one, name) for name in ("shard", "holder", "live", "snapshot_age_ms", "pending")}
    return {**same, "levels": (one.snapshot or {}).get("levels", [])}


def _print(one: ShardStatus) -> None:
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
