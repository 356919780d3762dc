"""Output of commands: tables by rich, JSON by the standard library, and a bar on stderr while a command takes long.

Text that came with a message is escaped and given to rich as Text: neither the terminal nor rich's own markup may
interpret it. On a narrow terminal names and ids are folded; an instant or a number never is, since half of it is
another value. Where folding does not make room enough, ``optional`` columns are left out, and stderr names them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import click

from celery_wheel.values.format import NAME_CUT, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

#: Without a terminal (a pipe, a file) lines are not broken.
WIDE = 1_000
#: Blanks between two columns.
GAP = 2


class Column(NamedTuple, Generic[T]):
    title: str
    value: Callable[[T], object]
    justify: Literal["left", "right"] = "left"
    max_chars: int = NAME_CUT
    no_wrap: bool = False  #: in one line, however narrow the terminal is; right-justified columns are, too
    optional: bool = False  #: left out where not all columns have room, the last of them first


def console() -> Console:
    """Return rich's console on stdout. Raises ImportError, with the remedy, where rich is not installed."""
    try:
        from rich.console import Console
    except ImportError as error:
        raise ImportError("tables need rich: pip install 'celery-wheel[cli]', or use --json") from error
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


class GrowingTable(Generic[T]):
    """A table that is printed part by part, all parts with the columns of the first."""

    def __init__(self, columns: Sequence[Column[T]]) -> None:
        self._columns = columns
        self._console = console()
        self._widths: list[int] = []

    def print(self, items: Iterable[T]) -> None:
        from rich.table import Table
        from rich.text import Text

        items = list(items)
        first = not self._widths
        if first:
            self._fit(items)
        table = Table(box=None, show_header=first, pad_edge=False)
        for column, width in zip(self._columns, self._widths, strict=True):
            no_wrap = column.no_wrap or column.justify == "right"
            least = width if no_wrap else min(width, 8)
            table.add_column(column.title, justify=column.justify, min_width=least, max_width=width, no_wrap=no_wrap)
            table.columns[-1].overflow = "fold"
            if self._console.width == WIDE:
                table.columns[-1].width = width
        for item in items:
            table.add_row(*(Text(printable(column.value(item), column.max_chars)) for column in self._columns))
        self._console.print(table)

    def _fit(self, items: Sequence[T]) -> None:
        """Choose the columns that have room, and the width of each."""
        from rich.cells import cell_len

        def wanted(column: Column[T]) -> int:
            texts = (printable(column.value(one), column.max_chars) for one in items)
            return max(cell_len(text) for text in [column.title, *texts])

        widths = {column.title: wanted(column) for column in self._columns}
        left_out: list[str] = []
        for column in [one for one in reversed(self._columns) if one.optional]:
            if sum(widths.values()) + GAP * (len(widths) - 1) <= self._console.width:
                break
            del widths[column.title]
            left_out.insert(0, column.title)
        self._columns = [column for column in self._columns if column.title in widths]
        self._widths = list(widths.values())
        if left_out:
            click.echo(f"columns without room on this terminal: {', '.join(left_out)} (--json has them)", err=True)


def print_table(columns: Sequence[Column[T]], items: Sequence[T], *, empty: str) -> None:
    """Print one table, or the text ``empty`` where it has no rows."""
    if items:
        GrowingTable(columns).print(items)
    else:
        click.echo(empty)


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values; the values are escaped already."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def confirm(question: str, yes: bool = False) -> None:
    """Ask for a yes, unless it is given; without one (a no, or no terminal to answer) end the command with code 1."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as no_answer:  # the end of stdin, or Ctrl-C
        click.echo(err=True)
        raise click.ClickException("no answer was given, so nothing was done; --yes does not ask") from no_answer
    if not agreed:
        raise click.ClickException("nothing was done")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value))


@contextmanager
def progress(doing: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr, if that is a terminal, as soon as the block has taken a second.

    The block calls the bar with ``more``; or with ``done`` of ``total``, where it counts by itself.
    """
    if not sys.stderr.isatty():
        yield lambda more, **_: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:  # a bar is not worth an error
        yield lambda more, **_: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(doing, total=total)
    late = threading.Timer(1.0, bar.start)  # a bar that appears at once only flickers
    late.daemon = True
    late.start()

    def update(more: float, *, doing: str | None = None, done: float | None = None, total: float | None = None) -> None:
        bar.update(task, advance=more or None, description=doing, completed=done, total=total)

    try:
        yield update
    finally:
        late.cancel()
        late.join()
        bar.stop()
