"""``celery wheel loads``: list the bulk loads of the data pipeline, and abort one that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, confirm, print_json, print_table
from celery_wheel.store.model import OPEN
from celery_wheel.values.format import format_duration, format_utc, printable

if TYPE_CHECKING:
    from celery_wheel.store.ports import FullStore
    from celery_wheel.store.store_model import BulkLoadSummary


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
        _show(wheel.store, limit, as_json)
    ctx.exit(code)


def _abort(store: FullStore, name: str, yes: bool) -> int:
    found = store.loads.by_name(name)
    if found is None or found.state != OPEN:
        why = f"there is no load {printable(name)}" if found is None else f"the load {printable(name)} is {found.state}"
        click.echo(f"nothing was aborted: {why}", err=True)
        return NEEDS_ACTION
    now_ms = options.now_ms()
    if not yes:
        confirm(f"Abort the load {printable(name)}, begun {format_duration(max(0, now_ms - found.begun_ms))} ago?")
    if not store.loads.abort(found.id, now_ms, run=found.run):
        click.echo(f"nothing was aborted: the load {printable(name)} was ended or resumed meanwhile", err=True)
        return NEEDS_ACTION
    return 0


def _show(store: FullStore, limit: int, as_json: bool) -> None:
    found = store.loads.latest(limit)
    if as_json:
        print_json({"loads": [_as_dict(one) for one in found]})
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


def _as_dict(one: BulkLoadSummary) -> dict[str, Any]:
    same = {name: getattr(one.load, name) for name in ("name", "state", "run", "created_ms", "begun_ms", "ended_ms")}
    return {**same, "messages": one.load.rows, "not_accepted": one.rows}
