"""``celery wheel groups``: the groups whose tasks wait or are in flight, the one with the most waiting tasks first."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.conf.limits import format_rate
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column
from celery_wheel.store.ports.pages import SORTS
from celery_wheel.values.format import format_duration

if TYPE_CHECKING:
    from celery_wheel.store.model import GroupLimit
    from celery_wheel.store.ports.pages import GroupPage, GroupState


@wheel.command(short_help="List groups with waiting tasks or tasks in flight.")
@click.option("--search", help="A part of the name; case is ignored.")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order of the groups.")
@options.paging_by_name
@click.pass_context
def groups(ctx: click.Context, /, search: str | None, sort: Any, **paging: Any) -> None:
    """List the groups whose tasks wait for a slot, a rate or room in their queue, or are in flight.

    A waiting task is due, and pending. In flight are the dispatched tasks that no worker has reported as ended; they
    are counted where the group has a concurrency. The name is "-" for tasks without a group. Limits are those that the
    group has of its own, beside those of its class in wheel_limits.
    """
    now_ms = options.now_ms()
    columns: list[Column[GroupState]] = [
        Column("group", lambda one: one.name or "-"),
        Column("waiting", lambda one: f"{one.waiting:,}", "right"),
        Column("in flight", lambda one: f"{one.in_flight:,}", "right"),
        Column("oldest waits", lambda one: age_text(one.oldest_ms, now_ms), "right"),
        Column("own limits", lambda one: limit_text(one.limit), optional=True),
    ]
    others = 0

    with open_wheel(ctx) as opened:

        def read(after: str, rows: int) -> GroupPage:
            nonlocal others
            page: GroupPage = opened.groups(search, rows, sort=sort, after=after or None)
            others = page.others
            return page

        Listing("groups", columns, asdict, read, "", str, str).show(**paging)
    if others and not paging["as_json"]:
        click.echo(f"{others:,} more groups: --all lists them, --sort name shows them by pages, --search finds one")


def age_text(due_ms: int | None, now_ms: int) -> str:
    return "-" if due_ms is None else format_duration(max(0, now_ms - due_ms))


def limit_text(limit: GroupLimit | None) -> str:
    if limit is None:
        return ""
    parts = [(limit.concurrency, f"concurrency {limit.concurrency}"), (limit.weight, f"weight {limit.weight}")]
    found = [text for value, text in parts if value is not None]
    if limit.rate_count is not None:
        found.append(f"rate {format_rate((limit.rate_count, limit.rate_per_ms or 0))}")
    if limit.max_runtime_ms is not None:
        found.append(f"max_runtime {format_duration(limit.max_runtime_ms)}")
    return ", ".join(found)
