"""``celery wheel erase``: erase all that the store has of a task, key, group or schedule, and print the receipt."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from celery_wheel.cli.group import NO_ANSWER, open_wheel, wheel
from celery_wheel.cli.selection import request
from celery_wheel.console import parameters as options
from celery_wheel.console.output import confirm, print_json, progress
from celery_wheel.errors import RequestInDoubt


@wheel.command(short_help="Erase the data of a task, a key, a group or a schedule.")
@click.option("--task-id", help="The task with this id.")
@click.option("--key", help="The tasks that were sent with this key.")
@click.option("--group", help="The tasks of this group, its own limits and its pause.")
@click.option("--schedule", help="The runs and the revisions of the schedule of this name, which was deleted.")
@click.option("--rewrite", is_flag=True, help="Write the database anew afterwards, without bytes of deleted rows.")
@options.yes
@request
@click.pass_context
def erase(ctx: click.Context, /, how: dict[str, Any], rewrite: bool, yes: bool, as_json: bool, **params: Any) -> None:
    """Erase all that the store has of a task, a key, a group or a schedule, and print the receipt, which has no name.

    Pending tasks are not dispatched any more, and are not announced as cancelled. The history, the outcomes and the
    names in the audit log go too. The receipt says what is not covered. The reason stays in the audit log: do not name
    a person in it. While --rewrite writes the database anew, nothing is accepted or dispatched: about a second for each
    100 MB. Exit code: 0 when all is erased; 4 when no scheduler answered in time: the request was withdrawn, or goes on
    where a scheduler has begun with it.
    """
    named = {name: value for name, value in params.items() if value is not None}
    if len(named) != 1:
        raise click.UsageError("name one of --task-id, --key, --group and --schedule")
    [(scope, value)] = named.items()
    confirm(f"Erase everything of the {scope.replace('_', ' ')} {value}? Nothing can undo it.", yes)
    with open_wheel(ctx) as wheel:
        try:
            with progress("erasing"):
                receipt = wheel.erase(**named, **how)
        except RequestInDoubt as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(NO_ANSWER)
        took_s = _rewritten(wheel) if rewrite else None
    if as_json:
        print_json({**asdict(receipt), "at": receipt.at.isoformat(), "rewritten_s": took_s})
        return
    click.echo(str(receipt))
    if took_s is not None:
        click.echo(f"the database was written anew in {took_s:.1f} s")


def _rewritten(wheel: Any) -> float:
    began_s = time.monotonic()
    with progress("writing the database anew"):
        wheel.store.maintenance.rewrite()
    return time.monotonic() - began_s
