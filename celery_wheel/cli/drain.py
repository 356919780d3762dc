"""``celery wheel drain`` and ``import``: move tasks and schedules out of the wheel, and bring those of a file in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_wheel.cli.group import NEEDS_ACTION, user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm, print_json, progress
from celery_wheel.errors import SettingError
from celery_wheel.values.format import format_count, printable

if TYPE_CHECKING:
    from celery_wheel.operations.drain import DrainResult, ImportResult

#: Bad lines that are shown to people.
SHOWN = 20

_include = click.option(
    "--include",
    type=click.Choice(["rejected", "parked"]),
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
    ctx: click.Context,
    to_broker: bool,
    file: Path | None,
    include: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move all pending tasks, while no scheduler runs: to their own queues, or to a file for `import`.

    The command may be killed and run again. After --to-broker Celery's own rules count: workers hold the tasks in
    memory, and run a task again and again whose eta is further away than the broker's visibility timeout.

    With --file the recurring schedules move to the file as well. With --to-broker they stay in the store, and do not
    run until a scheduler starts on it. Exit code: 0 when nothing is left; 3 when a task
    could not be sent, or a task or, with a file, a schedule is left.
    """
    from celery_wheel.operations import drain as operation

    if dry_run == (to_broker or file is not None) or (to_broker and file is not None):
        raise click.UsageError("name one of --to-broker, --file and --dry-run")
    with user_errors(), closing(operation.open_existing_store(ctx.obj.app)) as store:
        done = operation.would_drain(ctx.obj.app, store)
        if not dry_run:
            if not yes:
                confirm(_question(done, file))
            try:
                with _bar() as bar:
                    done = operation.drain(
                        ctx.obj.app, store, to_broker=to_broker, file=file, include=include, progress=bar
                    )
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
    """
    from celery_wheel.operations import drain as operation

    with user_errors(), _bar() as bar:
        found = operation.import_(ctx.obj.app, file, include=include, progress=bar)
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
    if found.renamed:
        click.echo(f"{found.renamed:,} of these tasks have the ids of other tasks here, and got ids of their own")
    for count, what in (
        (
            found.different,
            "are here otherwise than in the file, as the lines below say, and stay so",
        ),
        (found.left, "came by an import and left this store since: import the file of the drain that took them away"),
        (found.skipped, "are rejected or parked, and were skipped: --include schedules them"),
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
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress bar as an operation calls it: with the step, the count that is done, and the total."""
    with progress("counting") as bar:
        yield lambda doing, done, total: bar(0, doing=doing, done=done, total=total)
