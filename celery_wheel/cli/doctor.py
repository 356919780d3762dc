"""This installation: ``celery wheel doctor`` checks it, and ``bench`` measures it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_wheel.cli.group import NEEDS_ACTION, start_project, user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, print_json, progress
from celery_wheel.values.format import format_count

if TYPE_CHECKING:
    from celery_wheel.operations.bench import Pace


SHOWN = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@wheel.command(short_help="Check this installation, and name each remedy.")
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check settings, broker, store, clocks and schedulers, from this host, and name the remedy of each problem.

    Nothing is changed. Exit code: 0 when all is well, 3 when there are warnings, 1 when there are errors. A note is
    right for some installations, and does not count.
    """
    from celery_wheel.operations.doctor import CHECKS, Grade, examine

    found = []
    with user_errors(), progress("checking", len(CHECKS)) as done:
        start_project()
        for findings in examine(ctx.obj.app):
            found += findings
            done(1)
    errors, warnings = ([one.grade for one in found].count(grade) for grade in (Grade.ERROR, Grade.WARNING))
    code = 1 if errors else NEEDS_ACTION if warnings else 0
    if as_json:
        print_json({"code": code, "findings": [asdict(one) for one in found]})
        ctx.exit(code)
    for one in found:
        word, colour = SHOWN[one.grade]
        click.echo(f"{click.style(f'{word:7}', fg=colour)}  {one.about:13} {one.text}")
        if one.remedy:
            click.echo(f"{'':24}→ {one.remedy}")
    counts = f"{format_count(errors, 'error')}, {format_count(warnings, 'warning')}"
    click.echo(f"{format_count(len(found), 'finding')}: {counts}")
    ctx.exit(code)


def number(value: float) -> str:
    """Return the value with three significant digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


@wheel.command(short_help="Measure how many tasks a second this site handles.")
@click.option(
    "--tasks", type=click.IntRange(100, 1_000_000), default=5_000, show_default=True, help="Number of tasks to send."
)
@click.option(
    "--bytes", "body", type=click.IntRange(0, 10**6), default=200, show_default=True, help="Size of a task's argument."
)
@options.as_json
@click.pass_context
def bench(ctx: click.Context, tasks: int, body: int, as_json: bool) -> None:
    """Measure how many tasks a second are sent, accepted, moved and dispatched, on this broker and beside this store.

    The bench makes its own queues, namespace and store (a folder beside the file of wheel_store, or a schema in its
    database), and removes them in the end. It loads both servers for some seconds.
    """
    from celery_wheel.operations.bench import measure

    with user_errors():
        start_project()
        with progress("measuring", 4 * tasks) as bar:
            paces: dict[str, Pace] = measure(ctx.obj.app, tasks, body, lambda doing, done: bar(done, doing=doing))
    if as_json:
        figures = {name: {"seconds": round(one.wall_s, 4), "per_s": round(one.per_s)} for name, one in paces.items()}
        print_json({"tasks": tasks, "bytes": body, "figures": figures})
    else:
        click.echo(f"{tasks:,} tasks with an argument of {body:,} bytes")
        columns: list[Column[tuple[str, Pace]]] = [
            Column("what", lambda pair: pair[0]),
            Column("value", lambda pair: number(pair[1].per_s), "right"),
            Column("unit", lambda _: "tasks/s"),
        ]
        GrowingTable(columns).print(paces.items())
