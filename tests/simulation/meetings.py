"""Which fault met which step: the table by which a long run shows that it left no corner out.

::

    a row       an activity and the step at which its round stood: "dispatch: chosen"; "begins" before the first one
    a column    a fault of a process (crash, freeze, give), of a clock, of a broker that loses writes or connections,
                or a point of the store or the broker at which a call fails
    a cell      how often the fault came while a round stood at that step

A step that is followed by no call of a point has no cell of it; every other pair that can meet has to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

#: Faults that may come at any step of any round.
ANYWHERE = ("crash", "freeze", "give", "clock")


class Meetings:
    def __init__(self) -> None:
        self.met: Counter[tuple[str, str]] = Counter()
        self.asked: Counter[tuple[str, str]] = Counter()  #: how often a point was reached at a step
        self.seen: Counter[str] = Counter()
        self.at = ""  #: the step from which a round goes on now

    def acts(self, activity: str, step: object) -> None:
        """Note the step at which a round stands that goes on now."""
        self.at = f"{activity}: {step or 'begins'}"
        self.seen[self.at] += 1

    def reaches(self, point: str) -> None:
        self.asked[self.at, point] += 1

    def fails(self, point: str) -> None:
        self.met[self.at, point] += 1

    def come(self, fault: str, standing: Mapping[str, object]) -> None:
        """Note a fault of a process: ``standing`` are its rounds under way, each with the step at which it stands."""
        self.met.update((f"{activity}: {step or 'begins'}", fault) for activity, step in standing.items())

    def add(self, other: Meetings) -> None:
        self.met.update(other.met)
        self.asked.update(other.asked)
        self.seen.update(other.seen)

    def empty(self) -> list[tuple[str, str]]:
        """Return the pairs that could meet and did not."""
        anywhere = ((step, fault) for step in self.seen for fault in ANYWHERE)
        return sorted(pair for pair in {*anywhere, *self.asked} if self._can_meet(*pair) and not self.met[pair])

    def _can_meet(self, step: str, fault: str) -> bool:
        """Before its first step a round is not under way, so only calls of its own can fail."""
        if fault in ANYWHERE:
            return not step.endswith(": begins")
        return (step, fault) in self.asked or (step, fault) in self.met

    def table(self) -> list[str]:
        """Return the lines of the table; "-" where the two cannot meet."""
        faults = [*ANYWHERE, *sorted({fault for _, fault in {*self.met, *self.asked}} - {*ANYWHERE})]
        cells = {
            step: [str(self.met[step, one]) if self._can_meet(step, one) else "-" for one in faults]
            for step in sorted(self.seen)
        }
        return list(_aligned([["step", *faults], *([step, *counts] for step, counts in cells.items())]))


def _aligned(cells: list[list[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield f"{first.ljust(widths[0])}  {numbers}"
