"""``celery wheel list`` and ``show``: what is pending, and all that is known of one task."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import TO_ACT_UPON, asking, wheel
from celery_wheel.cli.listing import Listing
from celery_wheel.cli.output import Column, facts, put_json
from celery_wheel.present import PART_CUT, duration, part, seen, utc

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import Detail, Task

#: Bytes of a body that JSON shows; the whole is what --body writes.
BEGINNING = 1_024


def task_as_dict(task: Task) -> dict[str, Any]:
    """A task in JSON. Instants are Unix milliseconds."""
    return {
        "task_id": task.task_id,
        "task": task.task,
        "queue": task.target,
        "shard": task.shard,
        "lane": task.lane,
        "due_ms": task.due_ms,
        "eta_ms": task.eta_ms,
        "place": f"{task.due_ms}:{task.seq}",
        "priority": task.priority,
        "key": task.key,
        "expires_ms": task.expires_ms,
        "created_ms": task.created_ms,
        "accepted_ms": task.accepted_ms,
        "size": task.size,
    }


@wheel.command(name="list", cls=CeleryCommand)
@options.names
@options.shard
@options.span
@options.paging
@click.pass_context
def list_(
    ctx: click.Context,
    /,
    limit: int,
    after: tuple[int, int] | None,
    whole: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List pending tasks, the next due first.

    A page says how the next is had (--after); --all writes all of them, and keeps none in memory. A filter by task or
    queue reads only the hours in which there is anything of it. --from and --to are of the due time.
    """
    from celery_wheel.store.model import ORIGIN

    criteria = options.criteria(**filters)
    columns: list[Column[Task]] = [
        Column("due", lambda one: utc(one.due_ms), whole=True),
        Column("task id", lambda one: one.task_id),
        Column("task", lambda one: one.task),
        Column("queue", lambda one: one.target),
        Column("shard", lambda one: one.shard, "right", spare=True),
        Column("key", lambda one: one.key or ""),
        Column("bytes", lambda one: f"{one.size:,}", "right", spare=True),
    ]
    with asking(ctx, criteria["shard"]) as wheel:
        Listing("pending tasks", columns, task_as_dict, ORIGIN).show(
            lambda at, lines: wheel.pending(at, lines, **criteria),
            limit=limit,
            after=after,
            whole=whole,
            as_json=as_json,
            count=lambda: sum(hour.pending for hour in wheel.forecast(**criteria)),
        )


@wheel.command(cls=CeleryCommand, short_help="Show all that is known of a task.")
@click.argument("task_id")
@click.option("--body", "raw_body", is_flag=True, help="Write the body's bytes to stdout, as they are, and no more.")
@options.as_json
@click.pass_context
def show(ctx: click.Context, task_id: str, raw_body: bool, as_json: bool) -> None:
    """Show all that is known of TASK_ID: each of its messages, a retried task having one a try.

    Exit code: 0 when it is known, 3 when the store does not know it (any more).
    """
    if raw_body and as_json:
        raise click.UsageError("--body and --json are two forms of an answer; ask for one", ctx)
    with asking(ctx) as wheel:
        found = sorted(wheel.find(task_id), key=lambda one: one.task.position, reverse=True)
        if raw_body and found:
            click.echo(found[0].body, nl=False)
        elif as_json:
            put_json({"task_id": task_id, "messages": [_detail_as_dict(one) for one in found]})
        for one in [] if raw_body or as_json else found:
            facts(f"{seen(one.task.task)}  {one.state}", _facts(one))
    if not found:
        click.echo(
            f"the store does not know task {seen(task_id)}: it is not in it yet (waits in the broker for a scheduler), "
            "was sent without a delay, or left so long ago that it is forgotten (wheel_history_retention)",
            err=True,
        )
        ctx.exit(TO_ACT_UPON)


def _detail_as_dict(one: Detail) -> dict[str, Any]:
    return {
        **task_as_dict(one.task),
        "state": one.state,
        "dispatched_ms": one.task.dispatched_ms,
        "late_ms": one.task.late_ms,
        "waits_for": one.waits_for,
        "exchange": one.exchange,
        "exchange_type": one.exchange_type,
        "routing_key": one.routing_key,
        "envelope_id": one.envelope_id,
        "headers": _object(one.headers),
        "properties": _object(one.properties),
        "body": _beginning(one.body),
        "outcomes": [
            {"kind": each.kind, "reason": each.reason, "actor": each.actor, "at_ms": each.at_ms}
            for each in one.outcomes
        ],
    }


def _object(raw: bytes) -> Any:
    """The JSON that it is; of a rejected message it may be anything."""
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
        ("task id", seen(task.task_id, PART_CUT)),
        ("state", one.state + (f", waits for {seen(one.waits_for)}" if one.waits_for else "")),
        ("eta", utc(task.eta_ms)),
        ("due", utc(task.due_ms)),
        ("sent", utc(task.created_ms)),
        ("accepted", utc(task.accepted_ms)),
        ("left", f"{utc(task.dispatched_ms)}, {duration(task.late_ms)} late" if task.dispatched_ms else "-"),
        ("expires", utc(task.expires_ms)),
        ("exchange", f"{seen(one.exchange) or 'the default one'} ({seen(one.exchange_type)})"),
        ("routing key", seen(one.routing_key)),
        ("queue", "-" if one.queue is None else seen(one.queue)),
        ("priority", "-" if task.priority is None else str(task.priority)),
        ("key", "-" if task.key is None else seen(task.key)),
        ("shard, lane", f"{task.shard}, {task.lane}"),
        ("place", f"{task.due_ms}:{task.seq}"),
        ("envelope id", one.envelope_id),
    ]
    lines += [
        (each.kind, f"{utc(each.at_ms)} by {seen(each.actor)}: {seen(each.reason, PART_CUT)}") for each in one.outcomes
    ]
    body = f"body, {len(one.body):,} bytes"
    return [
        *lines,
        ("headers", part(one.headers)),
        ("properties", part(one.properties)),
        (body, part(one.body)),
    ]
