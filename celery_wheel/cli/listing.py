"""Commands that show pages: one of them, or all as they are read; as tables or as JSON.

::

    --limit 50          a page, and the place of the next     {"items": […], "next": "1800000000000:4352" or null}
    --after <place>     the page behind it
    --all               page after page until there is none    {…}\\n{…}\\n…   nothing is kept in memory

What is written with ``--all`` is not one moment's state: a task that leaves or comes in the meantime may be in it or
not; one that stays is in it, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from celery_wheel.cli.output import Column, Lines, progress, put_json

if TYPE_CHECKING:
    from celery_wheel.store.ports.pages import Page, Placed

T = TypeVar("T", bound="Placed")

#: Lines that are read at once where all are wanted.
PAGE = 1_000


def pages(turn: Callable[..., Page[T]], start: Any, limit: int) -> Iterator[tuple[list[T], Any]]:
    """All pages: their lines, and the place of the next; one that found nothing on its way too."""
    at = start
    while at is not None:
        page = turn(at, limit)
        at = page.next
        yield page.items, at


def one_page(turn: Callable[..., Page[T]], start: Any, limit: int, doing: str) -> tuple[list[T], Any]:
    """Up to ``limit`` lines, also where a filter lets little through and the store's own pages end short."""
    found: list[T] = []
    at = start
    with progress(doing, limit) as done:
        while at is not None and len(found) < limit:
            page = turn(at, limit - len(found))
            found += page.items
            at = page.next
            done(len(page.items))
    return found, at


def place(at: Any) -> str | None:
    """As ``--after`` reads it."""
    return None if at is None else f"{at[0]}:{at[1]}"


class Listing(Generic[T]):
    """A command that shows pages: one of them or all, as a table or as JSON."""

    def __init__(
        self, what: str, columns: Sequence[Column[T]], as_dict: Callable[[T], dict[str, Any]], start: Any
    ) -> None:
        self.what, self.columns, self.as_dict, self.start = what, columns, as_dict, start

    def show(
        self,
        turn: Callable[..., Page[T]],
        *,
        limit: int,
        after: Any,
        whole: bool,
        as_json: bool,
        count: Callable[[], int] | None = None,
    ) -> None:
        """``turn`` gives the page behind a place; ``count`` says how many there are, if that is cheap."""
        from celery_wheel.store.model import Position

        start = self.start if after is None else Position(*after)
        if whole:
            self._show_all(turn, start, as_json, count)
            return
        items, at = one_page(turn, start, limit, f"looking for {self.what}")
        if as_json:
            put_json({"items": [self.as_dict(one) for one in items], "next": place(at)})
            return
        if items:
            Lines(self.columns).print(items)
        else:
            click.echo(f"no {self.what}")
        if at is not None:
            click.echo(f"more: --after {place(at)}")

    def _show_all(
        self, turn: Callable[..., Page[T]], start: Any, as_json: bool, count: Callable[[], int] | None
    ) -> None:
        if sys.stdout.isatty():  # the lines themselves show that it goes on
            self._print_all(turn, start, as_json, lambda done: None)
            return
        with progress(f"writing {self.what}", count() if count and sys.stderr.isatty() else None) as done:
            self._print_all(turn, start, as_json, done)

    def _print_all(
        self, turn: Callable[..., Page[T]], start: Any, as_json: bool, done: Callable[[float], None]
    ) -> None:
        lines = None if as_json else Lines(self.columns)
        printed = 0
        for items, _ in pages(turn, start, PAGE):
            if lines is None:
                for one in items:
                    put_json(self.as_dict(one))
            elif items:
                lines.print(items)
            printed += len(items)
            done(len(items))
        if lines is not None and not printed:
            click.echo(f"no {self.what}")
