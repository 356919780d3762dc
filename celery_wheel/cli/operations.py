"""The whole installation: its tables, its shards, its place, its clocks, and the tasks that go out and come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, start_project, user_errors, wheel
from celery_wheel.cli.selection import request, terminal_user
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, confirm, print_json, print_table, progress
from celery_wheel.errors import SettingError
from celery_wheel.store.model import OPEN
from celery_wheel.values.format import format_count, format_duration, format_utc, printable

if TYPE_CHECKING:
    from celery_wheel.operations.drain import DrainResult, ImportResult
    from celery_wheel.overview import ShardStatus
    from celery_wheel.store.ports import FullStore
    from celery_wheel.store.store_model import BulkLoadSummary, MovedStore


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
        versions = migrate_store(Conf(ctx.obj.app).store, terminal_user())
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
    prints the line of the settings to change afterwards, without a password; restart every process that uses the wheel
    with it. Exit code: 1 when nothing was moved.
    """
    from celery_wheel.conf import Conf
    from celery_wheel.operations.stores import move as operation
    from celery_wheel.operations.stores import settings_line

    confirm("Are all schedulers stopped, and shall the store move?", yes)
    with user_errors(), _bar("copying") as bar:
        start_project()
        done = operation(ctx.obj.app, to, source, bar, terminal_user())
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

    Tasks with one key keep their order. With fewer shards, the history of the removed shards is forgotten; with
    wheel_history_archive, a shard is removed only when its history is archived. Set wheel_shards everywhere afterwards.
    """
    from celery_wheel.operations.stores import reshard_of

    confirm(f"Are all schedulers stopped, and will they have wheel_shards = {shards} then?", yes)
    with user_errors():
        done = reshard_of(ctx.obj.app, shards, terminal_user())
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
    confirm("Are the schedulers on the other side stopped, and shall this store dispatch to this broker?", yes)
    with user_errors():
        claim_broker(ctx.obj.app, terminal_user())
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
    confirm("Are the schedulers of the other copy stopped, and shall this one go on?", yes)
    with user_errors():
        claim_store(ctx.obj.app, terminal_user())
    click.echo("this copy goes on, and the other holds nothing any more; schedulers here dispatch within a minute")


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
        text = {
            "accepted": "due time follows the wall clock now",
            "agreed": "no shard disputes the wall clock; nothing was changed",
            "refused": "the wall clock differs from that of the broker or the store by more than wheel_max_clock_skew; "
            "nothing was changed there; set the clock of the scheduler's host right",
        }
        click.echo(text[answer])
    ctx.exit(0 if answer == "accepted" else NEEDS_ACTION)


def _show_clocks(shards: list[ShardStatus], as_json: bool) -> None:
    clocks = [
        {
            **{name: getattr(one, name) for name in ("shard", "holder", "live")},
            **{f"{name}_ms": found.get(f"clock_{name}_ms") for name in ("disputed", "skew")},
        }
        for one in shards
        for found in ((one.live and one.snapshot) or {},)
    ]
    if as_json:
        print_json({"clocks": clocks})
        return
    columns: list[Column[dict[str, Any]]] = [
        Column("shard", lambda one: str(one["shard"]), "right"),
        Column("holder", lambda one: (one["live"] and one["holder"]) or "none"),
        Column("wall clock", lambda one: _difference(one["disputed_ms"], "due time", "")),
        Column("due time", lambda one: _difference(one["skew_ms"], "the second clock", "no second clock")),
    ]
    GrowingTable(columns).print(clocks)
    for dispute in sorted({one.clock_dispute for one in shards} - {""}):
        click.echo(dispute)


def _difference(ms: int | None, other: str, unknown: str) -> str:
    if ms is None:
        return unknown
    return f"{format_duration(abs(ms))} {'ahead of' if ms > 0 else 'behind'} {other}" if ms else f"agrees with {other}"


#: Bad lines that are shown to people.
SHOWN = 20

_include = click.option(
    "--include",
    type=click.Choice(["rejected"]),
    multiple=True,
    help="With a file: tasks of this outcome as well; may be given several times.",
)


@wheel.command(short_help="Move pending tasks to their own queues, or to a file.")
@click.option("--to-broker", is_flag=True, help="Send each task to its own queue, with its eta: workers hold it.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Write the tasks to this file.")
@_include
@click.option("--dry-run", is_flag=True, help="Only count the tasks.")
@options.yes
@options.as_json
@click.pass_context
def drain(
    ctx: click.Context, /, to_broker: bool, file: Path | None, dry_run: bool, yes: bool, as_json: bool, **include: Any
) -> None:
    """Move all pending tasks, while no scheduler runs: to their own queues, or to a file for `import`.

    The command may be killed and run again. After --to-broker Celery's own rules count: workers hold the tasks in
    memory, and run a task again and again whose eta is further away than the broker's visibility timeout.

    With --file the recurring schedules move to the file as well, and own limits of groups are copied. With --to-broker
    schedules stay in the store, and do not run until a scheduler starts on it. Exit code: 0 when nothing is left; 3
    when a task could not be sent, or a task or, with a file, a schedule is left.
    """
    from celery_wheel.operations import drain as operation

    if dry_run == (to_broker or file is not None) or (to_broker and file is not None):
        raise click.UsageError("name one of --to-broker, --file and --dry-run")
    with user_errors(), closing(operation.open_existing_store(ctx.obj.app)) as store:
        done = operation.would_drain(ctx.obj.app, store)
        if not dry_run:
            confirm(_question(done, file), yes)
            try:
                with _bar("counting") as bar:
                    how = {"progress": bar, "by": terminal_user(), **include}
                    done = operation.drain(ctx.obj.app, store, to_broker=to_broker, file=file, **how)
            except SettingError as error:
                raise click.UsageError(str(error)) from error
    if as_json:
        print_json({**asdict(done), "file": None if done.file is None else str(done.file)})
    else:
        _show_drained(done)
    left = done.left or done.rejected or (done.file is not None and done.schedules_left)
    ctx.exit(NEEDS_ACTION if left and not dry_run else 0)


@wheel.command(name="import", short_help="Schedule the tasks of a file that drain has made.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_include
@options.as_json
@click.pass_context
def import_(ctx: click.Context, file: Path, include: tuple[str, ...], as_json: bool) -> None:
    """Schedule the tasks of a FILE that `drain --file` has made, here or from another wheel. Schedulers may run.

    Recurring schedules go on where they stopped; a name that exists here stays as it is. A second import schedules no
    task twice. Exit code: 0 when all of the file is here; 3 when some of it is not, or is here otherwise than in the
    file: the other lines are imported.

    stderr lists the first such lines. Where a task or schedule is here otherwise than in the file, the store keeps its
    own: keep it, or cancel, rename or delete it and import again. Where a task has left this store since, a later drain
    removed it, and the file of that drain has it. Rejected tasks need --include.
    """
    from celery_wheel.operations import drain as operation

    with user_errors(), _bar("counting") as bar:
        found = operation.import_(ctx.obj.app, file, include=include, progress=bar, by=terminal_user())
    if as_json:
        print_json({**asdict(found), "missing": found.missing, "absent": found.absent})
    else:
        _show_imported(found)
    ctx.exit(NEEDS_ACTION if found.absent else 0)


def _question(found: DrainResult, file: Path | None) -> str:
    moving = format_count(found.moved + found.in_queues + found.in_inbox, "task")
    if file is not None and found.schedules_left:
        moving += f" and {format_count(found.schedules_left, 'schedule')}"
    return f"Are all schedulers stopped, and shall {moving} move to {file or 'their own queues'}?"


def _show_drained(done: DrainResult) -> None:
    if done.dry_run:
        click.echo(
            f"pending: {format_count(done.moved, 'task')} in the store, "
            f"{format_count(done.in_queues, 'message')} in the wheel queues, "
            f"{format_count(done.in_inbox, 'item')} in the inbox; {format_count(done.schedules_left, 'schedule')}"
        )
        for queue, count in sorted(done.by_queue.items()):
            click.echo(f"  {count:,} for {printable(queue)}")
    elif done.file is not None:
        click.echo(
            f"in {done.file}: {format_count(done.in_file, 'task')} and {format_count(done.schedules, 'schedule')}; "
            f"left in the store: {done.left:,} and {done.schedules_left:,}"
        )
        if done.limits:
            click.echo(f"the own limits of {format_count(done.limits, 'group')} are in the file too, and stay here")
        if done.schedules_left:
            click.echo("the schedules that are left have changed since the file was written: drain to another file")
        if done.dispatched_since:
            click.echo(f"{done.dispatched_since:,} of them were dispatched by a scheduler since the file was written")
    else:
        click.echo(
            f"{done.moved:,} tasks are in their own queues now, {done.due:,} were due and were dispatched, "
            f"{done.rejected:,} could not be sent, {done.left:,} are left"
        )
        if done.schedules_left:
            click.echo(
                f"{format_count(done.schedules_left, 'schedule')} in the store: they do not run until a scheduler "
                "starts on this store; `drain --file` takes them along, and `schedules list --json` shows them"
            )
    if done.outcomes:
        click.echo(", ".join(f"{count:,} {kind}" for kind, count in done.outcomes.items()) + " stay in the store")


def _show_imported(found: ImportResult) -> None:
    click.echo(f"{format_count(found.put, 'task')} in the inbox, {found.known:,} in the store before, the same")
    if found.schedules or found.schedules_known:
        click.echo(f"{format_count(found.schedules, 'schedule')} in the inbox, {found.schedules_known:,} here before")
    if found.limits or found.limits_known:
        click.echo(f"limits of {format_count(found.limits, 'group')} in the inbox, {found.limits_known:,} here before")
    if found.renamed:
        click.echo(f"{found.renamed:,} of these tasks have the ids of other tasks here, and got ids of their own")
    for count, what in (
        (found.different, "are here otherwise than in the file, as the lines below say, and stay so"),
        (found.left, "came by an import and left this store since: import the file of the drain that took them away"),
        (found.skipped, "are rejected, and were skipped: --include schedules them"),
        (found.bad_count, "are lines that cannot be read"),
        (found.missing, "are missing in the file, which was shortened: find the whole file and import it"),
    ):
        if count:
            click.echo(f"not imported: {count:,} {what}")
    for line in found.lines[:SHOWN]:
        click.echo(f"line {line.number}: {printable(line.reason, 200)}", err=True)
    if len(found.lines) > SHOWN:
        click.echo(f"… {len(found.lines) - SHOWN:,} more; --json has the first thousand", err=True)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress bar as an operation calls it: with the step, the count that is done, and the total."""
    with progress(title) as bar:
        yield lambda doing, done, total: bar(0, doing=doing, done=done, total=total)


