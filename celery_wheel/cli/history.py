"""``celery wheel history`` and ``rejected``: dispatched tasks, and tasks with another outcome."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.tasks import task_as_dict
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column
from celery_wheel.store.model import OUTCOMES
from celery_wheel.store.ports.pages import END
from celery_wheel.values.format import format_duration, format_utc

if TYPE_CHECKING:
    from celery_wheel.store.model import Position
    from celery_wheel.store.ports.pages import Page, StoppedTask, Task


@wheel.command(short_help="List dispatched tasks with their lateness.")
@options.names
@options.shard
@options.span
@options.paging
@click.pass_context
def history(ctx: click.Context, /, **params: Any) -> None:
    """List dispatched tasks, the last due first, with their lateness: from the eta to the dispatch.

    --from and --to are of the due time. Tasks dispatched longer ago than wheel_history_retention are forgotten.
    """
    criteria = options.take_criteria(params)
    columns: list[Column[Task]] = [
        Column("eta", lambda one: format_utc(one.eta_ms), no_wrap=True),
        Column("dispatched", lambda one: format_utc(one.dispatched_ms), no_wrap=True, optional=True),
        Column("late", lambda one: format_duration(one.late_ms), "right"),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("shard", lambda one: one.shard, "right", optional=True),
    ]

    def as_dict(one: Task) -> dict[str, Any]:
        return {**task_as_dict(one), "dispatched_ms": one.dispatched_ms, "late_ms": one.late_ms}

    with open_wheel(ctx, criteria["shard"]) as wheel:
        Listing("dispatched tasks", columns, as_dict, partial(wheel.history, **criteria), END).show(**params)


@wheel.command(short_help="List rejected tasks with the reason.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(OUTCOMES),
    multiple=True,
    help="Outcome to list; may be given several times.  [default: rejected]",
)
@options.names
@options.shard
@options.span
@options.paging
@click.pass_context
def rejected(ctx: click.Context, /, kinds: tuple[str, ...], **params: Any) -> None:
    """List rejected tasks, the latest first, with the reason; with --kind tasks with another outcome.

    A rejected task could not be sent, or not be read. Its outcome holds until the task is requeued. --from and --to are
    of the time of the outcome.
    """
    criteria, kinds = options.take_criteria(params), tuple(dict.fromkeys(kinds))
    columns: list[Column[StoppedTask]] = [
        Column("at", lambda one: format_utc(one.at_ms), no_wrap=True),
        Column("kind", lambda one: one.kind, no_wrap=True),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("holds", lambda one: "yes" if one.is_stopped else "no", optional=True),
        Column("by", lambda one: one.actor, optional=True),
        Column("reason", lambda one: one.reason, max_chars=1_000),
    ]
    with open_wheel(ctx, criteria["shard"]) as wheel:
        mask = wheel.mask

        def read(before: Position, limit: int) -> Page[StoppedTask]:
            page = wheel.outcomes(*kinds, before=before, limit=limit, **criteria)
            return replace(page, items=[replace(one, reason=mask.text(one.reason)) for one in page.items])

        Listing(f"{' or '.join(kinds or OUTCOMES[:1])} tasks", columns, _as_dict, read, END).show(**params)


def _as_dict(one: StoppedTask) -> dict[str, Any]:
    same = ("at_ms", "kind", "reason", "actor", "task_id", "task", "shard", "size")
    place = {"queue": one.target, "position": f"{one.at_ms}:{one.id}"}
    return {**{name: getattr(one, name) for name in same}, **place, "holds": one.is_stopped}
