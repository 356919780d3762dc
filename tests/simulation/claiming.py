"""Keys in a simulated world: messages that watch some, messages of which one is to wait, and users who complete keys.

::

    dress   a message gets keys that it watches, or a unique one, or both, or none
    ask     complete of one or two keys, some of which nobody watches
    step    when who claims a key is read, where every row stood; when it is decided on, which of them wait
    look    after every step, at what a commit has brought; judged by what was so when it was decided
              an answer    what watched the key and had been sent is completed, rests, left, or was handed over
                           as many are done as say so of themselves, and nothing is completed twice
              a row        it waits: of its unique key no other does       it was set aside: another one waits
    judge   every question was answered

What was handed over and has not come to its queue yet is known to the holder alone: it is asked what it thinks. What
comes back from there after it was decided, since its queue is full, was handed over all the same.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import REJECT, REPLACE, REST, Message, Row
from tests.simulation.model_store import ModelStore, ShardData, copy_of
from tests.simulation.recalling import Recalling

WATCHED = ("order:1", "order:2", "order:3", "order:4", "order:5")
UNIQUE = ("report", "digest")


@dataclass(slots=True)
class Question:
    keys: list[str]
    sent: dict[str, Message]  #: by envelope, all messages that had been sent by then
    counts: dict[str, dict[str, int]] | None = None


class Claiming:
    def __init__(self, rng: random.Random, store: ModelStore, violation: Callable[[str], Exception]) -> None:
        self.counts: Counter[str] = Counter()
        self.lost: set[str] = set()  #: by envelope, what Redis lost before it came to the store
        self._rng = rng
        self._store = store
        self._violation = violation
        self._questions: dict[str, Question] = {}
        self._open: set[str] = set()
        self._seen: set[int] = set()
        self._read: dict[int, list[Row]] = {}  #: epoch → rows as they stood when they were read
        self._waiting: dict[int, set[int]] = {}  #: epoch → ids of those that waited when it was decided

    def dress(self, message: Message) -> Message:
        rng = self._rng
        if rng.random() < 0.5:
            message.watch = rng.sample(WATCHED, rng.choice((1, 1, 2)))
        if rng.random() < 0.3:
            message.unique = rng.choice(UNIQUE)
            message.on_conflict = rng.choice((None, "keep", REPLACE, REPLACE, REJECT))
        return message

    def ask(self, sent: Iterable[Message]) -> str:
        keys = self._rng.sample((*WATCHED, "nobody's"), self._rng.choice((1, 2)))
        how = self._rng.choice(("cancel", "cancel", "run"))
        number = f"00000000-0000-4000-9000-{len(self._questions):012d}"
        asked = {"keys": keys, "how": how, "id": number, "actor": number, "reason": ""}
        self._questions[number] = Question(keys, {message.envelope_id: message for message in sent})
        self._open.add(number)
        self._store.put_inbox(0, [("complete", json.dumps(asked).encode())])
        return f"complete {', '.join(keys)}: {how}"

    # -- oracles -------------------------------------------------------------------------------------

    def step(self, name: str, data: ShardData, state: ShardState) -> None:
        if name in ("watchers found", "claimants found"):
            recalled = Recalling.recalled(data)  # which claim nothing any more
            there = [one.row for one in data.rows.values() if one.row.lane != REST and one.row.id not in recalled]
            self._read[state.epoch] = [copy_of(row) for row in there]
        elif name == "reserved":
            read = self._read.pop(state.epoch, ())
            self._waiting[state.epoch] = {row.id for row in read if not state.may_have_left(row.lane, row.position)}

    def look(self, data: ShardData, pushed: Collection[int]) -> None:
        answered, rows = self._open & data.answers.keys(), len(data.rows) + len(data.forgotten)
        if not answered and rows == len(self._seen):
            return
        fresh = data.rows.keys() - self._seen
        self._seen |= fresh
        waited = self._waiting.get(data.epoch, set())
        # What Redis lost may leave again, and claims nothing then: it had left once by its time.
        first = waited.difference(pushed)
        for number in sorted(answered):
            self._open.remove(number)
            self._answered(data, number, first)
        for row_id in sorted(fresh):
            message = data.rows[row_id].message
            if isinstance(message, Message) and message.unique is not None:
                self._came(data, row_id, waited | fresh, first | fresh)

    def judge(self) -> None:
        if self._open:
            raise self._violation(f"{[self._questions[number] for number in sorted(self._open)]} were not answered")

    def _answered(self, data: ShardData, number: str, waited: set[int]) -> None:
        question = self._questions[number]
        question.counts = counts = data.answers[number].verdicts
        stored = data.envelopes.keys() | {one.message.envelope_id for one in data.forgotten.values()}
        missed = [
            one.task_id
            for id_, one in question.sent.items()
            if id_ not in stored | self.lost and not set(question.keys).isdisjoint(one.watch or ())
        ]
        if missed:
            raise self._violation(f"{missed} watch one of {question.keys}, and {number} was answered before they came")
        completed = Counter(one.timer_id for one in data.outcomes if one.actor in self._questions)
        twice = [row_id for row_id, times in completed.items() if times > 1]
        if twice:
            raise self._violation(f"rows {twice} were completed twice")
        sent = {one.task_id for one in question.sent.values()}
        by_this = {one.timer_id for one in data.outcomes if one.actor == number}
        for key in question.keys:
            watching = self._watching(data, key)
            done = sum(row.id in by_this for _, row in watching)
            if counts[key]["done"] != done:
                raise self._violation(f"{number} completed {done} by {key}, and says {counts[key]}")
            for task_id, row in watching:
                if row.id in waited - completed.keys() and task_id in sent:
                    raise self._violation(f"{task_id} waits, watches {key}, and was not completed by {number}")
            self.counts["completed by a key"] += counts[key]["done"]
            self.counts["too late for a key"] += counts[key]["too_late"]
            self.counts["watched by nobody"] += not any(counts[key].values())

    def _watching(self, data: ShardData, key: str) -> list[tuple[str, Row]]:
        stored = [(one.message, one.row) for one in data.rows.values()]
        return [
            (message.task_id, row)
            for message, row in stored
            if isinstance(message, Message) and key in (message.watch or ())
        ]

    def _came(self, data: ShardData, row_id: int, waited: set[int], claims: set[int]) -> None:
        message, row = data.rows[row_id].message, data.rows[row_id].row
        assert isinstance(message, Message)
        others = {
            one.row.id: one.row
            for one in data.rows.values()
            if isinstance(one.message, Message) and one.message.unique == message.unique and one.row.id != row_id
        }
        if row.lane != REST:
            too_many = [id_ for id_, other in others.items() if id_ in claims and other.lane != REST]
            if too_many:
                raise self._violation(f"{message.task_id} and rows {too_many} wait, and there is to be one")
            return
        reasons = {one.timer_id: f"{one.kind}: {one.reason}" for one in data.outcomes}
        kind, _, reason = reasons[row_id].partition(": ")
        if reason.startswith("another task with the unique key"):
            self.counts[f"{kind}, another waits"] += 1
            if not others.keys() & waited:
                raise self._violation(f"{message.task_id} was set aside, and nobody waited for {message.unique}")
        elif reason.startswith("replaced by"):
            self.counts["replaced at once"] += 1
        self.counts["replaced"] = sum("replaced by" in one for one in reasons.values())
