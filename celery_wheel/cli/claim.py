"""``celery wheel claim-broker`` and ``claim-store``: decide which store dispatches to this broker."""

from __future__ import annotations

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm


@wheel.command(name="claim-broker", short_help="Give the broker to this store.")
@options.yes
@click.pass_context
def claim_broker_(ctx: click.Context, yes: bool) -> None:
    """Give the broker to wheel_store, where the store had another broker, or the broker had another store.

    A scheduler refuses to dispatch where the broker belongs to another store: the pending tasks of that store would
    stay behind. Run this command where the other store is given up, after its schedulers were stopped. The pending
    tasks of the other store stay there: to run them, start its schedulers on another wheel_namespace, or drain it.

    A scheduler does not start where the store dispatches to another broker: its tasks would run with the workers of
    this one. Run this command where the broker moved, or has another address now.

    Exit code: 0 also when broker and store belong together already; 1 when a scheduler of the other store still runs,
    and nothing of that shard was changed.
    """
    from celery_wheel.operations.stores import claim_broker, other_broker, other_owners

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
        claim_broker(ctx.obj.app)
    click.echo("the broker belongs to this store now; its schedulers dispatch again within a minute")


@wheel.command(name="claim-store", short_help="Give the broker to this copy of a store.")
@options.yes
@click.pass_context
def claim_store_(ctx: click.Context, yes: bool) -> None:
    """Give wheel_store the place of another copy of it: it was copied to a new place on purpose.

    A scheduler on a copy holds nothing, and names the copy that held the shards last. Run this command where the other
    copy is given up: stop its schedulers before you copy the store. From then on the other copy holds nothing. Tasks
    that it accepted or dispatched after it was copied are not known here.

    A store needs no claim after `wheel move`, a restart, a takeover by a standby, or a restore to its former place.

    Exit code: 0 also when the broker knows no other copy; 1 when a scheduler of the other copy still runs, and nothing
    was changed.
    """
    from celery_wheel.operations.stores import claim_store, other_copies

    with user_errors():
        copies = other_copies(ctx.obj.app)
    if not copies:
        click.echo("the broker knows no other copy of this store")
        return
    for shard, owner in copies.items():
        click.echo(f"shard {shard} was held last by the copy {owner.place}")
    if not yes:
        confirm("Are the schedulers of the other copy stopped, and shall this one go on?")
    with user_errors():
        claim_store(ctx.obj.app)
    click.echo("this copy goes on, and the other holds nothing any more; schedulers here dispatch within a minute")
