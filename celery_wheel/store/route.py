"""The route of a message: its task and its destination, of which very many messages have few."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

#: Routes that a process keeps in memory.
MAX_ROUTES = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The task and the destination of messages: of very many messages, a few.

    ``Route.of`` returns the same object for the same values, so routes are compared and counted by identity, which
    costs a row a tenth of what a comparison of the names does. Two objects may be equal routes all the same.
    """

    task: str
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    priority: int | None
    queue_expires_ms: int | None

    @classmethod
    def of(cls, message: Any) -> Route:
        """Return the route of a message, whose attributes have the names of the fields."""
        values = _ROUTE_OF(message)
        return _ROUTES.get(values) or cls.make(*values)

    @classmethod
    def make(cls, *values: Any) -> Route:
        """Return the route with these values, in the order of the fields."""
        found = _ROUTES.get(values)
        if found is None:
            if len(_ROUTES) >= MAX_ROUTES:  # above it, where two threads made the last ones at once
                _ROUTES.clear()
            found = _ROUTES[values] = cls(*values)
        return found

    @classmethod
    def named(cls, queue: str, task: str) -> Route:
        """Return the route that has a queue's and a task's name and nothing else: counts are kept by it."""
        return cls.make(task, "", "", queue, None, None, None)

    @property
    def names_a_place(self) -> bool:
        """Whether messages can be published at all; unreadable ones cannot."""
        return bool(self.exchange or self.routing_key)

    @property
    def target(self) -> str:
        """The destination's name: the queue, or the routing key where the queue is unknown."""
        return self.queue or self.routing_key


_ROUTE_OF = attrgetter(*Route.__slots__)
_ROUTES: dict[tuple[Any, ...], Route] = {}
