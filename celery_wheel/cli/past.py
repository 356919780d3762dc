"""``celery wheel history`` and ``rejected``: what left, and what was set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import asking, wheel
from celery_wheel.cli.listing import Listing
from celery_wheel.cli.output import Column
from celery_wheel.cli.tasks import task_as_dict
from celery_wheel.present import duration, utc

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import Stopped, Task

KINDS = ("rejected", "cancelled", "expired", "parked", "moved")


@wheel.command(cls=CeleryCommand, short_help="List what left, the last due first, with how late.")
@options.names
@options.shard
@options.span
@options.paging
@click.pass_context
def history(
    ctx: click.Context,
    /,
    limit: int,
    after: tuple[int, int] | None,
    whole: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List what left, the last due first, with how late: from the eta to when the scheduler had sent it.

    --from and --to are of the due time. What left longer ago than wheel_history_retention is forgotten.
    """
    from celery_wheel.store.ports.pages import END

    criteria = options.criteria(**filters)
    columns: list[Column[Task]] = [
        Column("eta", lambda one: utc(one.eta_ms), whole=True),
        Column("left", lambda one: utc(one.dispatched_ms), whole=True, spare=True),
        Column("late", lambda one: duration(one.late_ms), "right"),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("shard", lambda one: one.shard, "right", spare=True),
    ]

    def as_dict(one: Task) -> dict[str, Any]:
        return {**task_as_dict(one), "dispatched_ms": one.dispatched_ms, "late_ms": one.late_ms}

    with asking(ctx, criteria["shard"]) as wheel:
        Listing("history", columns, as_dict, END).show(
            lambda at, lines: wheel.history(at, lines, **criteria),
            limit=limit,
            after=after,
            whole=whole,
            as_json=as_json,
        )


@wheel.command(cls=CeleryCommand, short_help="List what was set aside, with the reason.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="What became of it; may be given several times.  [default: rejected]",
)
@options.names
@options.shard
@options.span
@options.paging
@click.pass_context
def rejected(
    ctx: click.Context,
    /,
    kinds: tuple[str, ...],
    limit: int,
    after: tuple[int, int] | None,
    whole: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List what was set aside, the latest first, with the reason: what could not be sent, and with --kind what else.

    What rests is set aside still; else it has left, or waits, after all. --from and --to are of the time at which it
    was set aside.
    """
    from celery_wheel.store.ports.pages import END

    criteria, kinds = options.criteria(**filters), tuple(dict.fromkeys(kinds))
    columns: list[Column[Stopped]] = [
        Column("at", lambda one: utc(one.at_ms), whole=True),
        Column("kind", lambda one: one.kind, whole=True),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("rests", lambda one: "yes" if one.rests else "no", spare=True),
        Column("by", lambda one: one.actor, spare=True),
        Column("reason", lambda one: one.reason, cut=1_000),
    ]
    with asking(ctx, criteria["shard"]) as wheel:
        Listing("rejected tasks" if not kinds else f"{' or '.join(kinds)} tasks", columns, _as_dict, END).show(
            lambda at, lines: wheel.outcomes(*kinds, before=at, limit=lines, **criteria),
            limit=limit,
            after=after,
            whole=whole,
            as_json=as_json,
        )


def _as_dict(one: Stopped) -> dict[str, Any]:
    return {
        "at_ms": one.at_ms,
        "kind": one.kind,
        "reason": one.reason,
        "actor": one.actor,
        "task_id": one.task_id,
        "task": one.task,
        "queue": one.target,
        "shard": one.shard,
        "size": one.size,
        "rests": one.rests,
        "place": f"{one.at_ms}:{one.id}",
    }
