"""Planted bugs of calls that become fewer runs: debounces with a bound, throttles and batches."""

import functools
from typing import Any

from celery_wheel.engine.intake import admission
from celery_wheel.store.model import Message, Row
from tests.simulation.focused import KeyedWorld
from tests.simulation.planted import replaces

replaces_keyed = functools.partial(replaces, world=KeyedWorld)


@replaces_keyed(admission._Contest, "_replace", seed=0)
def bound_of_the_last_call(right: Any, self: Any, key: str, arrival: Message, pending: Any) -> None:
    """Each call of a debounce begins its time anew."""
    for one in pending:
        one.latest_ms = None
    right(self, key, arrival, pending)


@replaces_keyed(admission._Contest, "_why_taken", seed=3)
def window_that_ends_with_the_publish(right: Any, self: Any, key: str, arrival: Message) -> str:
    """A published task keeps no other task of its key from being accepted, although its window goes on."""
    self._published.pop(key, None)
    return str(right(self, key, arrival))


@replaces_keyed(admission._Contest, "_follow", seed=1)
def each_call_follows(right: Any, self: Any, key: str, arrival: Message) -> None:
    """A call of a window waits for its end, and does not replace the one that waits already."""
    for one in self._pending.get(key, ()):
        one.latest_ms = None
    right(self, key, arrival)


@replaces_keyed(admission._Contest, "_follow", seed=10)
def follower_at_its_own_time(right: Any, self: Any, key: str, arrival: Message) -> None:
    """The last call of a window does not wait for the end of the window that a published task has begun."""
    self._published.pop(key, None)
    right(self, key, arrival)


@replaces_keyed(admission._Contest, "_join", seed=0)
def batch_that_is_due_later(right: Any, self: Any, key: str, arrival: Message, size: int) -> None:
    """A call joins a batch that is due after the time for which it was to wait."""
    etas = [one.eta_ms for one in self._pending.get(key, ())]
    arrival.latest_ms = max([arrival.latest_ms or arrival.eta_ms, *etas])
    right(self, key, arrival, size)


@replaces_keyed(admission._Contest, "_end_wait", seed=9)
def full_batch_before_its_time(right: Any, self: Any, holder: Any, due_ms: int) -> None:
    """A batch that is full is due now, although its calls have a delay."""
    right(self, holder, self._work.now_ms)


@replaces_keyed(admission._Contest, "_end_wait", seed=7)
def full_batch_that_waits(right: Any, self: Any, holder: Any, due_ms: int) -> None:
    """The last call of a full batch is due, and the others of it wait on."""
    if not isinstance(holder.task, Row):
        right(self, holder, due_ms)
