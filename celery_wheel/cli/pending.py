"""Pending tasks: ``celery wheel list`` and ``show``; ``cancel``, ``reschedule``, ``run-now`` and ``complete``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.bulk import background, begin_in_background
from celery_wheel.cli.group import NEEDS_ACTION, open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.selection import filters, ids, matches, request, request_each, selected, words_of
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, console, facts_table, print_json
from celery_wheel.store.model import CANCEL, MOVE, ORIGIN
from celery_wheel.values.format import PART_CUT, format_duration, format_part, format_utc, printable
from celery_wheel.values.instants import utc

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import Detail, Task
    from celery_wheel.values.mask import Mask


#: Characters of a body that JSON shows; --body writes the whole body.
BEGINNING = 1_024


def task_as_dict(task: Task) -> dict[str, Any]:
    """Return a task as JSON shows it; instants are Unix milliseconds."""
    names = ("task_id", "task", "shard", "lane", "due_ms", "eta_ms", "priority", "key", "group", "expires_ms")
    same = {name: getattr(task, name) for name in (*names, "created_ms", "accepted_ms", "size")}
    return {**same, "queue": task.target, "position": f"{task.due_ms}:{task.seq}"}


@wheel.command(name="list", short_help="List pending tasks, the next due first.")
@options.listing
@click.pass_context
def list_(ctx: click.Context, /, **params: Any) -> None:
    """List pending tasks, the next due first.

    A page prints the cursor of the next page (--after); --all writes all pages, and keeps none in memory. A filter by
    task or queue reads only the hours in which it has tasks. A filter by group reads all tasks, 10,000 for a page, so a
    page may be short or empty. --from and --to are of the due time.
    """
    criteria = options.take_criteria(params)
    columns: list[Column[Task]] = [
        Column("due", lambda one: format_utc(one.due_ms), no_wrap=True),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("shard", lambda one: one.shard, "right", optional=True),
        Column("key", lambda one: one.key or ""),
        Column("bytes", lambda one: f"{one.size:,}", "right", optional=True),
    ]
    with open_wheel(ctx, criteria["shard"]) as wheel:
        listing = Listing("pending tasks", columns, task_as_dict, partial(wheel.pending, **criteria), ORIGIN)
        # The counts by the hour know no group.
        count = None if criteria["group"] else lambda: sum(hour.pending for hour in wheel.forecast(**criteria))
        listing.show(**params, count=count)


@wheel.command(short_help="Show all messages of a task.")
@click.argument("task_id")
@click.option("--body", "raw_body", is_flag=True, help="Write only the body's bytes to stdout.")
@options.as_json
@click.pass_context
def show(ctx: click.Context, task_id: str, raw_body: bool, as_json: bool) -> None:
    """Show all messages of TASK_ID, with headers and body: a retried task has one for each try.

    Values that the setting wheel_mask names are hidden, also with --body.

    Exit code: 0 when the store knows the task, 3 when it does not (any more).
    """
    if raw_body and as_json:
        raise click.UsageError("name --body or --json, and not both", ctx)
    with open_wheel(ctx) as wheel:
        mask, of_task = wheel.mask, wheel.find(task_id)
        found = [masked(one, mask) for one in sorted(of_task, key=lambda one: one.task.position, reverse=True)]
        if raw_body and found:
            click.echo(found[0].body, nl=False)
        elif as_json:
            print_json({"task_id": task_id, "messages": [_detail_as_dict(one) for one in found]})
        for one in [] if raw_body or as_json else found:
            console().print(facts_table(f"{printable(one.task.task)}  {one.state}", _facts(one)))
    if not found:
        click.echo(
            f"the store does not know task {printable(task_id)}: no scheduler has accepted it yet, it was sent without "
            "a delay, or it was dispatched so long ago that it is forgotten (wheel_history_retention)",
            err=True,
        )
        ctx.exit(NEEDS_ACTION)


def masked(one: Detail, mask: Mask) -> Detail:
    """Return a message without the values that ``wheel_mask`` names."""
    if not mask:
        return one
    headers, properties, body = map(mask.part, (one.headers, one.properties, one.body))
    outcomes = [replace(each, reason=mask.text(each.reason)) for each in one.outcomes]
    return replace(one, headers=headers, properties=properties, body=body, outcomes=outcomes)


def _detail_as_dict(one: Detail) -> dict[str, Any]:
    names = ("state", "blocked_by", "exchange", "exchange_type", "routing_key", "envelope_id")
    return {
        **task_as_dict(one.task),
        **{name: getattr(one, name) for name in names},
        "dispatched_ms": one.task.dispatched_ms,
        "late_ms": one.task.late_ms,
        "headers": _object(one.headers),
        "properties": _object(one.properties),
        "body": _beginning(one.body),
        "outcomes": [
            {name: getattr(each, name) for name in ("kind", "reason", "actor", "at_ms")} for each in one.outcomes
        ],
    }


def _object(raw: bytes) -> Any:
    """Return the JSON of ``raw``; a rejected message may have any bytes instead."""
    with suppress(ValueError, RecursionError):
        return json.loads(raw)
    return _beginning(raw)


def _beginning(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        shown, form = raw[:BEGINNING].hex(), "hex"
    else:
        shown, form = text[:BEGINNING], "text"
    return {"bytes": len(raw), form: shown, "whole": len(raw if form == "hex" else text) <= BEGINNING}


def _facts(one: Detail) -> list[tuple[str, str]]:
    task = one.task
    lines = [
        ("task id", printable(task.task_id, PART_CUT)),
        ("state", one.state + (f", waits for {printable(one.blocked_by)}" if one.blocked_by else "")),
        ("eta", format_utc(task.eta_ms)),
        ("due", format_utc(task.due_ms)),
        ("sent", format_utc(task.created_ms)),
        ("accepted", format_utc(task.accepted_ms)),
        (
            "dispatched",
            f"{format_utc(task.dispatched_ms)}, {format_duration(task.late_ms)} late" if task.dispatched_ms else "-",
        ),
        ("expires", format_utc(task.expires_ms)),
        ("exchange", f"{printable(one.exchange) or 'the default one'} ({printable(one.exchange_type)})"),
        ("routing key", printable(one.routing_key)),
        ("queue", "-" if one.queue is None else printable(one.queue)),
        ("priority", "-" if task.priority is None else str(task.priority)),
        ("key", "-" if task.key is None else printable(task.key)),
        ("group", "-" if task.group is None else printable(task.group)),
        ("shard, lane", f"{task.shard}, {task.lane}"),
        ("position", f"{task.due_ms}:{task.seq}"),
        ("envelope id", one.envelope_id),
    ]
    lines += [
        (each.kind, f"{format_utc(each.at_ms)} by {printable(each.actor)}: {printable(each.reason, PART_CUT)}")
        for each in one.outcomes
    ]
    body = f"body, {len(one.body):,} bytes"
    return [
        *lines,
        ("headers", format_part(one.headers)),
        ("properties", format_part(one.properties)),
        (body, format_part(one.body)),
    ]


_chosen = options.all_of(ids, filters, background, options.yes, request)

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
@_chosen
@click.pass_context
def cancel(ctx: click.Context, /, **params: Any) -> None:
    """Cancel pending tasks: by id, by ids on stdin (-), or all that match a filter.

    The matches of a filter are counted and confirmed. With --background the schedulers act on them, and the command
    ends at once. More than 2,000 tasks are sent in several requests, each with the whole --timeout.

    Exit code: 0 when all are cancelled, by this request (done) or an earlier one (already); 3 when some were too late,
    or are unknown; 4 when no scheduler answered in time: unanswered requests were withdrawn, and nothing will happen
    to their tasks.
    """
    send = lambda wheel, ids, how: wheel.cancel(ids, **how)  # noqa: E731
    _change(ctx, "Cancel {}?", CANCELLED, send, bulk={"verb": CANCEL}, **params)


@wheel.command(short_help="Give pending tasks another due time.")
@ids
@options.instant("--eta", "eta_ms", help="New due time: ISO 8601 (UTC), Unix ms, +30m.")
@options.length("--countdown", help="New due time, from now: seconds, or a length like 10m or 2d.")
@filters
@background
@options.yes
@request
@click.pass_context
def reschedule(ctx: click.Context, /, eta_ms: int | None, countdown: float | None, **params: Any) -> None:
    """Give pending tasks another due time: --eta, or --countdown from now. Tasks are chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    if (eta_ms is None) == (countdown is None):
        raise click.UsageError("name --eta or --countdown, and not both; run-now is for now")
    eta = None if eta_ms is None else utc(eta_ms)

    def move(wheel: Any, ids: Any, how: Any) -> Any:
        try:
            return wheel.reschedule(ids, eta=eta, countdown=countdown, **how)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--eta/--countdown") from error

    at_ms = eta_ms if countdown is None else options.now_ms() + round(countdown * 1_000)
    _change(ctx, "Reschedule {}?", MOVED, move, bulk={"verb": MOVE, "eta_ms": at_ms}, **params)


