"""``celery wheel drain`` and ``import``: everything that waits goes elsewhere, or comes in from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import TO_ACT_UPON, said, wheel
from celery_wheel.cli.output import agree, progress, put_json
from celery_wheel.present import many, seen

if TYPE_CHECKING:
    from celery_wheel.leaving import Drained, Imported

#: Bad lines that are shown to people.
SHOWN = 20


@wheel.command(cls=CeleryCommand, short_help="Let what waits wait elsewhere: in queues, or a file.")
@click.option("--to-broker", is_flag=True, help="To each task's own queue, with its eta: workers hold it.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="To this file, for `import`.")
@click.option(
    "--set-aside",
    type=click.Choice(["rejected", "parked"]),
    multiple=True,
    help="With --file: what was set aside as well; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Only count what there is.")
@options.yes
@options.as_json
@click.pass_context
def drain(
    ctx: click.Context,
    to_broker: bool,
    file: Path | None,
    set_aside: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Let everything that waits wait elsewhere, while no scheduler runs: in the tasks' own queues, or in a file.

    It may be killed and run again. After --to-broker Celery's own rules count: workers hold the tasks in memory, and
    one whose eta is further away than the broker's visibility timeout runs again and again. Exit code: 0 when nothing
    is left; 3 when something could not be sent, or is left.
    """
    from celery_wheel.errors import SettingError

    if dry_run == (to_broker or file is not None) or (to_broker and file is not None):
        raise click.UsageError("give one of --to-broker, --file and --dry-run")
    with said():
        from celery_wheel.leaving import drain as drained
        from celery_wheel.leaving import open_for_leaving, would_drain

        store = open_for_leaving(ctx.obj.app)
        try:
            there = would_drain(ctx.obj.app, store)
            if not dry_run:
                _confirm(there, f"to {file}" if file else "to the tasks' own queues", yes)
                try:
                    with _told() as tell:
                        there = drained(
                            ctx.obj.app, store, to_broker=to_broker, file=file, set_aside=set_aside, progress=tell
                        )
                except SettingError as error:
                    raise click.UsageError(str(error)) from error
        finally:
            store.close()
    _show_drained(there, as_json)
    ctx.exit(0 if dry_run or not (there.left or there.rejected) else TO_ACT_UPON)


@wheel.command(name="import", cls=CeleryCommand, short_help="Schedule the tasks of a file that drain has made.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--set-aside", is_flag=True, help="Also what was set aside; bytes that were no message rest again.")
@options.as_json
@click.pass_context
def import_(ctx: click.Context, file: Path, set_aside: bool, as_json: bool) -> None:
    """Schedule the tasks of a FILE that `drain --file` has made, also of another wheel. Schedulers may run.

    Twice is once: what the store knows is not taken in again. Exit code: 0 when every line was read; 3 when some could
    not be, or are missing: the others are there.
    """
    with said():
        from celery_wheel.leaving import import_ as imported

        with _told() as tell:
            found = imported(ctx.obj.app, file, set_aside=set_aside, progress=tell)
    if as_json:
        put_json({**asdict(found), "missing": found.missing})
    else:
        _show_imported(found)
    ctx.exit(TO_ACT_UPON if found.bad_count or found.missing else 0)


def _confirm(there: Drained, where: str, yes: bool) -> None:
    if not yes:
        waiting = there.moved + there.in_queues + there.in_inbox
        agree(f"All schedulers are stopped, and {many(waiting, 'task')} to go {where}?")


def _show_drained(done: Drained, as_json: bool) -> None:
    if as_json:
        put_json({**asdict(done), "file": None if done.file is None else str(done.file)})
        return
    resting = ", ".join(f"{count:,} {kind}" for kind, count in done.set_aside.items())
    if done.dry_run:
        click.echo(
            f"waiting: {many(done.moved, 'task')} in the store, {many(done.in_queues, 'message')} in the wheel queues, "
            f"{many(done.in_inbox, 'item')} in the inbox"
        )
        for queue, count in sorted(done.by_queue.items()):
            click.echo(f"  {count:,} for {seen(queue)}")
    elif done.file is not None:
        click.echo(f"in {done.file}: {many(done.in_file, 'task')}; left in the store: {done.left:,}")
        if done.gone:
            click.echo(f"{done.gone:,} of them were sent by a scheduler since the file was written")
    else:
        click.echo(
            f"{done.moved:,} tasks wait in their own queues now, {done.due:,} were due and left, "
            f"{done.rejected:,} could not be sent, {done.left:,} are left"
        )
    if resting:
        click.echo(f"set aside: {resting}")


def _show_imported(found: Imported) -> None:
    click.echo(
        f"{found.put:,} tasks are in the inbox, {found.known:,} were known, {found.set_aside:,} were set aside and are "
        f"left out, {found.bad_count:,} lines could not be read, {found.missing:,} are missing"
    )
    for line in found.bad[:SHOWN]:
        click.echo(f"line {line.number}: {seen(line.reason, 200)}", err=True)
    if found.bad_count > SHOWN:
        click.echo(f"… {found.bad_count - SHOWN:,} more; --json has them", err=True)


@contextmanager
def _told() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for what tells how much is done, and how much there is."""
    with progress("looking") as bar:
        yield lambda doing, done, total: bar(0, doing=doing, done=done, total=total)
