"""``celery wheel complete``: what watches a key is cancelled, or leaves at once."""

from __future__ import annotations

import sys
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options, verdicts
from celery_wheel.cli.group import TO_ACT_UPON, answered, asking, wheel
from celery_wheel.cli.output import Column, Lines, put_json


@wheel.command(cls=CeleryCommand, short_help="Cancel, or run now, what watches a key.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--run", is_flag=True, help="They leave at once; else they are cancelled.")
@options.asking
@click.pass_context
def complete(ctx: click.Context, keys: tuple[str, ...], run: bool, reason: str, timeout: float, as_json: bool) -> None:
    """Complete every task that watches one of the keys (wheel={"watch": ["order:42"]}); - reads keys from stdin.

    It is cancelled, or with --run leaves at once. Exit code: 0 when no task was too late; 3 when one was handed to the
    broker by its time; 4 when no scheduler answered in time: then it was withdrawn.
    """
    wanted = list(dict.fromkeys(key for one in keys for key in (sys.stdin.read().split() if one == "-" else [one])))
    how: Any = "run" if run else "cancel"
    with asking(ctx) as wheel, answered(ctx):
        found = wheel.complete(wanted, how, reason=reason, timeout=timeout, actor=verdicts.whoever())
    if as_json:
        put_json({"keys": {key: {"done": one.done, "too_late": one.too_late} for key, one in found.items()}})
    else:
        columns: list[Column[Any]] = [
            Column("key", lambda pair: pair[0]),
            Column("run now" if run else "cancelled", lambda pair: f"{pair[1].done:,}", "right"),
            Column("too late", lambda pair: f"{pair[1].too_late:,}", "right"),
        ]
        Lines(columns).print(found.items())
    ctx.exit(TO_ACT_UPON if any(one.too_late for one in found.values()) else 0)
