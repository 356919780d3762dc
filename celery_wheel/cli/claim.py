"""``celery wheel claim-broker``: make this store the owner of the broker's offsets."""

from __future__ import annotations

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm


@wheel.command(name="claim-broker", short_help="Make this store the owner of the broker's offsets.")
@options.yes
@click.pass_context
def claim_broker(ctx: click.Context, yes: bool) -> None:
    """Make wheel_store the owner of all its shards in the broker, where another store has adopted them before.

    A scheduler refuses to dispatch where the broker belongs to another store: the pending tasks of that store would
    stay behind. Run this command where the other store is given up, after its schedulers were stopped. The pending
    tasks of the other store stay there: to run them, start its schedulers on another wheel_namespace, or drain it.

    Exit code: 0 also when the broker belongs to this store already; 1 when a scheduler of the other store still runs,
    and nothing of that shard was changed.
    """
    from celery_wheel.operations.claim_broker import claim, other_owners

    with user_errors():
        others = other_owners(ctx.obj.app)
    if not others:
        click.echo("the broker belongs to this store already, or to none")
        return
    for shard, owner in others.items():
        click.echo(f"shard {shard} belongs to store {owner}; its pending tasks stay there")
    if not yes:
        confirm("Are all schedulers of that store stopped, and shall this store own the broker's offsets?")
    with user_errors():
        claim(ctx.obj.app, others)
    click.echo("the broker belongs to this store now; its schedulers dispatch again within a minute")
