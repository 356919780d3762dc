"""``celery wheel audit``: the requests of people."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import open_wheel, wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column
from celery_wheel.values.format import format_utc

if TYPE_CHECKING:
    from celery_wheel.store.audit_model import AuditedRequest

#: Names in a line of the table; --json has all.
NAMES = 3


@wheel.command(short_help="List the requests of people, with their results.")
@click.option("--since", "from_ms", type=options.InstantParameter(), help="Asked at this instant or later.")
@click.option("--until", "to_ms", type=options.InstantParameter(), help="Asked before this instant.")
@click.option("--by", "actor", help="A part of the person's name; case is ignored.")
@click.option("--action", help="Only this action, like cancel, pause or schedule_update.")
@click.option("--origin", help="Where the person asked: admin, cli or api.")
@click.option("--name", help="A task's id, or the name of a schedule, a key or a gate, like queue:mail.")
@click.option("--bulk", help="The bulk action, by its id.")
@options.paging_by_name
@click.pass_context
def audit(ctx: click.Context, /, limit: int, after: str | None, whole: bool, as_json: bool, **criteria: Any) -> None:
    """List the requests of people, the latest first: the person, the time, the action and its results.

    The log has the requests of the admin and of this command line, and calls of app.wheel that name an actor, for
    wheel_audit_retention. With --json it has the result of each name.
    """
    columns: list[Column[AuditedRequest]] = [
        Column("asked", lambda one: format_utc(one.at_ms), no_wrap=True),
        Column("by", lambda one: one.actor),
        Column("from", lambda one: one.origin, no_wrap=True),
        Column("action", lambda one: one.action, no_wrap=True),
        Column("results", lambda one: counts_of(one.results)),
        Column("names", lambda one: _names(list(one.results)), max_chars=200),
        Column("reason", lambda one: one.reason, max_chars=200, optional=True),
    ]
    with open_wheel(ctx) as wheel:

        def read(before: str, rows: int) -> Any:
            return wheel.audit(before or None, rows, **criteria)

        listing = Listing("requests", columns, asdict, read, "", str, str)
        listing.show(limit=limit, after=after, whole=whole, as_json=as_json)


def counts_of(results: dict[str, Any]) -> str:
    """Return the number of names with each result."""
    counts = Counter(word_of(one) for one in results.values())
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


def word_of(result: Any) -> str:
    """Return a result as a word: that of a schedule is an object with a reason, that of a key has counts."""
    if not isinstance(result, dict):
        return str(result)
    return str(result["result"]) if "result" in result else json.dumps(result)


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES:,} more" if len(names) > NAMES else "")
