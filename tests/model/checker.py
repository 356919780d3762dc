"""An explicit-state checker: a breadth-first search of every state that a model can reach within its bounds.

::

    a model    initial()       the first state, a frozen dataclass
               events(state)   every event that anybody may try, within the bounds: a name, and its arguments
               NAME(state, …)  the state after the event; raises Refused where a rule of the protocol forbids it
               broken(state)   the promise that the state breaks, or None
               is_done(state)  whether everything has arrived that was accepted

    explore    each state keeps the promises, and from each state a state with ``is_done`` can still be reached;
               else Counterexample, with the shortest row of events that leads there

``replay`` runs a given row of events by the same methods: ``traces`` gives it those of the simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Event = tuple[Any, ...]  #: the name of a method of the model, and its arguments


class Map(dict[K, V]):
    """A dict that a state may have: nobody changes it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def put(self, key: K, value: V) -> Map[K, V]:
        return Map({**self, key: value})

    def without(self, *keys: K) -> Map[K, V]:
        return Map({key: value for key, value in self.items() if key not in keys})


class Refused(Exception):
    """The protocol has a rule against this event in this state."""


class Counterexample(AssertionError):
    """A promise that is broken, with the events that lead there."""


def require(rule: object, otherwise: str) -> None:
    if not rule:
        raise Refused(otherwise)


class Model:
    def initial(self) -> Any:
        raise NotImplementedError

    def events(self, state: Any) -> Iterator[Event]:
        raise NotImplementedError

    def broken(self, state: Any) -> str | None:
        raise NotImplementedError

    def is_done(self, state: Any) -> bool:
        raise NotImplementedError

    def step(self, state: Any, event: Event) -> Any:
        return getattr(self, event[0])(state, *event[1:])


@dataclass
class Explored:
    states: int
    steps: int
    depth: int  #: of the state that is the furthest from the first


def explore(model: Model, most: int = 2_000_000) -> Explored:
    first = model.initial()
    numbers = {first: 0}
    states, came = [first], [(0, ("start",), 0)]  #: of each state: the number of the one before, the event, the depth
    before: list[list[int]] = [[]]
    todo, steps, done = deque([0]), 0, list[int]()
    while todo:
        number = todo.popleft()
        state = states[number]
        if what := model.broken(state):
            raise Counterexample(_told(what, came, number, state))
        if model.is_done(state):
            done.append(number)
        for event in model.events(state):
            try:
                after = model.step(state, event)
            except Refused:
                continue
            steps += 1
            found = numbers.setdefault(after, len(states))
            if found == len(states):
                if found >= most:
                    raise AssertionError(f"more than {most} states: the bounds are too wide")
                states.append(after)
                came.append((number, event, came[number][2] + 1))
                before.append([])
                todo.append(found)
            before[found].append(number)
    _check_progress(states, came, before, done)
    return Explored(len(states), steps, max(depth for *_, depth in came))


def _check_progress(states: list[Any], came: list[Any], before: list[list[int]], done: list[int]) -> None:
    good, todo = set(done), deque(done)
    while todo:
        for number in before[todo.popleft()]:
            if number not in good:
                good.add(number)
                todo.append(number)
    for number, state in enumerate(states):
        if number not in good:
            raise Counterexample(_told("something that was accepted can never arrive", came, number, state))


def _told(what: str, came: list[Any], number: int, state: Any) -> str:
    events = list[str]()
    while number:
        number, event, _ = came[number]
        events.append(_text(event))
    return "\n  ".join([what, *reversed(events), f"state: {state}"])


def _text(event: Event) -> str:
    return f"{event[0]}({', '.join(map(str, event[1:]))})"


def replay(model: Model, events: Iterable[Event]) -> int:
    """Run these events, and return their number; Counterexample where one is refused or leads to a broken promise."""
    state, told, number = model.initial(), deque[str](maxlen=40), 0
    for number, event in enumerate(events, 1):
        told.append(_text(event))
        try:
            state = model.step(state, event)
        except Refused as rule:
            raise Counterexample(
                "\n  ".join([f"event {number} is refused: {rule}", *told, f"state: {state}"])
            ) from rule
        if what := model.broken(state):
            raise Counterexample("\n  ".join([f"event {number} breaks a promise: {what}", *told, f"state: {state}"]))
    return number
