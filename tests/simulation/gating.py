"""Users who pause and resume gates in a simulated world; the oracle: no row of a paused gate is pushed.

A pause counts from the step in which its answer can be read: no row that a holder takes after it is pushed. At the end
every gate is resumed.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from celery_wheel.engine.state.lane import InFlight, Lane
from celery_wheel.store.model import Row
from tests.simulation.asking import Users
from tests.simulation.model_store import ModelStore, ShardData


class Gating(Users):
    gates: Sequence[str] = ("queue:celery", "queue:mail", "all:")
    variant = "a000"  #: part of the ids of its commands

    def __init__(self, rng: random.Random, store: ModelStore, violation: Callable[[str], Exception]) -> None:
        super().__init__(rng, store, violation)
        self.paused: dict[str, int] = {}  #: by gate: the step since which it is closed
        self.taken: dict[int, tuple[InFlight, int]] = {}  #: by row: the chunk, and the step in which it was taken
        self.left: set[int] = set()  #: rows that were pushed after they were taken
        self.step = 0
        self._count = 0
        self.used = False
        self._asked: dict[str, tuple[str, str]] = {}  #: by the command's id: its kind, and its gate

    def turn(self) -> str:
        gate = self._rng.choice(self.gates)
        return self.ask("pause" if self._rng.random() < 0.4 else "resume", gate)

    def ask(self, kind: str, gate: str) -> str:
        self.used = True
        self._count += 1
        number = f"00000000-0000-4000-{self.variant}-{self._count:012d}"
        per_ms = {}
        if kind == "resume":
            self.paused.pop(gate, None)  # from here on the gate may be open
            per_ms = {"per_ms": self._rng.choice((None, 1, 50))}
        self._asked[number] = kind, gate
        self.put(kind, number, gates=[gate], **per_ms)
        return f"{kind} {gate}"

    def stepped(self, name: object, lanes: Iterable[Lane], data: ShardData) -> None:
        self.step += 1
        if name in ("taken", "in doubt"):
            for chunk in [lane.in_flight for lane in lanes if lane.in_flight is not None]:
                for row in [row for row in chunk.rows if row.id not in chunk.done]:
                    self._take(row.id, chunk)
        if name == "committed":
            for number in [one for one in self._asked if one in data.answers]:
                kind, gate = self._asked.pop(number)
                later = any(other == gate for _, other in self._asked.values())
                if kind == "pause" and not later:
                    self.paused.setdefault(gate, self.step)
                    self.counts["paused"] += 1

    def _take(self, row_id: int, chunk: InFlight) -> None:
        """Note when a row was taken; a chunk in doubt that is published again counts from its first try."""
        sent_anew = row_id in self.left and self.taken[row_id][0] is not chunk and not chunk.redelivered
        if row_id not in self.taken or sent_anew:
            self.taken[row_id] = chunk, self.step
            self.left.discard(row_id)

    def pushed(self, row: Row) -> None:
        self.left.add(row.id)
        taken = self.taken[row.id][1] if row.id in self.taken else 0
        for gate in self.gates_of(row):
            if taken > self.paused.get(gate, self.step):
                raise self._violation(f"row {row.id} was taken and pushed although {gate} is paused")

    def gates_of(self, row: Row) -> Sequence[str]:
        return "all:", f"queue:{row.route.target}"
