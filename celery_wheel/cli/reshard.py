"""``celery wheel reshard``: change the number of shards."""

from __future__ import annotations

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm
from celery_wheel.values.format import format_count


@wheel.command(short_help="Give the store another number of shards.")
@click.argument("shards", type=click.IntRange(1))
@options.yes
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; pending tasks move along.

    Tasks with one key keep their order. With fewer shards, the history of the removed shards is forgotten.
    """
    from celery_wheel.operations.stores import reshard_of

    if not yes:
        confirm(f"Are all schedulers stopped, and will they have wheel_shards = {shards} then?")
    with user_errors():
        done = reshard_of(ctx.obj.app, shards)
    doubled = f"{format_count(done.doubled, 'doubled task')} removed, " if done.doubled else ""
    click.echo(
        f"{format_count(done.before, 'shard')} before, {done.after} now; "
        f"{format_count(done.moved, 'pending task')} moved, {doubled}"
        f"{format_count(done.forgotten, 'row')} of history forgotten; set wheel_shards = {done.after} everywhere"
    )
