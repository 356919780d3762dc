"""The past of tasks: ``celery wheel history``, ``rejected`` and ``audit``; ``requeue`` and ``replay`` run it again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.bulk import background, begin_in_background
from celery_wheel.cli.group import WheelGroup, open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.pending import task_as_dict
from celery_wheel.cli.selection import Selection, ids, matches, request, request_each, selected
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, print_json
from celery_wheel.store.audit_model import ORIGINS, PEOPLE, STORE, AuditCriteria
from celery_wheel.store.model import OUTCOMES, REQUEUABLE, REQUEUE
from celery_wheel.store.ports.pages import END
from celery_wheel.values.format import format_duration, format_utc

if TYPE_CHECKING:
    from celery_wheel.store.audit_model import AuditedRequest
    from celery_wheel.store.model import Position
    from celery_wheel.store.ports.pages import Page, StoppedTask, Task


@wheel.command(short_help="List dispatched tasks with their lateness.")
@options.listing
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
@options.listing
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


#: Names in a line of the audit log; --json has all.
NAMES = 3

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


@wheel.command(short_help="Dispatch rejected or expired tasks now.")
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
@background
@options.yes
@request
@click.pass_context
def requeue(ctx: click.Context, /, ids: tuple[str, ...], kind: str, how: Any, background: bool, **params: Any) -> None:
    """Dispatch rejected or expired tasks now: by id, by ids on stdin (-), or all that match a filter.

    Fix the cause first; `celery wheel rejected` shows it. Bytes that could not be read have no task id and no
    destination, and stay. --from and --to are of the time of the outcome. On brokers other than Redis the tasks have
    the header wheel_redelivered.

    Exit code: 0 when all are done; 3 when some have no such outcome (too_late), or are unknown; 4 when no scheduler
    answered in time: unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    criteria, how["reason"] = options.take_criteria(params), how["reason"] or "requeued"
    with open_wheel(ctx, criteria["shard"]) as wheel:

        def match() -> Selection:
            def read(before: Position, limit: int) -> Page[StoppedTask]:
                return wheel.outcomes(kind, before=before, limit=limit, **criteria)

            # Backwards: the first that was rejected is dispatched first.
            return matches(read, END, lambda one: one.task_id if one.is_stopped else "", backwards=True)

        if background:
            begin_in_background(wheel, ids, criteria, REQUEUE, "Requeue {}?", how, outcome=kind, **params)
            return
        tasks = selected(ids, criteria, match)
        request_each(ctx, tasks, lambda part: wheel.requeue(part, **how), REQUEUED, question="Requeue {}?", **params)


@wheel.command(short_help="Dispatch tasks once more that a broker has lost.")
@options.names
@options.shard
@options.instant("--from", "from_ms", required=True, help="Due from this instant on.")
@options.instant("--to", "to_ms", help="Due before this instant.  [default: now]")
@options.yes
@request
@click.pass_context
def replay(ctx: click.Context, /, how: Any, to_ms: int | None, **params: Any) -> None:
    """Dispatch tasks once more that a broker has lost. A task that it has not lost RUNS TWICE.

    The command is for tasks that wheel_on_broker_rollback did not send again by itself: with "warn", or beyond
    wheel_rollback_window. Tasks dispatched longer ago than wheel_history_retention are forgotten. The tasks are
    dispatched in the order in which they were due; where the broker keeps no offset (all but Redis) they have the
    header wheel_redelivered. They cannot be cancelled.

    Exit code: 0 when all are done; 3 when some could not be; 4 when no scheduler answered in time: unanswered requests
    were withdrawn, and nothing will happen to their tasks.
    """
    params["to_ms"], how["reason"] = to_ms or options.now_ms(), how["reason"] or "replayed"
    criteria = options.take_criteria(params)
    with open_wheel(ctx, criteria["shard"]) as wheel:
        rows = matches(partial(wheel.history, **criteria), END, lambda one: one.id, backwards=True)
        question = "Dispatch {} once more, whether the broker lost them or not?"
        request_each(
            ctx, rows, lambda part: wheel.replay(part, **how), REPLAYED, question=question, name="row", **params
        )


