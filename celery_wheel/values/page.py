"""A page of items, as every method that lists something returns one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: Items that the repr of a page shows.
SHOWN = 3


class ItemPage(Generic[T]):
    """The base of a dataclass with these fields; ``next`` is the cursor of the next page, None on the last page."""

    __slots__ = ()

    items: list[T]
    next: object

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __repr__(self) -> str:
        shown = "".join(f" {one!r}" for one in self.items[:SHOWN]) + (" …" if len(self.items) > SHOWN else "")
        return f"<page of {len(self.items)}{':' if self.items else ''}{shown}; next={self.next!r}>"
