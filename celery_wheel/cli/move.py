"""``celery wheel move``: move the store to another database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.cli.project import start_project
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm, print_json, progress
from celery_wheel.values.format import format_count

if TYPE_CHECKING:
    from celery_wheel.store.store_model import MovedStore


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
    from celery_wheel.operations.stores import move as operation
    from celery_wheel.operations.stores import settings_line

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
        _show(done, settings_line(Conf(ctx.obj.app), to))


def _show(done: MovedStore, line: str) -> None:
    if done.resumed:
        click.echo("an earlier move had copied everything; it is complete now")
    else:
        tasks, schedules = (done.rows[f"wheel_{name}"] for name in ("timer", "schedule"))
        click.echo(f"{format_count(tasks, 'task')}, history included, and {format_count(schedules, 'schedule')} moved")
    secret = ", with the password in the place of PASSWORD," if "PASSWORD" in line else ""
    click.echo(f"write this line into the settings{secret} and restart everything that uses the wheel:\n\n{line}")
