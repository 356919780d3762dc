"""The tasks that a command changes: ids, ids on stdin, or all that a filter matches.

::

    cancel 3fa1… 77c0…          these ids                              not confirmed
    cancel -                    ids on stdin, separated by blanks      not confirmed
    cancel --task app.remind    the pending tasks that match now       counted and confirmed; --yes does not ask

A filter matches the tasks that are pending when the command begins. A task that is dispatched between that moment and
the holder's answer is too late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from celery_wheel.cli.paging import Read, pages
from celery_wheel.console import parameters as options
from celery_wheel.console.output import progress

ids = click.argument("ids", nargs=-1, metavar="[ID]...")
filters = options.all_of(
    options.names,
    click.option("--key", help="Only tasks sent with this key."),
    options.shard,
    click.option("--due-after", "from_ms", type=options.InstantParameter(), help="Due at this instant or later."),
    click.option("--due-before", "to_ms", type=options.InstantParameter(), help="Due before this instant."),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """``names``: task ids or row numbers, in order, each once. ``by_filter``: a filter matched them."""

    names: list[Any]
    by_filter: bool = False


def selected(ids: Iterable[str], criteria: dict[str, Any], match: Callable[[], Selection]) -> Selection:
    """Return the ids that the command names, or else the matches of its filter.

    Raises UsageError for both or neither.
    """
    ids, filtered = list(ids), any(value is not None for value in criteria.values())
    if filtered and ids:
        raise click.UsageError("name ids or a filter, and not both")
    if filtered:
        return match()
    if not ids:
        raise click.UsageError("name the ids of tasks, - for ids on stdin, or a filter (--task, --queue, …)")
    return Selection(list(dict.fromkeys(words_of(ids))))


def words_of(arguments: Iterable[str]) -> Iterable[str]:
    """Yield the arguments, with the words on stdin in the place of ``-``."""
    for one in arguments:
        yield from sys.stdin.read().split() if one == "-" else [one]


def matches(read: Read[Any], start: Any, name: Callable[[Any], Any], *, backwards: bool = False) -> Selection:
    """Return the names of all rows that are read; rows with an empty name are left out."""
    names: dict[Any, None] = {}
    with progress("reading tasks") as done:
        for items in pages(read, start):
            names.update((name(one), None) for one in items)
            done(len(items))
    names.pop("", None)
    return Selection(list(reversed(names) if backwards else names), by_filter=True)
