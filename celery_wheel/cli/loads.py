"""``celery wheel loads``: the bulk loads of the data pipeline, and an end to one that was left open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import TO_ACT_UPON, asking, wheel
from celery_wheel.cli.output import Column, Lines, agree, put_json
from celery_wheel.present import duration, seen, utc

if TYPE_CHECKING:
    from celery_wheel.store.ports import FullStore
    from celery_wheel.store.ports.loads import Listed


@wheel.command(cls=CeleryCommand, short_help="List bulk loads; end one that was left open.")
@click.option("--abort", metavar="NAME", help="End this open load: nothing of it will be scheduled.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many are shown.")
@options.yes
@options.as_json
@click.pass_context
def loads(ctx: click.Context, abort: str | None, limit: int, yes: bool, as_json: bool) -> None:
    """List bulk loads, the latest first, with what no scheduler has taken in yet.

    A load that is open is being written, or its writer died: run the same job again to go on with it, or --abort it. A
    writer that is alive after all is refused from then on. Exit code: 3 when there is no open load of that name.
    """
    with asking(ctx) as wheel:
        code = 0 if abort is None else _abort(wheel.store, abort, yes)
        _show(wheel.store, limit, as_json)
    ctx.exit(code)


def _abort(store: FullStore, name: str, yes: bool) -> int:
    from celery_wheel.control import now_ms
    from celery_wheel.store.model import OPEN

    found = store.loads.of_name(name)
    if found is None or found.state != OPEN:
        why = f"there is no load {seen(name)}" if found is None else f"the load {seen(name)} is {found.state}"
        click.echo(f"nothing was aborted: {why}", err=True)
        return TO_ACT_UPON
    if not yes:
        age = duration(max(0, now_ms() - found.begun_ms))
        agree(f"Nothing of the load {seen(name)}, which was begun {age} ago, is to be scheduled?")
    if not store.loads.abort(found.id, now_ms(), run=found.run):
        click.echo(f"nothing was aborted: somebody has ended or resumed the load {seen(name)} meanwhile", err=True)
        return TO_ACT_UPON
    return 0


def _show(store: FullStore, limit: int, as_json: bool) -> None:
    found = store.loads.listed(limit)
    if as_json:
        put_json({"loads": [_as_dict(one) for one in found]})
        return
    columns: list[Column[Listed]] = [
        Column("load", lambda one: one.load.name),
        Column("state", lambda one: one.load.state, whole=True),
        Column("messages", lambda one: f"{one.load.rows or one.rows:,}", "right"),
        Column("to take in", lambda one: f"{one.rows:,}", "right"),
        Column("begun", lambda one: utc(one.load.begun_ms), whole=True),
        Column(
            "ended", lambda one: "" if one.load.ended_ms is None else utc(one.load.ended_ms), whole=True, spare=True
        ),
        Column("runs", lambda one: one.load.run, "right", spare=True),
    ]
    if found:
        Lines(columns).print(found)
    else:
        click.echo("there are no loads")


def _as_dict(one: Listed) -> dict[str, Any]:
    return {
        "name": one.load.name,
        "state": one.load.state,
        "run": one.load.run,
        "messages": one.load.rows,
        "to_take_in": one.rows,
        "created_ms": one.load.created_ms,
        "begun_ms": one.load.begun_ms,
        "ended_ms": one.load.ended_ms,
    }
