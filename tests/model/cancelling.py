"""A cancel against the acceptance, the dispatch and a takeover: every answer is certain.

::

    send ─► peek ─► accept ─► take ─► publish        the message: wheel queue, store, chunk in flight, the task's queue
    ask ─► decide ─► answer                          the command: inbox, the decision under the lock, one commit
           withdraw                                  the item leaves the inbox: a commit that finds none is rolled back

A decision reserves its row: no chunk takes it until the commit. The promises: ``done`` and ``already``: the task is
never published. ``unknown``: its message was not sent before the request, and is not published if it comes later. A
request that was withdrawn has no effect. Every request, and every task that is not cancelled, gets to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.model.checker import Event, Map, Model, require

PENDING, CANCELLED, OTHER = "pending", "cancelled", "another outcome"
DONE, ALREADY, TOO_LATE, UNKNOWN = "done", "already", "too_late", "unknown"


class Request(NamedTuple):
    task: str
    after: frozenset[str]  #: the tasks that had been sent before
    answer: str = ""  #: or "withdrawn"


@dataclass(frozen=True, slots=True)
class State:
    sent: frozenset[str] = frozenset()
    rows: Map[str, str] = field(default_factory=Map)  #: task → PENDING or its outcome, in the store
    buried: frozenset[str] = frozenset()  #: tasks with a tombstone
    requests: Map[int, Request] = field(default_factory=Map)
    taken: frozenset[str] = frozenset()  #: tasks of chunks, in the memory of the holder
    decided: Map[int, str] = field(default_factory=Map)  #: request → the answer that is to be committed
    pushed: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()  #: by the broker, until a commit says what becomes of them


class Cancelling(Model):
    def __init__(self, tasks: int = 2, requests: int = 2) -> None:
        self.tasks = [f"task {n}" for n in range(1, tasks + 1)]
        self.request_count = requests

    def initial(self) -> State:
        return State()

    def send(self, state: State, task: str) -> State:
        return replace(state, sent=state.sent | {task})

    def accept(self, state: State, task: str, outcome: str) -> State:
        """Commit a message of the wheel queue; a tombstone cancels it in the same commit."""
        require(task in state.sent and task not in state.rows, "no message of it waits")
        require(not state.decided, "one job accepts messages and carries out commands")
        require((outcome == CANCELLED) or not self.is_buried(state, task), "a tombstone cancels the task")
        return replace(state, rows=state.rows.put(task, outcome))

    def is_buried(self, state: State, task: str) -> bool:
        return task in state.buried

    def stop(self, state: State, task: str, outcome: str) -> State:
        """Give a row an outcome for another reason: a rejection, a unique key, a completed key."""
        self.check_free(state, task)
        return replace(state, rows=state.rows.put(task, outcome), refused=state.refused - {task})

    def check_free(self, state: State, task: str) -> None:
        require(state.rows.get(task) == PENDING, "the row is not pending")
        require(task not in state.taken | state.pushed, "the row may be published")

    # -- the request -----------------------------------------------------------------------------

    def ask(self, state: State, item: int, task: str) -> State:
        require(item not in state.requests, "an item is new")
        return replace(state, requests=state.requests.put(item, Request(task, state.sent)))

    def withdraw(self, state: State, item: int) -> State:
        require(not state.requests[item].answer, "the item is no longer in the inbox")
        return replace(state, requests=state.requests.put(item, state.requests[item]._replace(answer="withdrawn")))

    def decide(self, state: State, item: int, answer: str) -> State:
        request, task = state.requests[item], state.requests[item].task
        require(not state.decided and not request.answer, "it is decided, or another command is")
        outcome = state.rows.get(task)
        if answer == DONE:
            self.check_free(state, task)
            require(task not in self.reserved(state), "another commit has reserved the row")
        elif answer == UNKNOWN:
            require(outcome is None, "the store has a row of the task")
            self.check_looked(state, request)
        elif answer == ALREADY:
            require(outcome == CANCELLED, "it was not cancelled")
        else:
            late = task in state.taken | state.pushed | state.refused or outcome == OTHER
            require(outcome is not None and late, "the row is pending")
        return replace(state, decided=state.decided.put(item, answer))

    def check_looked(self, state: State, request: Request) -> None:
        require(request.task not in request.after, "its message was sent before, and is in the wheel queue")

    def reserved(self, state: State) -> set[str]:
        return {state.requests[item].task for item, answer in state.decided.items() if answer == DONE}

    def answer(self, state: State, item: int) -> State:
        """Commit a decision: the answer, the outcome or the tombstone, and the end of the item, in one transaction."""
        request, answer = state.requests[item], state.decided.get(item)
        require(answer, "nothing is decided")
        assert answer is not None
        self.check_asked(request)
        rows, buried = state.rows, state.buried
        if answer == DONE:
            rows = rows.put(request.task, CANCELLED)
        if answer == UNKNOWN:
            buried = self.bury(buried, request.task)
        return replace(
            state,
            rows=rows,
            buried=buried,
            decided=state.decided.without(item),
            requests=state.requests.put(item, request._replace(answer=request.answer or answer)),
        )

    def check_asked(self, request: Request) -> None:
        require(not request.answer, "the item is no longer in the inbox")

    def bury(self, buried: frozenset[str], task: str) -> frozenset[str]:
        return buried | {task}

    def forget(self, state: State, item: int) -> State:
        """Roll a decision back: the request was withdrawn."""
        require(item in state.decided and state.requests[item].answer == "withdrawn", "it may be committed")
        return replace(state, decided=state.decided.without(item))

    # -- the task --------------------------------------------------------------------------------

    def take(self, state: State, task: str) -> State:
        require(state.rows.get(task) == PENDING, "the row is not pending")
        require(task not in self.reserved(state), "the row is reserved")
        return replace(state, taken=state.taken | {task})

    def publish(self, state: State, task: str) -> State:
        require(task in state.taken, "it was not taken")
        self.check_guard(state, task)
        return replace(state, pushed=state.pushed | {task})

    def check_guard(self, state: State, task: str) -> None:
        require(state.rows.get(task) == PENDING, "the guard")

    def refuse(self, state: State, task: str) -> State:
        """The broker cannot put the row into its queue: it gets an outcome, or another lane, next."""
        require(task in state.taken, "it was not taken")
        return replace(state, taken=state.taken - {task}, refused=state.refused | {task})

    def divert(self, state: State, task: str) -> State:
        """Give a refused row another lane, in which it is pending as before."""
        return replace(state, refused=state.refused - {task})

    def crash(self, state: State) -> State:
        """The holder ends; the next one finds in Redis which rows were published (see ``lease``)."""
        return replace(state, taken=self.adopted(state), decided=Map(), refused=frozenset())

    def adopted(self, state: State) -> frozenset[str]:
        return state.pushed

    # -- bounds and promises ---------------------------------------------------------------------

    def events(self, state: State) -> Iterator[Event]:
        yield ("crash",)
        for task in self.tasks:
            yield from ((what, task) for what in ("send", "take", "publish"))
            yield from (
                ("accept", task, outcome) for outcome in (PENDING, CANCELLED) if self.may_come(state, task, outcome)
            )
            yield "stop", task, OTHER
        item = len(state.requests) + 1
        if item <= self.request_count:
            yield from (("ask", item, task) for task in self.tasks)
        for item in state.requests:
            yield from (("decide", item, answer) for answer in (DONE, ALREADY, TOO_LATE, UNKNOWN))
            yield from ((what, item) for what in ("withdraw", "answer", "forget"))

    def may_come(self, state: State, task: str, outcome: str) -> bool:
        return outcome == PENDING or self.is_buried(state, task)

    def is_done(self, state: State) -> bool:
        left = [task for task, outcome in state.rows.items() if outcome == PENDING and task not in state.pushed]
        return len(state.rows) == len(self.tasks) and not left and all(one.answer for one in state.requests.values())

    def broken(self, state: State) -> str | None:
        for item, (task, after, answer) in state.requests.items():
            if answer in (DONE, ALREADY, UNKNOWN) and task in state.pushed:
                return f"request {item} was answered {answer}, and {task} was published"
            if answer == UNKNOWN and task in after:
                return f"{task} had been sent, and request {item} was answered {answer}"
            if answer == DONE and state.rows.get(task) != CANCELLED:
                return f"request {item} was answered {answer}, and {task} has no such outcome"
        done = [task for task, outcome in state.rows.items() if outcome == CANCELLED]
        for task in done:
            said = {one.answer for one in state.requests.values() if one.task == task}
            if self.closed and not said & {DONE, UNKNOWN}:
                return f"{task} was cancelled, and no request was answered so"
        return None

    closed = True  #: nobody but these requests cancels tasks
