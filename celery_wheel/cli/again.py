"""``celery wheel requeue`` and ``replay``: what was rejected, or left already, leaves once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import chosen, options, verdicts
from celery_wheel.cli.group import asking, wheel
from celery_wheel.store.model import SET_ASIDE

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.arguments import How

REQUEUED = {
    "done": "leaves now",
    "too_late": "is not set aside (any more): see `celery wheel show`",
    "unknown": "the store does not know it",
}
REPLAYED = {
    "done": "leaves once more",
    "too_late": "waits, was set aside, or left just now",
    "unknown": "was forgotten meanwhile (wheel_history_retention)",
}


@wheel.command(cls=CeleryCommand, short_help="Let tasks that were set aside leave now.")
@chosen.ids
@options.names
@options.shard
@options.span
@click.option(
    "--kind", type=click.Choice(SET_ASIDE), default="rejected", show_default=True, help="Of a filter: what is."
)
@options.yes
@options.asking
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
    """Let tasks that were set aside leave now: by id, by ids on stdin (-), or all that fit a filter.

    First do away with the reason, which `celery wheel rejected` shows. Bytes that could not be read have no task id and
    no destination; they stay. --from and --to are of the time at which they were set aside.

    Exit code: 0 when all are done; 3 when some were not set aside, or are unknown; 4 when no scheduler answered in
    time: what was not answered was withdrawn, and nothing will happen to it.
    """
    from celery_wheel.store.ports.pages import END

    criteria = options.criteria(**filters)
    found = chosen.named(ids, any(one is not None for one in criteria.values()))
    with asking(ctx, criteria["shard"]) as wheel:
        if found is None:
            found = chosen.collected(
                lambda at, lines: wheel.outcomes(kind, before=at, limit=lines, **criteria),
                END,
                lambda one: one.task_id if one.rests else "",
            )
            found.names.reverse()  # the first that was set aside leaves first
        chosen.confirm(found, "requeue", yes)
        how: How = {"reason": reason or "requeued", "timeout": timeout, "actor": verdicts.whoever()}
        said = verdicts.ask("requeueing", found.names, lambda part: wheel.requeue(part, **how))
    verdicts.show(ctx, said, REQUEUED, as_json, not found.by_filter, "task id")


@wheel.command(cls=CeleryCommand, short_help="Send again what left: after a broker has lost it.")
@options.names
@options.shard
@click.option("--from", "from_ms", type=options.Instant(), required=True, help="Due from this instant on.")
@click.option("--to", "to_ms", type=options.Instant(), help="Due before this instant.  [default: now]")
@options.yes
@options.asking
@click.pass_context
def replay(
    ctx: click.Context, /, yes: bool, reason: str, timeout: float, as_json: bool, to_ms: int | None, **filters: Any
) -> None:
    """Let tasks that left already leave once more: after a broker has lost what it was given.

    Those that it has not lost RUN TWICE. It is for what wheel_on_broker_rollback did not send again by itself: "warn",
    or more than wheel_rollback_window. What is older than wheel_history_retention cannot be had. They leave in the
    order in which they were due; where the broker keeps no offset (all but Redis) they have the
    header wheel_redelivered.

    Exit code: 0 when all are done; 3 when some could not be; 4 when no scheduler answered in time: what was not
    answered was withdrawn, and nothing will happen to it.
    """
    criteria = options.criteria(**filters, to_ms=to_ms or options.now_ms())
    with asking(ctx, criteria["shard"]) as wheel:
        found = _history(wheel, criteria)
        chosen.confirm(found, "send once more, whether they were lost or not,", yes)
        how: How = {"reason": reason or "replayed", "timeout": timeout, "actor": verdicts.whoever()}
        said = verdicts.ask("replaying", found.names, lambda part: wheel.replay(part, **how))
    verdicts.show(ctx, said, REPLAYED, as_json, False, "row")


def _history(wheel: Wheel, criteria: dict[str, Any]) -> chosen.Chosen:
    """The numbers of the rows, the first due first."""
    from celery_wheel.store.ports.pages import END

    found = chosen.collected(lambda at, lines: wheel.history(at, lines, **criteria), END, lambda one: one.id)
    found.names.reverse()
    return found
