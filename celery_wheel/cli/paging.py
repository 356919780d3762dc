"""Commands that print pages: one of them, with the cursor of the next, or all as they are read (``--all``).

``--all`` is not the state of one moment: a task that comes or goes meanwhile may be in it; one that stays is, once.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from celery_wheel.console.output import Column, GrowingTable, print_json, print_table, progress
from celery_wheel.store.model import Position
from celery_wheel.values import pages_of

T = TypeVar("T")

#: Rows of one page where all are wanted.
PAGE = 1_000


#: Reads the page after a cursor, of so many rows at most: ``items``, and the cursor ``next``.
Read = Callable[[Any, int], Any]


def pages(read: Read, start: Any) -> Iterator[Sequence[Any]]:
    """Return the rows of each page; a page may be empty, where a filter matched nothing in the part that was read."""
    return (page.items for page in pages_of(lambda at: read(at, PAGE), start))


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The output of a command that prints pages; a cursor is a position, or a name."""

    title: str  #: as in "no pending tasks"
    columns: Sequence[Column[T]]
    as_dict: Callable[[T], dict[str, Any]]
    read: Read
    start: Any  #: the cursor of the first page
    cursor: Callable[[Any], Any] = Position._make  #: the cursor of an option
    text: Callable[[Any], str] = lambda at: f"{at[0]}:{at[1]}"  #: the option of a cursor

    def show(
        self, *, limit: int, after: Any, whole: bool, as_json: bool, count: Callable[[], int] | None = None
    ) -> None:
        """Print a page, or all. ``count`` returns the number of all rows, where counting is cheap."""
        start = self.start if after is None else self.cursor(after)
        if not whole:
            self._show_page(start, limit, as_json)
        elif sys.stdout.isatty():  # the rows themselves show the progress
            self._show_all(start, as_json, lambda done: None)
        else:
            with progress(f"writing {self.title}", count() if count and sys.stderr.isatty() else None) as done:
                self._show_all(start, as_json, done)

    def _show_page(self, start: Position, limit: int, as_json: bool) -> None:
        found: list[T] = []
        at: Any = start
        with progress(f"reading {self.title}", limit) as done:
            # The store's own pages may end short, where a filter matches little.
            while at is not None and len(found) < limit:
                page = self.read(at, limit - len(found))
                found += page.items
                at = page.next
                done(len(page.items))
        cursor = None if at is None else self.text(at)
        if as_json:
            print_json({"items": [self.as_dict(one) for one in found], "next": cursor})
            return
        print_table(self.columns, found, empty=f"no {self.title}")
        if cursor is not None:
            click.echo(f"more: --after {shlex.quote(cursor)}")

    def _show_all(self, start: Position, as_json: bool, done: Callable[[float], None]) -> None:
        table = None if as_json else GrowingTable(self.columns)
        printed = 0
        for items in pages(self.read, start):
            if table is None:
                for one in items:
                    print_json(self.as_dict(one))
            elif items:
                table.print(items)
            printed += len(items)
            done(len(items))
        if table is not None and not printed:
            click.echo(f"no {self.title}")
