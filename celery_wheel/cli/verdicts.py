"""Asking the holders about many tasks, in parts, and showing what they said.

Exit codes: 0 all are done, by this request or (a cancel) by an earlier one; 3 some were too late, or are unknown; 4
nobody answered in time: what was not answered was withdrawn, and nothing will happen to it. In parts, so that each has
the whole time, and a bar shows how far it is.
"""

from __future__ import annotations

import getpass
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from celery_wheel.cli.group import NOBODY_ANSWERED, TO_ACT_UPON
from celery_wheel.cli.output import Column, Lines, progress, put_json

#: Tasks of one request.
PART = 2_000
#: Verdicts of what is as it was wanted.
GOOD = ("done", "already")
#: Lines for people, where nobody has named the tasks one by one.
SHOWN = 50


@dataclass(slots=True)
class Said:
    """``unavailable``: why not all were answered."""

    verdicts: dict[Any, str] = field(default_factory=dict)
    unavailable: str | None = None

    @property
    def code(self) -> int:
        if self.unavailable is not None:
            return NOBODY_ANSWERED
        return 0 if all(one in GOOD for one in self.verdicts.values()) else TO_ACT_UPON


def ask(doing: str, names: Sequence[Any], question: Callable[[Sequence[Any]], Mapping[Any, Any]]) -> Said:
    from celery_wheel.errors import WheelUnavailable

    said = Said()
    with progress(doing, len(names)) as done:
        for start in range(0, len(names), PART):
            part = names[start : start + PART]
            try:
                said.verdicts |= {name: str(verdict) for name, verdict in question(part).items()}
            except WheelUnavailable as error:
                said.verdicts |= error.verdicts
                said.unavailable = str(error)
                break
            done(len(part))
    return said


def show(ctx: click.Context, said: Said, meaning: Mapping[str, str], as_json: bool, every: bool, name: str) -> None:
    """Print it and end the command. ``every``: a line each; else only for what is not done."""
    counts = Counter(said.verdicts.values())
    if as_json:
        numbers = {one: counts[one] for one in meaning}
        verdicts = {str(one): verdict for one, verdict in said.verdicts.items()}
        put_json({**numbers, "verdicts": verdicts, "unavailable": said.unavailable})
        ctx.exit(said.code)
    lines = [one for one in said.verdicts.items() if every or one[1] not in GOOD]
    columns: list[Column[tuple[Any, str]]] = [
        Column(name, lambda one: one[0]),
        Column("verdict", lambda one: one[1], whole=True),
        Column("", lambda one: meaning[one[1]], cut=200),
    ]
    if lines:
        Lines(columns).print(lines if every else lines[:SHOWN])
    if len(lines) > SHOWN and not every:
        click.echo(f"… {len(lines) - SHOWN:,} more; --json has them all")
    if not counts:
        click.echo("nothing was answered" if said.unavailable else "no task fits")
    else:
        click.echo(", ".join(f"{counts[one]:,} {one}" for one in meaning if counts[one] or one == "done"))
    if said.unavailable is not None:
        click.echo(f"Error: {said.unavailable}", err=True)
    ctx.exit(said.code)


def whoever() -> str:
    """Who is at this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
