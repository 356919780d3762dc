"""Users who cancel and move tasks in a simulated world; the oracle: every result comes true.

::

    ask      cancel or move one to three tasks: pending, published, not sent yet, or never sent
    collect  each answer when it can be read
    repent   withdraw a request without an answer: if the withdrawal was in time, the request has no effect
    judge    done       cancelled: retired and never pushed      moved: pending until the new time (see ``pushed``)
                        of several cancels of a task one is done
             already    retired as well, by another cancel
             too_late   was pushed, will be pushed, or is retired for another reason
             unknown    was not sent before the request; a cancelled task is never pushed if it is sent later
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_wheel.store.model import STOPPED, Message
from tests.simulation.model_store import ModelStore, ShardData


@dataclass(slots=True)
class Question:
    kind: str
    task_ids: list[str]
    sent: set[str]  #: the tasks of the request whose message had been sent by then
    item: int = 0  #: number of its item in the inbox
    eta_ms: int | None = None  #: of a move; None: now
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def moved(self) -> list[str]:
        return [one for one, said in self.verdicts.items() if self.kind == "move" and said == "done"]


@dataclass(slots=True)
class Known:
    """Task ids by the state of their tasks."""

    unsent: list[str]
    queued: list[str]
    waiting: list[str]
    left: list[str]


class Users:
    def __init__(self, rng: random.Random, store: ModelStore, violation: Callable[[str], Exception]) -> None:
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._store = store
        self._violation = violation

    def put(self, kind: str, number: str, **fields: object) -> int:
        """Put a command into the inbox; return the number of its item."""
        return self._store.put_command(0, kind, json.dumps({"id": number, **fields}).encode())


class Asking(Users):
    def __init__(self, rng: random.Random, store: ModelStore, violation: Callable[[str], Exception]) -> None:
        super().__init__(rng, store, violation)
        self.questions: dict[str, Question] = {}
        self.withdrawn: set[str] = set()  #: actors
        self.moved: set[int] = set()  #: rows with a new due time, which follow no order of arrival

    def ask(self, known: Known, now_ms: int) -> str:
        rng = self._rng
        kind = rng.choice(("cancel", "cancel", "move"))
        # Mostly tasks that are due soon, since these race with dispatch.
        soon = known.waiting[: 1 + int(rng.expovariate(0.5))]
        pools = [soon, known.waiting, known.left, known.queued, known.unsent[-20:], ["nobody"]]
        chosen = [rng.choice(pool) for pool in rng.choices(pools, (14, 2, 1, 1, 3, 1), k=rng.choice((1, 1, 3))) if pool]
        task_ids = list(dict.fromkeys(chosen)) or ["nobody"]
        number = f"00000000-0000-4000-8000-{len(self.questions) + len(self.withdrawn):012d}"
        eta_ms = {"eta_ms": rng.choice((None, now_ms + rng.choice((-5, 0, 3, 20, 200))))} if kind == "move" else {}
        item = self.put(kind, number, task_ids=task_ids, reason="simulated", actor=f"user {number}", **eta_ms)
        sent = set(task_ids) - {*known.unsent, "nobody"}
        self.questions[number] = Question(kind, task_ids, sent, item, eta_ms.get("eta_ms"))
        return f"{kind} {', '.join(task_ids)}"

    def names(self, task_id: str) -> bool:
        """Whether a request names the task: sent anew by the inbox, behind the request, it is not cancelled."""
        return any(task_id in question.task_ids for question in self.questions.values())

    def repent(self) -> str:
        number, question = self._rng.choice(list(self.questions.items()))
        payload = self._store.command_payload(question.item) or b""
        in_time = self._store.withdraw(question.item, (0, question.kind, payload))
        if in_time:
            self.withdrawn.add(f"user {number}")
            del self.questions[number]
        return f"withdraws {question.kind} {', '.join(question.task_ids)}: {in_time}"

    def committed(self, data: ShardData) -> None:
        """Judge the moves that a commit has just answered: a row of them has its new due time."""
        etas_ms = {task_id: one.eta_ms for one in self.collect(data) for task_id in one.moved}
        for stored in data.rows.values() if etas_ms else ():
            task_id = stored.message.task_id if isinstance(stored.message, Message) else ""
            if (eta_ms := etas_ms.get(task_id)) is not None and stored.row.eta_ms != eta_ms:
                raise self._violation(f"{task_id} is due at {stored.row.eta_ms}, and was moved to {eta_ms}")

    def collect(self, data: ShardData) -> list[Question]:
        """Note the verdicts; returns the requests that have had none before."""
        found = list[Question]()
        for number, answer in data.answers.items():
            question = self.questions.get(number)  # other users of the simulation make requests, too
            if question is not None and not question.verdicts:
                question.verdicts = answer.results
                found.append(question)
        self.moved.update(one.timer_id for one in data.outcomes if one.kind == "moved")
        return found

    def judge(self, data: ShardData, pushes: dict[int, int], excused: set[str], loses: bool) -> None:
        rows = {
            stored.message.task_id: stored
            for stored in {**data.forgotten, **data.rows}.values()
            if isinstance(stored.message, Message)
        }
        late = [one for one in data.outcomes if one.actor in self.withdrawn]
        if late or any(one.actor in self.withdrawn for one in data.tombstones.values()):
            raise self._violation(f"{late} came of requests that had been withdrawn")
        by = Counter(
            id_
            for one in self.questions.values()
            if one.kind == "cancel"
            for id_, said in one.verdicts.items()
            if said == "done"
        )
        if twice := [task_id for task_id, count in by.items() if count > 1]:
            raise self._violation(f"several requests have the result that they cancelled {twice}")
        for question in self.questions.values():
            if set(question.verdicts) != set(question.task_ids):
                raise self._violation(f"{question} was not answered")
            for task_id, verdict in question.verdicts.items():
                stored = rows.get(task_id)
                # A replayed task had been published before the request: its last copy counts.
                pushed = stored is not None and pushes.get(stored.row.id, 0) > sum(
                    one.timer_id == stored.row.id and one.reason == "replay" for one in data.outcomes
                )
                forgotten = stored is not None and stored.row.id in data.forgotten
                if verdict == "unknown" and task_id in question.sent - excused and not forgotten:
                    raise self._violation(f"{task_id} had been sent, and {question} says unknown")
                if verdict == "too_late" and stored is not None and not pushed and stored.row.lane != STOPPED:
                    raise self._violation(f"{task_id} was never pushed, and {question} says that it is too late")
                if question.kind != "cancel" or verdict == "too_late" or stored is None or forgotten or loses:
                    continue
                if pushed or stored.row.lane != STOPPED:
                    raise self._violation(f"{task_id} was pushed, and {question} says {verdict}")
