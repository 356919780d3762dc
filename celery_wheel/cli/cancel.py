"""``celery wheel cancel``, ``reschedule`` and ``run-now``: change pending tasks, with a result for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.cli.results import request_each, request_options
from celery_wheel.cli.selection import filters, ids, matches, selected
from celery_wheel.console import parameters as options
from celery_wheel.store.model import ORIGIN
from celery_wheel.values.format import to_datetime

DISPATCHED = "it was dispatched or may have been, or was rejected or expired before"
CANCELLED = {
    "done": "this request cancelled it; it will not be dispatched",
    "already": "an earlier request cancelled it; it will not be dispatched",
    "too_late": DISPATCHED,
    "unknown": "the wheel has not accepted it; if it arrives within a day, it will not be dispatched",
}
MOVED = {
    "done": "it will be dispatched at its new due time",
    "too_late": DISPATCHED,
    "unknown": "the wheel has not accepted it",
}
RUN = {**MOVED, "done": "it is due now"}


@wheel.command(short_help="Cancel pending tasks.")
@ids
@filters
@options.yes
@options.request
@click.pass_context
def cancel(ctx: click.Context, /, **params: Any) -> None:
    """Cancel pending tasks: by id, by ids on stdin (-), or all that match a filter.

    The matches of a filter are counted and confirmed. Exit code: 0 when all are cancelled, by this request or an
    earlier one; 3 when some were too late, or are unknown; 4 when no scheduler answered in time: unanswered requests
    were withdrawn, and nothing will happen to their tasks.
    """
    _change(ctx, "Cancel {}?", CANCELLED, lambda wheel, ids, how: wheel.cancel(ids, **how), **params)


@wheel.command(short_help="Give pending tasks another due time.")
@ids
@click.option("--eta", "eta_ms", type=options.InstantParameter(), help="New due time: ISO 8601 (UTC), Unix ms, +30m.")
@click.option(
    "--countdown", type=options.DurationParameter(), help="New due time, from now: seconds, or a length like 10m or 2d."
)
@filters
@options.yes
@options.request
@click.pass_context
def reschedule(ctx: click.Context, /, eta_ms: int | None, countdown: float | None, **params: Any) -> None:
    """Give pending tasks another due time: --eta, or --countdown from now. Tasks are chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    if (eta_ms is None) == (countdown is None):
        raise click.UsageError("name --eta or --countdown, and not both; run-now is for now")
    eta = None if eta_ms is None else to_datetime(eta_ms)
    if eta_ms is not None and eta is None:
        raise click.BadParameter("is beyond the calendar", param_hint="--eta")

    def move(wheel: Any, ids: Any, how: Any) -> Any:
        try:
            return wheel.reschedule(ids, eta=eta, countdown=countdown, **how)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--eta/--countdown") from error

    _change(ctx, "Reschedule {}?", MOVED, move, **params)


@wheel.command(name="run-now", short_help="Make pending tasks due now.")
@ids
@filters
@options.yes
@options.request
@click.pass_context
def run_now(ctx: click.Context, /, **params: Any) -> None:
    """Make pending tasks due now. Tasks are chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    _change(ctx, "Run {} now?", RUN, lambda wheel, ids, how: wheel.run_now(ids, **how), **params)


def _change(
    ctx: click.Context,
    question: str,
    meanings: dict[str, str],
    change: Callable[[Any, Any, Any], Any],
    *,
    ids: tuple[str, ...],
    yes: bool,
    reason: str,
    timeout: float,
    as_json: bool,
    **filters: Any,
) -> None:
    criteria, how = options.take_criteria(filters), request_options(reason, timeout)
    with open_wheel(ctx, criteria["shard"]) as wheel:
        read = partial(wheel.pending, **criteria)
        request_each(
            ctx,
            selected(ids, criteria, lambda: matches(read, ORIGIN, lambda one: one.task_id)),
            lambda part: change(wheel, part, how),
            meanings,
            question=question,
            yes=yes,
            as_json=as_json,
        )
