"""The whole installation: ``celery wheel migrate``, ``move``, ``reshard``, ``claim-broker``, ``claim-store``, ``clock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, start_project, user_errors, wheel
from celery_wheel.cli.selection import request
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, confirm, print_json, progress
from celery_wheel.values.format import format_count, format_duration

if TYPE_CHECKING:
    from celery_wheel.overview import ShardStatus
    from celery_wheel.store.ports.maintenance import MovedStore


@wheel.command(short_help="Bring the tables of the store to this version.")
@options.as_json
@click.pass_context
def migrate(ctx: click.Context, as_json: bool) -> None:
    """Bring the tables of wheel_store to this version, in place, while no scheduler runs. Nothing is lost.

    A store in Django's database is migrated by `python manage.py migrate`. Exit code: 0 also when the tables have this
    version already; 1 when they could not be migrated, and nothing was changed.
    """
    from celery_wheel.conf import Conf
    from celery_wheel.store import migrate_store

    with user_errors(), progress("migrating"):
        versions = migrate_store(Conf(ctx.obj.app).store)
    if as_json:
        print_json({"versions": versions})
    elif versions:
        click.echo(f"the tables have version {versions[-1]} now; start the schedulers")
    else:
        click.echo("the tables have this version already")


@wheel.command(short_help="Move the store to another database.")
@click.option("--to", required=True, metavar="URL", help="The new store, as in wheel_store; it must be empty.")
@click.option("--from", "source", metavar="URL", help="The old store; by default the one that wheel_store names.")
@options.yes
@options.as_json
@click.pass_context
def move(ctx: click.Context, to: str, source: str | None, yes: bool, as_json: bool) -> None:
    """Move the store to another database, while no scheduler runs: a file, PostgreSQL, or django://default.

    Pending tasks, schedules, pauses, history and the audit log move along, and tables are made. Messages in the broker
    stay there. The command may be killed and run again; the old store refuses every use from then on. The command
    prints the line of the settings to change afterwards; no password is printed. Exit code: 1 when nothing was moved.
    """
    from celery_wheel.conf import Conf
    from celery_wheel.operations.move import move as operation
    from celery_wheel.operations.move import settings_line

    if not yes:
        confirm("Are all schedulers stopped, and shall the store move?")
    with user_errors(), progress("copying") as bar:
        start_project()
        done = operation(
            ctx.obj.app, to, source, lambda step, copied, total: bar(0, doing=step, done=copied, total=total)
        )
    if as_json:
        print_json({"store": done.place, "resumed": done.resumed, "rows": done.rows})
    else:
        _show_moved(done, settings_line(Conf(ctx.obj.app), to))


def _show_moved(done: MovedStore, line: str) -> None:
    if done.resumed:
        click.echo("an earlier move had copied everything; it is complete now")
    else:
        tasks, schedules = (done.rows[f"wheel_{name}"] for name in ("timer", "schedule"))
        click.echo(f"{format_count(tasks, 'task')}, history included, and {format_count(schedules, 'schedule')} moved")
    secret = ", with the password in the place of PASSWORD," if "PASSWORD" in line else ""
    click.echo(f"write this line into the settings{secret} and restart everything that uses the wheel:\n\n{line}")


@wheel.command(short_help="Give the store another number of shards.")
@click.argument("shards", type=click.IntRange(1))
@options.yes
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; pending tasks move along.

    Tasks with one key keep their order. With fewer shards, the history of the removed shards is forgotten.
    """
    from celery_wheel.operations.reshard import reshard_of

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
    from celery_wheel.operations.claim import claim_broker, other_broker, other_owners

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
    from celery_wheel.operations.claim import claim_store, other_copies

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


ANSWERS = {
    "accepted": "due time follows the wall clock now",
    "agreed": "no shard disputes the wall clock; nothing was changed",
    "refused": "the wall clock differs from that of the broker or the store by more than wheel_max_clock_skew; nothing "
    "was changed there; set the clock of the scheduler's host right",
}


@wheel.command(short_help="Show the schedulers' clocks; accept a disputed clock.")
@click.argument("action", required=False, type=click.Choice(["accept"]), metavar="[accept]")
@request
@click.pass_context
def clock(ctx: click.Context, action: str | None, how: Any, as_json: bool) -> None:
    """Show each holder's wall clock against due time, and due time against the clock of the broker or the store.

    A wall clock that was stepped is disputed until the broker's or the store's clock agrees with it; `accept` makes due
    time follow it where neither has a clock. Exit code: 0 when no clock is disputed, or it was accepted; 3 when a clock
    is disputed, or nothing was to be accepted, or it was refused; 4 when no scheduler answered in time: the request was
    withdrawn.
    """
    with open_wheel(ctx) as wheel:
        if action is None:
            shards = wheel.status()
            _show_clocks(shards, as_json)
            ctx.exit(NEEDS_ACTION if any(one.clock_dispute for one in shards) else 0)
        answer = wheel.accept_clock(**how)
    if as_json:
        print_json({"answer": answer})
    else:
        click.echo(ANSWERS[answer])
    ctx.exit(0 if answer == "accepted" else NEEDS_ACTION)


def _show_clocks(shards: list[ShardStatus], as_json: bool) -> None:
    if as_json:
        print_json({"clocks": [_clock_as_dict(one) for one in shards]})
        return
    columns: list[Column[ShardStatus]] = [
        Column("shard", lambda one: str(one.shard), "right"),
        Column("holder", lambda one: one.holder if one.holder and one.live else "none"),
        Column("wall clock", lambda one: _difference(_clock_as_dict(one)["disputed_ms"], "due time", "")),
        Column(
            "due time", lambda one: _difference(_clock_as_dict(one)["skew_ms"], "the second clock", "no second clock")
        ),
    ]
    GrowingTable(columns).print(shards)
    for dispute in sorted({one.clock_dispute for one in shards} - {""}):
        click.echo(dispute)


def _difference(ms: int | None, other: str, unknown: str) -> str:
    if ms is None:
        return unknown
    return f"{format_duration(abs(ms))} {'ahead of' if ms > 0 else 'behind'} {other}" if ms else f"agrees with {other}"


def _clock_as_dict(one: ShardStatus) -> dict[str, Any]:
    snapshot = (one.live and one.snapshot) or {}
    return {
        "shard": one.shard,
        "holder": one.holder,
        "live": one.live,
        "disputed_ms": snapshot.get("clock_disputed_ms"),
        "skew_ms": snapshot.get("clock_skew_ms"),
    }
