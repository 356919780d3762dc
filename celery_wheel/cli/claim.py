"""``celery wheel claim-broker``: let this store dispatch to this broker."""

from __future__ import annotations

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm


@wheel.command(name="claim-broker", short_help="Give the broker to this store.")
@options.yes
@click.pass_context
def claim_broker(ctx: click.Context, yes: bool) -> None:
    """Give the broker to wheel_store, where the store had another broker, or the broker had another store.

    A scheduler refuses to dispatch where the broker belongs to another store: the pending tasks of that store would
    stay behind. Run this command where the other store is given up, after its schedulers were stopped. The pending
    tasks of the other store stay there: to run them, start its schedulers on another wheel_namespace, or drain it.

    A scheduler does not start where the store dispatches to another broker: its tasks would run with the workers of
    this one. Run this command where the broker moved, or has another address now.

    Exit code: 0 also when broker and store belong together already; 1 when a scheduler of the other store still runs,
    and nothing of that shard was changed.
    """
    from celery_wheel.operations.claim_broker import claim, other_broker, other_owners

    with user_errors():
        others, broker = other_owners(ctx.obj.app), other_broker(ctx.obj.app)
    if not others and not broker:
        click.echo("the broker belongs to this store already, or to none")
        return
    if broker:
        click.echo(f"the store dispatches to {broker}; its pending tasks will be published to this broker")
    for shard, owner in others.items():
        click.echo(f"shard {shard} belongs to store {owner}; its pending tasks stay there")
    if not yes:
        confirm("Are the schedulers on the other side stopped, and shall this store dispatch to this broker?")
    with user_errors():
        claim(ctx.obj.app, others)
    click.echo("the broker belongs to this store now; its schedulers dispatch again within a minute")