@wheel.command(short_help="List bulk loads; abort one that is open.")
@click.option("--abort", metavar="NAME", help="Abort this open bulk load: nothing of it will be scheduled.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of loads to list.")
@options.yes
@options.as_json
@click.pass_context
def loads(ctx: click.Context, abort: str | None, limit: int, yes: bool, as_json: bool) -> None:
    """List bulk loads, the latest first, with the messages that no scheduler has accepted yet.

    An open load is being written, or its writer died: run the same job again to complete it, or --abort it. A writer
    that is alive after all is refused from then on. Exit code: 3 when there is no open load of that name.
    """
    with open_wheel(ctx) as wheel:
        code = 0 if abort is None else _abort(wheel.store, abort, yes)
        _show_loads(wheel.store, limit, as_json)
    ctx.exit(code)


def _abort(store: FullStore, name: str, yes: bool) -> int:
    found = store.loads.by_name(name)
    if found is None or found.state != OPEN:
        why = f"there is no load {printable(name)}" if found is None else f"the load {printable(name)} is {found.state}"
        click.echo(f"nothing was aborted: {why}", err=True)
        return NEEDS_ACTION
    now_ms = options.now_ms()
    confirm(f"Abort the load {printable(name)}, begun {format_duration(max(0, now_ms - found.begun_ms))} ago?", yes)
    if not store.loads.abort(found.id, now_ms, run=found.run, by=terminal_user()):
        click.echo(f"nothing was aborted: the load {printable(name)} was ended or resumed meanwhile", err=True)
        return NEEDS_ACTION
    return 0


def _show_loads(store: FullStore, limit: int, as_json: bool) -> None:
    found = store.loads.latest(limit)
    if as_json:
        names = ("name", "state", "run", "created_ms", "begun_ms", "ended_ms")
        same = [(one, {name: getattr(one.load, name) for name in names}) for one in found]
        print_json({"loads": [{**load, "messages": one.load.rows, "not_accepted": one.rows} for one, load in same]})
        return
    columns: list[Column[BulkLoadSummary]] = [
        Column("load", lambda one: one.load.name),
        Column("state", lambda one: one.load.state, no_wrap=True),
        Column("messages", lambda one: f"{one.load.rows or one.rows:,}", "right"),
        Column("not accepted", lambda one: f"{one.rows:,}", "right"),
        Column("begun", lambda one: format_utc(one.load.begun_ms), no_wrap=True),
        Column(
            "ended",
            lambda one: "" if one.load.ended_ms is None else format_utc(one.load.ended_ms),
            no_wrap=True,
            optional=True,
        ),
        Column("runs", lambda one: one.load.run, "right", optional=True),
    ]
    print_table(columns, found, empty="there are no loads")
