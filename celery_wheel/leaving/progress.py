"""How far something is: called with what it does, how much is done, and how much there is in all, as known by then."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(doing: str, done: int, total: int) -> None:
    """For callers who do not want to know."""
