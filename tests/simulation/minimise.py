"""The shortest history that still shows a violation: events are left out as long as the same promise breaks.

A run is a row of events (``_happen``), then the calm. The full run notes the state of every random source between
two events; in a shortened run an event draws the numbers that it drew in the full one, whatever was left out before
it. So a shortened run is again exact, and "the same promise" is the same text without its numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from tests.simulation.happenings import Violation

NUMBER = re.compile(r"\d+")


def promise_of(violation: Violation) -> str:
    """Return what is broken, without the numbers of this run."""
    return NUMBER.sub("#", str(violation).partition("\n")[0])


class Minimiser:
    """Shortens the history of one seed. ``kept`` are the numbers of the events that are left."""

    def __init__(self, kind: type[Any], seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.runs = self.events = 0
        self._states: list[list[Any]] = []
        self.world, self.violation = self.run(None)
        if self.violation is None:
            raise LookupError(f"seed {seed} breaks no promise of {kind.__name__}")
        self._promise = promise_of(self.violation)
        self.kept = list(range(self.events))

    def minimise(self) -> None:
        """Leave out runs of events, then ever shorter ones, until no single event can be left out."""
        length = len(self.kept)
        while length:
            length = min(length, len(self.kept))
            at, shorter = 0, False
            while at < len(self.kept):
                if self._breaks(rest := self.kept[:at] + self.kept[at + length :]):
                    self.kept, shorter = rest, True
                else:
                    at += length
            if not shorter or length > 1:
                length //= 2

    def _breaks(self, kept: list[int]) -> bool:
        world, violation = self.run({*kept})
        if violation is None or promise_of(violation) != self._promise:
            return False
        self.world, self.violation = world, violation
        return True

    def run(self, kept: set[int] | None) -> tuple[Any, Violation | None]:
        """Run the seed with these events, or with all, which notes the states of its random sources."""
        self.runs += 1
        world = self.kind(self.seed)
        sources, happen, number = list(_sources(world, set())), world._happen, 0
        if kept is None:
            self._note(sources)

        def event() -> None:
            nonlocal number
            number += 1
            if kept is None:
                self.events = number
                happen()
                self._note(sources)
                return
            if number - 1 in kept:
                self._set(sources, number - 1)
                happen()
            if number == self.events:  # the calm follows, or events that the full run has not seen
                self._set(sources, -1)
                world._happen = lambda: None

        world._happen = event
        try:
            world.run()
        except Violation as violation:
            return world, violation
        return world, None

    def _note(self, sources: list[random.Random]) -> None:
        before = self._states[-1] if self._states else [None] * len(sources)
        now = [source.getstate() for source in sources]
        # A source that was not asked keeps one copy of its 625 numbers.
        self._states.append([old if old == new else new for old, new in zip(before, now, strict=True)])

    def _set(self, sources: list[random.Random], number: int) -> None:
        for source, state in zip(sources, self._states[number], strict=True):
            source.setstate(state)


def _sources(place: Any, seen: set[int]) -> Iterator[random.Random]:
    """Yield each random source that a world's own objects have, in the order of their attributes."""
    if id(place) in seen:
        return
    seen.add(id(place))
    if isinstance(place, random.Random):
        yield place
    elif type(place).__module__.startswith("tests.simulation"):
        for part in vars(place).values() if hasattr(place, "__dict__") else ():
            yield from _sources(part, seen)
