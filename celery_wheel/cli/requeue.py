"""``celery wheel requeue`` and ``replay``: dispatch tasks that were rejected, or that a broker has lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.cli.results import request_each, request_options
from celery_wheel.cli.selection import ids, matches, selected
from celery_wheel.console import parameters as options
from celery_wheel.store.model import REQUEUABLE
from celery_wheel.store.ports.pages import END

REQUEUED = {
    "done": "it is due now",
    "too_late": "it has no such outcome (any more): see `celery -A proj wheel show`",
    "unknown": "the store does not know it",
}
REPLAYED = {
    "done": "it is dispatched once more",
    "too_late": "it is pending, has another outcome, or was dispatched just now",
    "unknown": "it was forgotten meanwhile (wheel_history_retention)",
}


@wheel.command(short_help="Dispatch rejected, expired or parked tasks now.")
@ids
@options.names
@options.shard
@options.span
@click.option(
    "--kind",
    type=click.Choice(REQUEUABLE),
    default="rejected",
    show_default=True,
    help="Outcome that a filter matches.",
)
@options.yes
@options.request
@click.pass_context
def requeue(
    ctx: click.Context,
    /,
    ids: tuple[str, ...],
    kind: str,
    yes: bool,
    reason: str,
    timeout: float,
    as_json: bool,
    **filters: Any,
) -> None:
    """Dispatch rejected, expired or parked tasks now: by id, by ids on stdin (-), or all that match a filter.

    Fix the cause first; `celery wheel rejected` shows it. Bytes that could not be read have no task id and no
    destination, and stay. --from and --to are of the time of the outcome.

    Exit code: 0 when all are done; 3 when some have no such outcome, or are unknown; 4 when no scheduler answered in
    time: unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    criteria, how = options.take_criteria(filters), request_options(reason or "requeued", timeout)
    with open_wheel(ctx, criteria["shard"]) as wheel:
        tasks = selected(
            ids,
            criteria,
            lambda: matches(
                lambda at, rows: wheel.outcomes(kind, before=at, limit=rows, **criteria),
                END,
                lambda one: one.task_id if one.is_stopped else "",
                backwards=True,  # the first that was rejected is dispatched first
            ),
        )
        request_each(
            ctx,
            tasks,
            lambda part: wheel.requeue(part, **how),
            REQUEUED,
            question="Requeue {}?",
            yes=yes,
            as_json=as_json,
        )


@wheel.command(short_help="Dispatch tasks once more that a broker has lost.")
@options.names
@options.shard
@click.option("--from", "from_ms", type=options.InstantParameter(), required=True, help="Due from this instant on.")
@click.option("--to", "to_ms", type=options.InstantParameter(), help="Due before this instant.  [default: now]")
@options.yes
@options.request
@click.pass_context
def replay(
    ctx: click.Context, /, yes: bool, reason: str, timeout: float, as_json: bool, to_ms: int | None, **filters: Any
) -> None:
    """Dispatch tasks once more that a broker has lost. A task that it has not lost RUNS TWICE.

    The command is for tasks that wheel_on_broker_rollback did not send again by itself: with "warn", or beyond
    wheel_rollback_window. Tasks dispatched longer ago than wheel_history_retention are forgotten. The tasks are
    dispatched in the order in which they were due; where the broker keeps no offset (all but Redis) they have the
    header wheel_redelivered.

    Exit code: 0 when all are done; 3 when some could not be; 4 when no scheduler answered in time: unanswered requests
    were withdrawn, and nothing will happen to their tasks.
    """
    criteria = options.take_criteria({**filters, "to_ms": to_ms or options.now_ms()})
    how = request_options(reason or "replayed", timeout)
    with open_wheel(ctx, criteria["shard"]) as wheel:
        rows = matches(partial(wheel.history, **criteria), END, lambda one: one.id, backwards=True)
        request_each(
            ctx,
            rows,
            lambda part: wheel.replay(part, **how),
            REPLAYED,
            question="Dispatch {} once more, whether the broker lost them or not?",
            yes=yes,
            as_json=as_json,
            name="row",
        )
