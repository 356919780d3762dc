"""``celery wheel claim-broker``: the broker's offsets become those of this store."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import said, wheel
from celery_wheel.cli.output import agree


@wheel.command(name="claim-broker", cls=CeleryCommand, short_help="Make this store the owner of the broker's offsets.")
@options.yes
@click.pass_context
def claim_broker(ctx: click.Context, yes: bool) -> None:
    """Make wheel_store the owner of all its shards in the broker, which another store has adopted before.

    A scheduler refuses to dispatch where the broker belongs to another store: the tasks that are pending in that store
    would stay behind. Run this when that is meant, after the other store's schedulers were stopped. The pending tasks
    of the other store stay there: start its schedulers on another wheel_namespace, or drain it, to have them run.

    Exit code: 0 also when nothing was to be done; 1 when a scheduler of the other store still runs, and nothing of
    that shard was changed then.
    """
    from celery_wheel.claim import claim, other_owners

    with said():
        others = other_owners(ctx.obj.app)
    if not others:
        click.echo("the broker belongs to this store already, or to none")
        return
    for shard, owner in others.items():
        click.echo(f"shard {shard} belongs to store {owner}; its pending tasks stay there")
    if not yes:
        agree("All schedulers of that store are stopped, and this store is to own the broker's offsets?")
    with said():
        claim(ctx.obj.app, others)
    click.echo("the broker belongs to this store now; its schedulers go on within a minute")
