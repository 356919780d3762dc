"""How commands answer: tables by rich, JSON by the standard library, and a bar on stderr while something takes long.

Text that came with a message is shown with ``seen`` and given to rich as Text: neither the terminal nor rich's own
markup may take it for instructions. JSON has it whole, its control characters escaped.

On a narrow terminal names and ids are folded; an instant or a number never is, since half of one is another. Where that
does not make room enough, columns that people can do without (``spare``) are left out, and it is said which.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import click

from celery_wheel.present import NAME_CUT, seen

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

#: A bar that comes at once only flickers.
PATIENCE_S = 1.0
#: Where nobody looks (a pipe, a file) lines are not broken.
WIDE = 1_000
#: Blanks between two columns.
GAP = 2


class Column(NamedTuple, Generic[T]):
    title: str
    value: Callable[[T], object]
    justify: Literal["left", "right"] = "left"
    cut: int = NAME_CUT
    whole: bool = False  #: in one line, however narrow the terminal is; what stands at the right is, too
    spare: bool = False  #: left out where not all have room, the last of them first


def console() -> Console:
    """rich's console on stdout. Raises ImportError, with what to install, where rich is not there."""
    try:
        from rich.console import Console
    except ImportError as error:
        raise ImportError("tables need rich: pip install 'celery-wheel[cli]', or use --json") from error
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


class Lines(Generic[T]):
    """A table that is printed part by part, all parts with the columns of the first."""

    def __init__(self, columns: Sequence[Column[T]], title: str = "") -> None:
        self._columns = columns
        self._title = title
        self._console = console()
        self._widths: list[int] = []

    def print(self, items: Iterable[T]) -> None:
        from rich.table import Table
        from rich.text import Text

        items = list(items)
        first = not self._widths
        if first:
            self._choose(items)
        rows = [[Text(seen(column.value(item), column.cut)) for column in self._columns] for item in items]
        table = Table(title=self._title or None, title_justify="left", box=None, show_header=first, pad_edge=False)
        for column, width in zip(self._columns, self._widths, strict=True):
            whole = column.whole or column.justify == "right"
            least = width if whole else min(width, 8)
            table.add_column(column.title, justify=column.justify, min_width=least, max_width=width, no_wrap=whole)
            table.columns[-1].overflow = "fold"
            if self._console.width == WIDE:
                table.columns[-1].width = width
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def _choose(self, items: Sequence[T]) -> None:
        """The columns that there is room for, and how wide each wants to be."""
        from rich.cells import cell_len

        def wanted(column: Column[T]) -> int:
            return max(
                cell_len(text) for text in [column.title, *(seen(column.value(one), column.cut) for one in items)]
            )

        widths = {column.title: wanted(column) for column in self._columns}
        left_out: list[str] = []
        for column in [one for one in reversed(self._columns) if one.spare]:
            if sum(widths.values()) + GAP * (len(widths) - 1) <= self._console.width:
                break
            del widths[column.title]
            left_out.insert(0, column.title)
        self._columns = [column for column in self._columns if column.title in widths]
        self._widths = list(widths.values())
        if left_out:
            click.echo(f"for want of room without: {', '.join(left_out)} (--json has them)", err=True)


def agree(question: str) -> None:
    """Ask; ends the command with exit code 1 where the answer is no, or nobody is there to give it."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as nobody:  # the end of stdin, or Ctrl-C
        click.echo(err=True)
        raise click.ClickException("nobody said yes, so nothing was done; --yes does not ask") from nobody
    if not agreed:
        raise click.ClickException("nothing was done")


def facts(title: str, lines: Iterable[tuple[str, str]]) -> None:
    """Two columns: what it is called, and what it is; the latter already as it may be seen."""
    from rich.table import Table
    from rich.text import Text

    made = console()
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, Text(value))
    made.print(table)


def put_json(value: Any) -> None:
    click.echo(json.dumps(value))


class Bar(Protocol):
    def __call__(
        self, more: float, *, doing: str | None = None, done: float | None = None, total: float | None = None
    ) -> None:
        """``more`` was done; or ``done`` in all, of ``total``, where that is how it is known."""


def _unseen(more: float, *, doing: str | None = None, done: float | None = None, total: float | None = None) -> None:
    """Nobody looks."""


@contextmanager
def progress(doing: str, total: float | None = None) -> Iterator[Bar]:
    """A bar on stderr as soon as the block has taken a second; to be told how much more was done.

    Only on a terminal, and only where nothing else is printed to it in the meantime.
    """
    if not sys.stderr.isatty():
        yield _unseen
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:  # it is only a bar
        yield _unseen
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(doing, total=total)
    late = threading.Timer(PATIENCE_S, bar.start)
    late.daemon = True
    late.start()

    def tell(more: float, *, doing: str | None = None, done: float | None = None, total: float | None = None) -> None:
        bar.update(task, advance=more or None, description=doing, completed=done, total=total)

    try:
        yield tell
    finally:
        late.cancel()
        late.join()
        bar.stop()
