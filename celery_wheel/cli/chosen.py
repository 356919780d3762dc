"""Which tasks a command is for: ids, ids on stdin, or all that a filter lets through.

::

    cancel 3fa1… 77c0…          these                                              not asked about
    cancel -                    ids on stdin, one a line or parted by blanks       not asked about
    cancel --task app.remind    what waits and fits, now: counted, and confirmed   --yes does not ask

A filter chooses what there is when the command begins. What leaves between that and the holder's answer is too late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli import options
from celery_wheel.cli.listing import PAGE, pages
from celery_wheel.cli.output import agree, progress
from celery_wheel.present import many

if TYPE_CHECKING:
    from celery_wheel.control import Wheel

ids = click.argument("ids", nargs=-1, metavar="[ID]...")
filters = options.all_of(
    options.names,
    click.option("--key", help="Only what was sent with this key."),
    options.shard,
    click.option("--due-after", "from_ms", type=options.Instant(), help="Due at this instant or later."),
    click.option("--due-before", "to_ms", type=options.Instant(), help="Due before this instant."),
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """``names`` in order, each once; ``by_filter``: nobody has named them one by one."""

    names: list[Any]
    by_filter: bool = False


def named(given: Iterable[str], filtered: bool) -> Chosen | None:
    """The ids that were given, or are on stdin; None where a filter is to choose. Raises UsageError for neither."""
    found: list[str] = []
    for one in given:
        found += sys.stdin.read().split() if one == "-" else [one]
    if filtered and given:
        raise click.UsageError("give ids or a filter, and not both")
    if filtered:
        return None
    if not given:
        raise click.UsageError("give the ids of tasks, - for ids on stdin, or a filter (--task, --queue, …)")
    return Chosen(list(dict.fromkeys(found)))


def waiting(wheel: Wheel, criteria: dict[str, Any]) -> Chosen:
    """The task ids of what waits and fits."""
    return collected(lambda at, lines: wheel.pending(at, lines, **criteria), (0, 0), lambda one: one.task_id)


def collected(turn: Callable[..., Any], start: Any, name: Callable[[Any], Any]) -> Chosen:
    from celery_wheel.store.model import Position

    names: dict[Any, None] = {}
    with progress("looking for tasks") as done:
        for items, _ in pages(turn, Position(*start), PAGE):
            names.update((name(one), None) for one in items)
            done(len(items))
    return Chosen([one for one in names if one != ""], by_filter=True)


def confirm(chosen: Chosen, doing: str, yes: bool) -> None:
    """Ask about what a filter has chosen; ends the command where the answer is no, or nobody is there to give it."""
    if chosen.by_filter and chosen.names and not yes:
        agree(f"{doing} {many(len(chosen.names), 'task')}?")
