"""Users who requeue rejected or expired tasks, and replay published rows, in a simulated world.

::

    ask     requeue tasks, or replay rows, which are retired, published or neither
    times   how often a row may be pushed: once, and once more for every replay
    judge   every request was answered; done: the row was pushed that often, or is retired
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping

from celery_wheel.store.model import STOPPED, Message
from tests.simulation.asking import Users
from tests.simulation.model_store import ModelStore, ShardData

ACTOR = "recall"


class Recalling(Users):
    def __init__(self, rng: random.Random, store: ModelStore, violation: Callable[[str], Exception]) -> None:
        super().__init__(rng, store, violation)
        self._asked: dict[str, tuple[str, list[str]]] = {}
        self._answered: set[str] = set()

    def ask(self, data: ShardData) -> str:
        kind = self._rng.choice(("requeue", "replay"))
        rests = [one for one in data.rows.values() if one.row.lane == STOPPED]
        others = [one for one in data.rows.values() if one.row.lane != STOPPED]
        pool = self._rng.choices((rests, others), (6, 1) if kind == "requeue" else (1, 6))[0]
        chosen = self._rng.sample(pool, min(len(pool), self._rng.choice((1, 2, 3))))
        if kind == "replay":
            list_name, names = "rows", [str(one.row.id) for one in chosen] or ["12345"]
        else:
            ids = [one.message.task_id for one in chosen if isinstance(one.message, Message)]
            list_name, names = "task_ids", list(dict.fromkeys(ids)) or ["nobody"]
        number = f"00000000-0000-4000-b000-{len(self._asked):012d}"
        self._asked[number] = kind, names
        self.put(kind, number, **{list_name: names}, reason=kind, actor=ACTOR)
        return f"{kind} {', '.join(names)}"

    @staticmethod
    def recalled(data: ShardData, kind: str = "") -> Counter[int]:
        ever = (*data.outcomes, *data.forgotten_outcomes)
        return Counter(one.timer_id for one in ever if one.actor == ACTOR and kind in ("", one.reason))

    def times(self, data: ShardData, row_id: int) -> int:
        return 1 + self.recalled(data, "replay")[row_id]

    def collect(self, data: ShardData) -> None:
        """Count the answers, which the store keeps for ten minutes."""
        for number in self._asked.keys() & data.answers.keys() - self._answered:
            kind, _ = self._asked[number]
            self.counts.update(f"{kind}: {said}" for said in data.answers[number].results.values())
            self._answered.add(number)

    def judge(self, data: ShardData, pushes: Mapping[int, int], exactly: bool) -> None:
        self.collect(data)
        replays = self.recalled(data, "replay")
        for number, (kind, names) in self._asked.items():
            if number not in self._answered:
                raise self._violation(f"{kind} {names} was not answered")
        for row_id, times in replays.items():
            stored = data.rows.get(row_id)
            if stored is None or stored.row.lane == STOPPED:
                continue
            if pushes.get(row_id, 0) < 1 + times and exactly:
                raise self._violation(f"row {row_id} was replayed {times} times, and pushed {pushes.get(row_id, 0)}")
