"""A list of instants."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from celery_wheel.recurring.checks import check_list, check_whole
from celery_wheel.recurring.specs.spec import Spec
from celery_wheel.values.text import END_OF_TIME_MS


@dataclass(frozen=True, slots=True)
class Instants(Spec):
    """The instants of a list, in Unix milliseconds, in order and without repetition, whatever the list's order."""

    at_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        items = check_list("at_ms", self.at_ms, "instants")
        for number, item in enumerate(items):
            if type(item) is not int or not 0 <= item < END_OF_TIME_MS:
                check_whole(f"at_ms[{number}]", item, 0, END_OF_TIME_MS - 1)
        object.__setattr__(self, "at_ms", tuple(sorted(set(items))))

    def next_after(self, at_ms: int) -> int | None:
        index = bisect_right(self.at_ms, at_ms)
        return self.at_ms[index] if index < len(self.at_ms) else None
