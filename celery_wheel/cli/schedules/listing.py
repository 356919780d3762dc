"""``celery wheel schedules list``: pages of schedules, in the order of their names."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import open_wheel
from celery_wheel.cli.paging import Listing
from celery_wheel.cli.schedules.group import criteria_of, filters, instant_ms, schedules, state_of
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column
from celery_wheel.values.format import format_utc

if TYPE_CHECKING:
    from celery_wheel.requests.schedules.views import RecurringSchedule
    from celery_wheel.values.mask import Mask


@schedules.command(name="list", short_help="List schedules, in the order of their names.")
@filters
@options.shard
@options.paging_by_name
@click.pass_context
def list_(ctx: click.Context, /, shard: int | None, **params: Any) -> None:
    """List schedules, in the order of their names, with their next instant.

    The state is active, paused, broken, ended (without a further instant) or run by Beat (an entry that Beat's own
    scheduler runs). A page prints the name after which the next page begins (--after).
    """
    criteria = criteria_of(params) | ({} if shard is None else {"shard": shard})
    columns: list[Column[RecurringSchedule]] = [
        Column("schedule", lambda one: one.name),
        Column("when", when),
        Column("next", lambda one: format_utc(instant_ms(one.next_at)), no_wrap=True),
        Column("state", state_of, no_wrap=True),
        Column("task", lambda one: one.task),
        Column("zone", lambda one: "" if one.recurrence is None else one.recurrence.zone, optional=True),
        Column("source", lambda one: one.source, optional=True),
        Column("made", lambda one: f"{one.made:,}", "right", optional=True),
    ]
    with open_wheel(ctx, shard) as wheel:
        mask = wheel.mask

        def read(after: str, limit: int) -> Any:
            page = wheel.schedules.list(after=after, limit=limit, **criteria)
            return replace(page, items=[masked(one, mask) for one in page.items])

        Listing("schedules", columns, schedule_as_dict, partial(read), "", str, str).show(**params)


def masked(one: RecurringSchedule, mask: Mask) -> RecurringSchedule:
    """Return a schedule without the values that ``wheel_mask`` names."""
    if not mask:
        return one
    args, kwargs, options = map(mask.value, (one.args, one.kwargs, one.options))
    definition, note = mask.part(one.definition.encode()).decode(), mask.text(one.note)
    return replace(one, args=args, kwargs=kwargs, options=options, definition=definition, note=note)


def when(one: RecurringSchedule) -> str:
    """Return the recurrence in words, or else the note, with the reason."""
    from celery_wheel.recurring.words import in_words  # imports the specs

    return one.note if one.recurrence is None else in_words(one.recurrence)


def schedule_as_dict(one: RecurringSchedule) -> dict[str, Any]:
    """Return a schedule as JSON shows it; instants are Unix milliseconds."""
    same = ("name", "source", "revision", "made", "paused", "broken", "note")
    return {
        **{name: getattr(one, name) for name in same},
        "state": state_of(one),
        "when": when(one),
        "next_ms": instant_ms(one.next_at),
        "last_ms": instant_ms(one.last_at),
        "since_ms": instant_ms(one.since),
        "definition": definition_of(one.definition),
    }


def definition_of(text: str) -> Any:
    """Return the JSON of a definition; its text, if it is not JSON, as in a broken schedule."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