@wheel.group(
    cls=WheelGroup, invoke_without_command=True, short_help="List requests and other acts; check and export the log."
)
@options.instant("--since", "from_ms", help="Asked at this instant or later.")
@options.instant("--until", "to_ms", help="Asked before this instant.")
@click.option("--by", "actor", help="A part of the person's name; case is ignored.")
@click.option("--action", help="Only this action, like cancel, pause or schedule_update.")
@click.option(
    "--origin", type=click.Choice([PEOPLE, *ORIGINS]), help="Only requests of this origin; people: admin, cli or api."
)
@click.option("--name", help="A task's id, or the name of a schedule, a key, a group or a gate, like queue:mail.")
@click.option("--bulk", help="The bulk action, by its id.")
@options.paging_by_name
@click.pass_context
def audit(ctx: click.Context, /, **params: Any) -> None:
    """List requests and other acts, the latest first: the person or process, the time, the action and its results.

    Retention (wheel_audit_retention) removes the oldest ones. With --json the list has the result of each name.
    """
    if ctx.invoked_subcommand is not None:
        return
    columns: list[Column[AuditedRequest]] = [
        Column("asked", lambda one: format_utc(one.at_ms), no_wrap=True),
        Column("by", lambda one: one.actor),
        Column("from", lambda one: one.origin, no_wrap=True),
        Column("action", lambda one: one.action, no_wrap=True),
        Column("results", lambda one: counts_of(one.results)),
        Column("names", lambda one: _names(list(one.results)), max_chars=200),
        Column("reason", lambda one: one.reason, max_chars=200, optional=True),
    ]
    paging = {name: params.pop(name) for name in ("limit", "after", "whole", "as_json")}
    with open_wheel(ctx) as wheel:

        def read(before: str, rows: int) -> Any:
            return wheel.audit(before or None, rows, **params)

        Listing("requests", columns, asdict, read, "", str, str).show(**paging)


@audit.command(short_help="Check the chains of the audit log.")
@click.option(
    "--head", "heads", multiple=True, metavar="FILE|TEXT", help="Heads noted earlier, as this command prints them."
)
@options.as_json
@click.pass_context
def verify(ctx: click.Context, heads: tuple[str, ...], as_json: bool) -> None:
    """Check that no entry of the audit log was changed, removed or moved, and print the head of each chain.

    A chain that was cut at its end, or made anew, is whole in itself: note the heads each day in another place, and
    compare them with --head. Exit code: 0 when all chains are whole and have the heads; 1 when one is not.
    """
    texts = [Path(one).read_text() if Path(one).is_file() else one for one in heads]
    with open_wheel(ctx) as wheel:
        found = wheel.verify_audit("\n".join(texts))
    if as_json:
        print_json({"chains": [asdict(one) for one in found]})
    for one in () if as_json else found:
        name = "the store" if one.chain == STORE else f"shard {one.chain}"
        count = f"entries {one.first:,} to {one.last:,}" if one.first <= one.last else "no entries"
        erased = f", the texts of {one.erased:,} were erased" if one.erased else ""
        click.echo(f"{name}: {count}{erased}, {one.problem or 'ok'}; head {one.head}")
    ctx.exit(1 if any(one.problem for one in found) else 0)


@audit.command(short_help="Write the audit log as lines of JSON.")
@click.pass_context
def export(ctx: click.Context) -> None:
    """Write the audit log to stdout as lines of JSON, whose chains can be checked without this package."""
    from celery_wheel.requests.audit import export as lines

    with open_wheel(ctx) as wheel:
        for line in lines(wheel.store, AuditCriteria(), wheel.mask):
            click.echo(line, nl=False)


def counts_of(results: dict[str, Any]) -> str:
    counts = Counter(word_of(one) for one in results.values())
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


def word_of(result: Any) -> str:
    """Return a result as a word: that of a schedule is an object with a reason, that of a key has counts."""
    if not isinstance(result, dict):
        return str(result)
    return str(result["result"]) if "result" in result else json.dumps(result)


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES:,} more" if len(names) > NAMES else "")