@wheel.command(name="run-now", short_help="Make pending tasks due now.")
@_chosen
@click.pass_context
def run_now(ctx: click.Context, /, **params: Any) -> None:
    """Make pending tasks due now. Tasks are chosen as for cancel.

    Exit code: 0 when all are done; 3 when some were too late, or are unknown; 4 when no scheduler answered in time:
    unanswered requests were withdrawn, and nothing will happen to their tasks.
    """
    send = lambda wheel, ids, how: wheel.run_now(ids, **how)  # noqa: E731
    _change(ctx, "Run {} now?", RUN, send, bulk={"verb": MOVE}, **params)


def _change(
    ctx: click.Context,
    question: str,
    meanings: dict[str, str],
    change: Callable[[Any, Any, Any], Any],
    *,
    bulk: dict[str, Any],
    background: bool,
    **params: Any,
) -> None:
    criteria, how, ids = options.take_criteria(params), params.pop("how"), params.pop("ids")
    with open_wheel(ctx, criteria["shard"]) as wheel:
        if background:
            begin_in_background(wheel, ids, criteria, question=question, how=how, **bulk, **params)
            return
        read = partial(wheel.pending, **criteria)
        tasks = selected(ids, criteria, lambda: matches(read, ORIGIN, lambda one: one.task_id))
        request_each(ctx, tasks, lambda part: change(wheel, part, how), meanings, question=question, **params)


@wheel.command(short_help="Complete the tasks that watch a key.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--run", is_flag=True, help="Run the tasks at once instead of cancelling them.")
@request
@click.pass_context
def complete(ctx: click.Context, keys: tuple[str, ...], run: bool, how: Any, as_json: bool) -> None:
    """Complete every task that watches one of the keys (wheel={"watch": ["order:42"]}); - reads keys from stdin.

    The tasks are cancelled, or with --run dispatched at once. Exit code: 0 when no task was too late; 3 when one was
    dispatched at its time; 4 when no scheduler answered in time: the request was withdrawn.
    """
    with open_wheel(ctx) as wheel:
        found = wheel.complete(words_of(keys), "run" if run else "cancel", **how)
    if as_json:
        print_json({"keys": {key: {"done": one.done, "too_late": one.too_late} for key, one in found.items()}})
    else:
        columns: list[Column[Any]] = [
            Column("key", lambda pair: pair[0]),
            Column("run now" if run else "cancelled", lambda pair: f"{pair[1].done:,}", "right"),
            Column("too late", lambda pair: f"{pair[1].too_late:,}", "right"),
        ]
        GrowingTable(columns).print(found.items())
    ctx.exit(NEEDS_ACTION if any(one.too_late for one in found.values()) else 0)
