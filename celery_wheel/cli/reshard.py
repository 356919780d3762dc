"""``celery wheel reshard``: another number of shards."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import said, wheel
from celery_wheel.cli.output import agree
from celery_wheel.present import many


@wheel.command(cls=CeleryCommand, short_help="Give the store another number of shards.")
@click.argument("shards", type=click.IntRange(1))
@options.yes
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; what waits moves along.

    Tasks with one key keep their order. With fewer shards, the history of those that are no more is forgotten.
    """
    from celery_wheel.service import reshard_of

    if not yes:
        agree(f"All schedulers are stopped, and are to have wheel_shards = {shards} then?")
    with said():
        done = reshard_of(ctx.obj.app, shards)
    click.echo(
        f"{many(done.before, 'shard')} before, {done.after} now; {many(done.moved, 'pending task')} moved, "
        f"{many(done.forgotten, 'row')} of history forgotten; set wheel_shards = {done.after} everywhere"
    )
