"""``celery wheel complete``: cancel the tasks that watch a key, or run them at once."""

from __future__ import annotations

from typing import Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.results import request_options
from celery_wheel.cli.selection import words_of
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, print_json


@wheel.command(short_help="Complete the tasks that watch a key.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--run", is_flag=True, help="Run the tasks at once instead of cancelling them.")
@options.request
@click.pass_context
def complete(ctx: click.Context, keys: tuple[str, ...], run: bool, reason: str, timeout: float, as_json: bool) -> None:
    """Complete every task that watches one of the keys (wheel={"watch": ["order:42"]}); - reads keys from stdin.

    The tasks are cancelled, or with --run dispatched at once. Exit code: 0 when no task was too late; 3 when one was
    dispatched at its time; 4 when no scheduler answered in time: the request was withdrawn.
    """
    with open_wheel(ctx) as wheel:
        found = wheel.complete(words_of(keys), "run" if run else "cancel", **request_options(reason, timeout))
    if as_json:
        print_json({"keys": {key: {"done": one.done, "too_late": one.too_late} for key, one in found.items()}})
    else:
        columns: list[Column[Any]] = [
            Column("key", lambda pair: pair[0]),
            Column("run now" if run else "cancelled", lambda pair: f"{pair[1].done:,}", "right"),
            Column("too late", lambda pair: f"{pair[1].too_late:,}", "right"),
        ]
        GrowingTable(columns).print(found.items())
    ctx.exit(NEEDS_ACTION if any(one.too_late for one in found.values()) else 0)
