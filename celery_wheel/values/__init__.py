"""Plain values that every room may use; they use the standard library only, but for ``keyring``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

__version__ = "0.1.0"


T = TypeVar("T")

#: Items that the repr of a page shows.
SHOWN = 3


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the object of a JSON text; empty where the text has none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


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


def pages_of(read: Callable[[Any], Any], start: Any) -> Iterator[Any]:
    """Yield the pages that ``read`` returns, from the cursor ``start`` on; ``next`` of a page is the next cursor."""
    page = read(start)
    yield page
    while page.next is not None:
        page = read(page.next)
        yield page


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in their order, at most ``size`` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def weighed_parts(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the items in their order, as many at a time as weigh ``most`` at most; a heavier one by itself."""
    some, sum_ = list[T](), 0
    for one in items:
        own = weight(one)
        if some and sum_ + own > most:
            yield some
            some, sum_ = [], 0
        some.append(one)
        sum_ += own
    if some:
        yield some
