"""The tasks that a command changes: ids, ids on stdin, or all that a filter matches.

::

    cancel 3fa1… 77c0…          these ids                              not confirmed
    cancel -                    ids on stdin, separated by blanks      not confirmed
    cancel --task app.remind    the pending tasks that match now       counted and confirmed; --yes does not ask

A filter matches the tasks that are pending when the command begins. A task that is dispatched between that moment and
the holder's answer is too late.

Requests for many tasks: confirmed, sent in parts, and each task's result printed.

Exit codes: 0 all are done, by this request or (a cancel) by an earlier one; 3 some were too late, or are unknown; 4 no
scheduler answered in time: the unanswered part was withdrawn, and nothing will happen to its tasks. Each part has the
whole time-out, and a bar shows how many parts are answered.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.cli.group import NEEDS_ACTION, NO_ANSWER
from celery_wheel.cli.paging import Read, pages
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, confirm, print_json, progress
from celery_wheel.errors import RequestInDoubt, WheelUnavailable
from celery_wheel.values.format import format_count

if TYPE_CHECKING:
    from celery_wheel.requests.arguments import CommandOptions


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


#: Tasks of one request.
PART = 2_000
#: Results that need no action.
GOOD = ("done", "already")
#: Lines for people, where a filter chose the tasks.
SHOWN = 50


def request_options(reason: str, timeout: float) -> CommandOptions:
    """Return the options of a request; its actor is the user of this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown user"
    return {"reason": reason, "timeout": timeout, "actor": f"{user} on {socket.gethostname()}", "origin": "cli"}


def request_each(
    ctx: click.Context,
    tasks: Selection,
    send: Callable[[Any], Mapping[Any, Any]],
    meanings: Mapping[str, str],
    *,
    question: str,
    yes: bool,
    as_json: bool,
    name: str = "task id",
) -> None:
    """Send requests for the tasks, print the results, and end the command.

    Args:
        send: sends one request for several names; returns name → result.
        meanings: of each result, for people.
        question: confirms the matches of a filter; ``{}`` stands for "12 tasks".
        name: the title of the names' column.
    """
    if tasks.by_filter and tasks.names and not yes:
        confirm(question.format(format_count(len(tasks.names), "task")))
    results, unavailable = _send_in_parts(tasks.names, send)
    if as_json:
        counts = Counter(results.values())
        by_name = {str(one): result for one, result in results.items()}
        print_json({**{one: counts[one] for one in meanings}, "results": by_name, "unavailable": unavailable})
    else:
        if results or unavailable is None:
            _print(results, meanings, name, every=not tasks.by_filter)
        if unavailable is not None:
            click.echo(f"Error: {unavailable}", err=True)
    good = all(one in GOOD for one in results.values())
    ctx.exit(NO_ANSWER if unavailable is not None else 0 if good else NEEDS_ACTION)


def _send_in_parts(names: Sequence[Any], send: Callable[[Any], Mapping[Any, Any]]) -> tuple[dict[Any, str], str | None]:
    """Return the results, and the reason where a part had no answer; the parts after it are not sent."""
    results: dict[Any, str] = {}
    with progress("waiting for results", len(names)) as bar:
        for start in range(0, len(names), PART):
            part = names[start : start + PART]
            try:
                results |= {one: str(result) for one, result in send(part).items()}
            except (WheelUnavailable, RequestInDoubt) as error:
                return results | error.results, str(error)
            bar(len(part))
    return results, None


def _print(results: Mapping[Any, str], meanings: Mapping[str, str], name: str, *, every: bool) -> None:
    """Print a line for each result (``every``), or for the first that need action; and the counts."""
    lines = [one for one in results.items() if every or one[1] not in GOOD]
    columns: list[Column[tuple[Any, str]]] = [
        Column(name, lambda one: one[0]),
        Column("result", lambda one: one[1], no_wrap=True),
        Column("", lambda one: meanings[one[1]], max_chars=200),
    ]
    if lines:
        GrowingTable(columns).print(lines if every else lines[:SHOWN])
    if len(lines) > SHOWN and not every:
        click.echo(f"… {len(lines) - SHOWN:,} more; --json has them all")
    counts = Counter(results.values())
    found = ", ".join(f"{counts[one]:,} {one}" for one in meanings if counts[one] or one == "done")
    click.echo(found if results else "no tasks match")
