"""``celery wheel reshard``: another number of shards."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli.group import said, wheel


@wheel.command(cls=CeleryCommand)
@click.argument("shards", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; what waits moves along.

    Tasks with one key keep their order. With fewer shards, the history of those that are no more is forgotten.
    """
    from celery_wheel.service import reshard_of

    if not yes:
        click.confirm(f"All schedulers are stopped, and are to have wheel_shards = {shards} then?", abort=True)
    with said():
        done = reshard_of(ctx.obj.app, shards)
    click.echo(
        f"{done.before} shards were there, {done.after} are now; {done.moved:,} pending tasks moved, "
        f"{done.forgotten:,} rows of history were forgotten; set wheel_shards = {done.after} everywhere"
    )
