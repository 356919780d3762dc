"""``celery wheel status`` and ``levels``: the shards, and what their holders have in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import TO_ACT_UPON, asking, wheel
from celery_wheel.cli.output import Column, Lines, put_json
from celery_wheel.present import duration, utc

if TYPE_CHECKING:
    from celery_wheel.status import ShardStatus


@wheel.command(cls=CeleryCommand)
@options.as_json
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show each shard's holder, offset, pending tasks and levels.

    Exit code: 0 when every shard has a holder that was heard of in the last 5 seconds, 3 when one has not.
    """
    from celery_wheel.show import report

    with asking(ctx) as wheel:
        text, code = report(wheel.status(), as_json=as_json)
    click.echo(text)
    ctx.exit(code)


@wheel.command(cls=CeleryCommand, short_help="Show each level of the wheel with its buckets.")
@options.shard
@options.as_json
@click.pass_context
def levels(ctx: click.Context, shard: int | None, as_json: bool) -> None:
    """Show each level of the wheel with its buckets, as the holder of the shard has them in memory.

    That is what is due within wheel_window; `forecast` shows what lies beyond. Exit code: 0 when every shard that is
    shown has a holder that was heard of in the last 5 seconds, 3 when one has not: then it is what was last heard.
    """
    with asking(ctx, shard) as wheel:
        shown = [one for one in wheel.status() if shard in (None, one.shard)]
        if as_json:
            put_json({"shards": [_as_dict(one) for one in shown]})
        else:
            for one in shown:
                _print(one)
    ctx.exit(0 if all(one.live for one in shown) else TO_ACT_UPON)


def _as_dict(one: ShardStatus) -> dict[str, Any]:
    return {
        "shard": one.shard,
        "holder": one.holder,
        "live": one.live,
        "snapshot_age_ms": one.snapshot_age_ms,
        "pending": one.pending,
        "levels": (one.snapshot or {}).get("levels", []),
    }


def _print(one: ShardStatus) -> None:
    heard = "was never heard of" if one.snapshot_age_ms is None else f"heard of {duration(one.snapshot_age_ms)} ago"
    click.echo(f"shard {one.shard}: holder {one.holder or 'none'}, {heard}; {one.pending:,} pending in the store")
    if one.snapshot is None:
        return
    found: Any = one.snapshot.get("levels", [])
    buckets = [(level, bucket) for level in found for bucket in level["buckets"]]
    columns: list[Column[Any]] = [
        Column("level", lambda pair: pair[0]["level"], "right"),
        Column("tick", lambda pair: duration(pair[0]["tick_ms"]), "right"),
        Column("interval", lambda pair: duration(pair[0]["interval_ms"]), "right"),
        Column("bucket", lambda pair: pair[1]["index"], "right"),
        Column("expiration", lambda pair: utc(pair[1]["expiration_ms"]), whole=True),
        Column("pending", lambda pair: f"{pair[1]['pending']:,}", "right"),
    ]
    if buckets:
        Lines(columns).print(buckets)
    else:
        click.echo("every bucket is empty")
