"""``celery wheel cancel``, ``reschedule`` and ``run-now``: what becomes of tasks that wait, with a verdict on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import chosen, options, verdicts
from celery_wheel.cli.group import asking, wheel

HANDED = "was handed to the broker, or may have been"
CANCELLED = {
    "done": "is cancelled; it will not be dispatched",
    "already": "an earlier request cancelled it; it will not be dispatched",
    "too_late": HANDED,
    "unknown": "has not come to the wheel; if it comes within a day, it will not be dispatched",
}
MOVED = {"done": "leaves at the new time", "too_late": HANDED, "unknown": "has not come to the wheel"}
RUN = {**MOVED, "done": "leaves now"}


@wheel.command(cls=CeleryCommand, short_help="Cancel pending tasks.")
@chosen.ids
@chosen.filters
@options.yes
@options.asking
@click.pass_context
def cancel(ctx: click.Context, /, **given: Any) -> None:
    """Cancel pending tasks: by id, by ids on stdin (-), or all that wait and fit a filter.

    What a filter chooses is counted and confirmed. Exit code: 0 when all are cancelled, by this request or an earlier
    one; 3 when some were too late, or are unknown; 4 when no scheduler answered in time: what was not answered was
    withdrawn, and nothing will happen to it.
    """
    _act(ctx, "cancel", CANCELLED, lambda wheel, ids, how: wheel.cancel(ids, **how), **given)


@wheel.command(cls=CeleryCommand, short_help="Let tasks leave at another time.")
@chosen.ids
@click.option("--eta", "eta_ms", type=options.Instant(), help="The new time: ISO 8601 (UTC), Unix ms, +30m.")
@click.option("--countdown", type=options.Length(), help="The same as a length of time from now: 90, 10m, 2d.")
@chosen.filters
@options.yes
@options.asking
@click.pass_context
def reschedule(ctx: click.Context, /, eta_ms: int | None, countdown: float | None, **given: Any) -> None:
    """Let tasks leave at another time, which is given by --eta or by --countdown; chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    what was not answered was withdrawn, and nothing will happen to it.
    """
    from celery_wheel.present import when

    if (eta_ms is None) == (countdown is None):
        raise click.UsageError("give --eta or --countdown, and not both; run-now is for now")
    eta = None if eta_ms is None else when(eta_ms)
    if eta_ms is not None and eta is None:
        raise click.BadParameter("is beyond the calendar", param_hint="--eta")

    def move(wheel: Any, ids: Any, how: Any) -> Any:
        try:
            return wheel.reschedule(ids, eta=eta, countdown=countdown, **how)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--eta/--countdown") from error

    _act(ctx, "reschedule", MOVED, move, **given)


@wheel.command(name="run-now", cls=CeleryCommand)
@chosen.ids
@chosen.filters
@options.yes
@options.asking
@click.pass_context
def run_now(ctx: click.Context, /, **given: Any) -> None:
    """Let tasks that wait leave at once; chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    what was not answered was withdrawn, and nothing will happen to it.
    """
    _act(ctx, "run", RUN, lambda wheel, ids, how: wheel.run_now(ids, **how), **given)


def _act(
    ctx: click.Context,
    doing: str,
    meaning: dict[str, str],
    act: Callable[[Any, Any, dict[str, Any]], Any],
    *,
    ids: tuple[str, ...],
    yes: bool,
    reason: str,
    timeout: float,
    as_json: bool,
    key: str | None,
    **filters: Any,
) -> None:
    criteria = {**options.criteria(**filters), "key": key}
    found = chosen.named(ids, any(one is not None for one in criteria.values()))
    how = {"reason": reason, "timeout": timeout, "actor": verdicts.whoever()}
    with asking(ctx, criteria["shard"]) as wheel:
        found = found or chosen.waiting(wheel, criteria)
        chosen.confirm(found, doing, yes)
        said = verdicts.ask(f"asking to {doing}", found.names, lambda part: act(wheel, part, how))
    verdicts.show(ctx, said, meaning, as_json, not found.by_filter, "task id")
