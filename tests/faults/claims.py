"""Claims: an answer of ``app.wheel`` as a statement about runs, which the notes of the workers confirm or refute.

::

    cancel      done, already, unknown   the task does not run         too_late   it runs
    move        done     it runs, and not before its new time          too_late   it runs
    complete    done=3   three of the tasks that watch the key do not run, the others do
    unique      accepted: one of the two calls of a name runs, the other does not
    erase       pending=40   forty tasks of the group do not run, the others do; the store has no row of them
    withdrawn   the request did nothing: each task runs

A request in doubt claims nothing. Each task that runs does so once, at its time or later; copies are marked: ``judge``
sees to that.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.judge import CLOCK_MS, Verdict, judge

KINDS = ("cancel", "move", "complete", "unique", "erase", "limits")

DONE, REFUSED, IN_DOUBT = "done", "refused", "in doubt"


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer about some tasks. ``positives``: how many of them were answered ``done``."""

    kind: str
    ids: tuple[str, ...]
    idle: int | None  #: how many of the tasks do not run; None: nobody knows
    positives: int = 0
    from_ms: int = 0  #: no task runs before

    def is_untrue(self, first_ms: Mapping[str, int]) -> bool:
        """Whether the runs refute the claim; ``first_ms`` has the first run of each task that ran."""
        ran = [first_ms[id_] for id_ in self.ids if id_ in first_ms]
        if any(at_ms < self.from_ms - CLOCK_MS for at_ms in ran):
            return True
        return self.idle is not None and len(self.ids) - len(ran) != self.idle

    @property
    def runs(self) -> bool:
        """Whether each of the tasks has to run."""
        return self.idle == 0


@dataclass(slots=True)
class Truth:
    """The answers about each kind, and those of them that were untrue."""

    said: dict[str, Counter[str]]
    untrue: list[Claim]
    tasks: Verdict
    left: dict[str, int] = field(default_factory=dict)  #: group → rows in the store beyond those of its receipt
    above: dict[str, Any] = field(default_factory=dict)  #: group → the most in flight and its limit

    def broken(self) -> dict[str, Any]:
        """Return what was untrue, with some examples each."""
        found = {"untrue": self.untrue[:5], "left": self.left, "above": self.above, **self.tasks.broken()}
        return {name: one for name, one in found.items() if one}

    @property
    def positives(self) -> int:
        return sum(one[DONE] for one in self.said.values())

    def __str__(self) -> str:
        wrong = Counter(one.kind for one in self.untrue) + Counter(erase=len(self.left), limits=len(self.above))
        rows = [f"{'':10}{'asked':>8}{'done':>8}{'refused':>9}{'in doubt':>10}{'untrue':>8}"]
        rows += [
            f"{kind:10}{one.total():8,}{one[DONE]:8,}{one[REFUSED]:9,}{one[IN_DOUBT]:10,}{wrong[kind]:8,}"
            for kind, one in self.said.items()
        ]
        return "\n".join([*rows, str(self.tasks)])


def count(claims: Iterable[Claim]) -> dict[str, Counter[str]]:
    """Return the number of tasks by kind and by what was said of them."""
    said = {kind: Counter[str]() for kind in KINDS}
    for one in claims:
        rest = IN_DOUBT if one.idle is None else REFUSED
        said[one.kind].update({DONE: one.positives, rest: len(one.ids) - one.positives})
    return said


def compare(claims: Collection[Claim], notes: Collection[Mapping[str, Any]]) -> Truth:
    """Compare claims about tasks with the notes of the tasks that ran."""
    first_ms: dict[str, int] = {}
    for note in notes:
        first_ms[note["id"]] = min(note["ran_ms"], first_ms.get(note["id"], note["ran_ms"]))
    must = [id_ for one in claims if one.runs for id_ in one.ids]
    known = [id_ for one in claims for id_ in one.ids]
    untrue = [one for one in claims if one.is_untrue(first_ms)]
    return Truth(count(claims), untrue, judge(must, known, notes))
