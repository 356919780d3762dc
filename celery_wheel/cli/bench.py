"""``celery wheel bench``: how many tasks a second this broker and this store take."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import said, wheel
from celery_wheel.cli.output import Column, Lines, progress, put_json
from celery_wheel.cli.starting import start_project


@wheel.command(cls=CeleryCommand, short_help="Measure how many tasks a second this site takes.")
@click.option("--tasks", type=click.IntRange(100, 1_000_000), default=5_000, show_default=True, help="How many.")
@click.option("--bytes", "body", type=click.IntRange(0, 10**6), default=200, show_default=True, help="Of an argument.")
@options.as_json
@click.pass_context
def bench(ctx: click.Context, tasks: int, body: int, as_json: bool) -> None:
    """Measure how many tasks a second are sent, taken in, moved and dispatched, on this broker and beside this store.

    Nothing of yours is touched: queues, namespace and store (a file in the folder of wheel_store, or a schema in its
    database) are made for it, and removed in the end. It loads both servers for some seconds.
    """
    with said():
        from celery_wheel.measure import Figure, measure

        start_project()
        with progress("measuring", 4 * tasks) as bar:
            found = measure(ctx.obj.app, tasks, body, lambda doing, done: bar(done, doing=doing))
    if as_json:
        figures = {one.what: {"seconds": round(one.seconds, 4), "per_s": round(one.per_s)} for one in found}
        put_json({"tasks": tasks, "bytes": body, "figures": figures})
        return
    columns: list[Column[Figure]] = [
        Column("", lambda one: one.what),
        Column("tasks", lambda one: f"{one.count:,}", "right"),
        Column("seconds", lambda one: f"{one.seconds:.2f}", "right"),
        Column("tasks/s", lambda one: f"{one.per_s:,.0f}", "right"),
    ]
    Lines(columns).print(found)
