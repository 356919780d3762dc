"""Requests of commands: the chosen names, confirmed, sent in parts, and each name's result printed.

Names are given, or are words on stdin (``-``), or the matches of a filter: those are counted and confirmed. Each part
has the whole time-out. A task that is dispatched before the holder's answer is too late.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import click

from celery_wheel.cli.group import NEEDS_ACTION, NO_ANSWER
from celery_wheel.cli.paging import Read, pages
from celery_wheel.console import parameters as options
from celery_wheel.console.output import Column, GrowingTable, confirm, print_json, progress
from celery_wheel.errors import RequestInDoubt, WheelUnavailable
from celery_wheel.store.audit_model import Operator
from celery_wheel.values import parts
from celery_wheel.values.format import format_count

#: Tasks of one request.
PART = 2_000
#: Results that need no action.
GOOD = ("done", "already")
#: Lines for people, where a filter chose the names.
SHOWN = 50

ids = click.argument("ids", nargs=-1, metavar="[ID]...")
filters = options.all_of(
    options.names,
    click.option("--key", help="Only tasks sent with this key."),
    options.group,
    options.shard,
    options.instant("--due-after", "from_ms", help="Due at this instant or later."),
    options.instant("--due-before", "to_ms", help="Due before this instant."),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """``names``: in order, each once, as the request takes them. ``by_filter``: a filter matched them."""

    names: list[Any]
    by_filter: bool = False


def selected(ids: Iterable[str], criteria: dict[str, Any], match: Callable[[], Selection]) -> Selection:
    """Return the ids that the command names, or else the matches of its filter. Raises UsageError for both or none."""
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


def matches(
    read: Read, start: Any, name: Callable[[Any], Any], *, backwards: bool = False, doing: str = "reading tasks"
) -> Selection:
    """Return the names of all rows that are read; rows with an empty name are left out."""
    names: dict[Any, None] = {}
    with progress(doing) as done:
        for items in pages(read, start):
            names.update((name(one), None) for one in items)
            done(len(items))
    names.pop("", None)
    return Selection(list(reversed(names) if backwards else names), by_filter=True)


def request(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every request to a command, which gets them as ``how``; the actor is this terminal's user."""

    @wraps(command)
    def call(*args: Any, reason: str, timeout: float, **params: Any) -> Any:
        how = {"reason": reason, "timeout": timeout, **terminal_user()._asdict()}
        return command(*args, how=how, **params)

    return options.request(call)


def terminal_user() -> Operator:
    """Return this terminal's user, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown user"
    return Operator("cli", f"{user} on {socket.gethostname()}")


class ResultLine(NamedTuple):
    """The result of one name; ``needs_eyes``: it is shown also where a filter chose the name."""

    name: Any
    result: str
    text: str  #: of the result, for people
    value: Any  #: of the result, in JSON
    needs_eyes: bool


#: Sends one request for several names; returns name → result.
Send = Callable[[Any], Mapping[Any, Any]]


def request_each(
    ctx: click.Context,
    tasks: Selection,
    send: Send,
    meanings: Mapping[str, str],
    *,
    question: str,
    yes: bool,
    as_json: bool,
    name: str = "task id",
) -> None:
    """Send requests for the tasks, print the results, and end the command; ``meanings`` are of each result."""
    results, unavailable = send_each(tasks, send, question, "task", yes)
    lines = [ResultLine(one, word, meanings[word], word, word not in GOOD) for one, word in results.items()]
    print_results(ctx, name, lines, meanings, unavailable, every=not tasks.by_filter, as_json=as_json)


def send_each(
    chosen: Selection, send: Send, question: str, noun: str, yes: bool, most: int = PART
) -> tuple[dict[Any, Any], str | None]:
    """Return the results, and the reason where a part had no answer; the parts after it are not sent.

    ``question`` confirms the matches of a filter; ``{}`` stands for "12 tasks".
    """
    names, results = chosen.names, dict[Any, Any]()
    if chosen.by_filter and names:
        confirm(question.format(format_count(len(names), noun)), yes)
    with progress("waiting for results", len(names)) as bar:
        for part in parts(names, most):
            try:
                results |= send(part)
            except (WheelUnavailable, RequestInDoubt) as error:
                return results | error.results, str(error)
            bar(len(part))
    return results, None


def print_results(
    ctx: click.Context,
    title: str,
    lines: Sequence[ResultLine],
    words: Iterable[str],
    unavailable: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Print a line for each result (``every``), or for the first that need eyes; the counts; and end the command."""
    counts = Counter(one.result for one in lines)
    if as_json:
        results = {str(one.name): one.value for one in lines}
        print_json({**{word: counts[word] for word in words}, "results": results, "unavailable": unavailable})
    else:
        shown = [one for one in lines if every or one.needs_eyes]
        columns: list[Column[ResultLine]] = [
            Column(title, lambda one: one.name),
            Column("result", lambda one: one.result, no_wrap=True),
            Column("", lambda one: one.text, max_chars=200),
        ]
        if shown:
            GrowingTable(columns).print(shown if every else shown[:SHOWN])
        if len(shown) > SHOWN and not every:
            click.echo(f"… {len(shown) - SHOWN:,} more; --json has them all")
        if lines or unavailable is None:
            found = ", ".join(f"{counts[word]:,} {word}" for word in words if counts[word] or word == "done")
            click.echo(found if lines else f"no {'schedules' if title == 'schedule' else 'tasks'} match")
        if unavailable is not None:
            click.echo(f"Error: {unavailable}", err=True)
    good = all(one.result in GOOD for one in lines)
    ctx.exit(NO_ANSWER if unavailable is not None else 0 if good else NEEDS_ACTION)
