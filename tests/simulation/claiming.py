"""Keys in a simulated world: messages that watch keys or have a unique key, and users who complete keys.

::

    dress   a message gets keys that it watches, or a unique key, or both, or none
    ask     complete one or two keys; some keys have no watchers
    look    after every step, judge the last commit by the state at its reservation
              an answer    each task that watched the key and had been sent is completed, retired or published; the
                           counts of the answer agree with the outcomes, and no task is completed twice
              a row        accepted: no other task of its unique key is pending      retired: another task is pending
                           of a debounce, a throttle or a batch: see ``collapsing``
    judge   every request was answered

Only the holder's memory tells which rows the broker has but did not confirm; one that its queue refuses is among them.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import REJECT, REPLACE, STOPPED, Message, Row
from tests.simulation.asking import Users
from tests.simulation.collapsing import Collapsing
from tests.simulation.model_store import ModelStore, ShardData, copy_of
from tests.simulation.recalling import Recalling

WATCHED = ("order:1", "order:2", "order:3", "order:4", "order:5")
UNIQUE = ("report", "digest")


@dataclass(slots=True)
class Question:
    keys: list[str]
    sent: dict[str, Message]  #: by envelope, all messages that had been sent by then
    counts: dict[str, dict[str, int]] | None = None


class Claiming(Users):
    def __init__(
        self,
        rng: random.Random,
        store: ModelStore,
        violation: Callable[[str], Exception],
        collapsing: Collapsing,
    ) -> None:
        super().__init__(rng, store, violation)
        self._collapsing = collapsing
        self.lost: set[str] = set()  #: by envelope, messages that Redis lost before the store had them
        self._questions: dict[str, Question] = {}
        self._open: set[str] = set()
        self._seen: set[int] = set()
        self._read: dict[int, list[Row]] = {}  #: epoch → rows at their positions when they were read
        self._waiting: dict[int, set[int]] = {}  #: epoch → ids of the rows that were pending at the decision

    def dress(self, message: Message) -> Message:
        rng = self._rng
        if rng.random() < 0.5:
            message.watch = rng.sample(WATCHED, rng.choice((1, 1, 2)))
        if rng.random() < 0.3:
            message.unique = rng.choice(UNIQUE)
            message.on_conflict = rng.choice((None, "keep", REPLACE, REPLACE, REJECT))
        self._collapsing.dress(message)
        return message

    def ask(self, sent: Iterable[Message]) -> str:
        keys = self._rng.sample((*WATCHED, "nobody's"), self._rng.choice((1, 2)))
        how = self._rng.choice(("cancel", "cancel", "run"))
        number = f"00000000-0000-4000-9000-{len(self._questions):012d}"
        self._questions[number] = Question(keys, {message.envelope_id: message for message in sent})
        self._open.add(number)
        self.put("complete", number, keys=keys, how=how, actor=number, reason="")
        return f"complete {', '.join(keys)}: {how}"

    def step(self, name: str, data: ShardData, state: ShardState) -> None:
        if name in ("watchers found", "claimants found"):
            recalled = Recalling.recalled(data)  # their claims have ended
            there = [one.row for one in data.rows.values() if one.row.lane != STOPPED and one.row.id not in recalled]
            self._read[state.epoch] = [copy_of(row) for row in there]
        elif name == "reserved":
            read = self._read.pop(state.epoch, ())
            now = [data.rows[row.id].row for row in read if row.id in data.rows]  # dispatch may have diverted them
            rows = (*read, *now)
            self._waiting[state.epoch] = {row.id for row in rows if not state.may_be_published(row)}

    def look(self, data: ShardData, pushed: Collection[int]) -> None:
        answered, rows = self._open & data.answers.keys(), len(data.rows) + len(data.forgotten)
        if not answered and rows == len(self._seen):
            return
        fresh = data.rows.keys() - self._seen
        self._seen |= fresh
        waited = self._waiting.get(data.epoch, set())
        # A row that Redis lost may be published again; its claims ended when it was first published.
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
        question.counts = counts = data.answers[number].results
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
                    raise self._violation(f"{task_id} is pending, watches {key}, and was not completed by {number}")
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
        if row.lane != STOPPED:
            if not self._collapsing.came(data, row_id, claims):
                return
            too_many = [id_ for id_, other in others.items() if id_ in claims and other.lane != STOPPED]
            if too_many:
                raise self._violation(f"{message.task_id} and rows {too_many} are pending, and only one may be")
            return
        reasons = {one.timer_id: f"{one.kind}: {one.reason}" for one in data.outcomes}
        kind, _, reason = reasons[row_id].partition(": ")
        if "has begun its window" in reason:
            self.counts["stopped by a window"] += 1
            if not self._collapsing.is_in_window(data, row_id):
                raise self._violation(f"{message.task_id} was retired, and no window of {message.unique} goes on")
        elif reason.startswith("another task with the unique key"):
            self.counts[f"{kind}, another waits"] += 1
            if not others.keys() & waited:
                raise self._violation(f"{message.task_id} was retired, and no task of {message.unique} was pending")
        elif reason.startswith("replaced by"):
            self.counts["replaced at once"] += 1
        self.counts["replaced"] = sum("replaced by" in one for one in reasons.values())
