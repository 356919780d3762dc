"""Gates: what leaves slowly, or not at all. By task, by queue, or everything.

::

    closed     paused: nothing leaves until it is resumed
    metered    by wheel_rate_limits, or since it was resumed "over" a time: what had gathered leaves evenly

    main lane ─┬─ no gate ──────────────► broker
               ├─ metered, and its turn ─► broker             as long as nothing of its class waits
               └─ else ──► lane of the gate ── its turn ─► broker      in order, and nobody else waits behind it

A row waits in one gate's lane, that of its task if there is one, else that of its queue, and there for both. So of one
task, what goes to a limited queue holds up what goes to others. A row is moved to a gate's lane only when it is due:
setting a gate costs nothing, however much is pending.

A meter lets one through every ``per_ms / count``, and what came to it in the last ``BURST_MS`` at once, so that a fast
one goes in chunks: in no time more than its rate and that burst. With several shards each gets its part of a rate.

Monotonic milliseconds. Nothing here locks, reads a clock or does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_wheel.store.model import PAUSED, Gate, Row

#: (scope, name): of a gate's lane and of a gate; of a destination that refuses the scope is None.
Place = tuple[str | None, str]

ALL, QUEUE, TASK = "all", "queue", "task"

EVERYTHING: Place = (ALL, "")

BURST_MS = 100


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so much time."""

    count: int
    per_ms: int


class Meter:
    """A leaky bucket, in microseconds: ``_free_us`` is when it will be empty again."""

    def __init__(self, rate: Rate, now_ms: int, until_ms: int | None = None) -> None:
        self.until_ms = until_ms  #: from then on it lets everything through
        self._each_us = -(-rate.per_ms * 1_000 // rate.count)  # rounded up: never faster
        self._burst_us = max(self._each_us, BURST_MS * 1_000)
        self._free_us = now_ms * 1_000

    def room(self, now_ms: int) -> int:
        """How many may leave now."""
        taken_us = max(0, self._free_us - now_ms * 1_000)
        return max(0, (self._burst_us - taken_us) // self._each_us)

    def spend(self, count: int, now_ms: int) -> None:
        self._free_us = max(self._free_us, now_ms * 1_000) + count * self._each_us

    def next_ms(self) -> int:
        """When the next one may leave."""
        return -(-(self._free_us - self._burst_us + self._each_us) // 1_000)


class Gates:
    def __init__(self, rates: Mapping[str, Rate] | None = None, now_ms: int = 0) -> None:
        self.closed: set[Place] = set()
        self._limits = {name: Meter(rate, now_ms) for name, rate in (rates or {}).items()}
        self._slow: dict[Place, Meter] = {}

    def __bool__(self) -> bool:
        return bool(self.closed or self._limits or self._slow)

    def set(self, gate: Gate, backlog: int, wall_ms: int, now_ms: int) -> None:
        """``backlog``: how many had gathered behind a gate that is slow, for the time that is left of it."""
        place = (gate.scope, gate.name)
        self.open(place)
        if gate.state == PAUSED:
            self.closed.add(place)
            return
        left_ms = gate.at_ms + gate.per_ms - wall_ms
        if left_ms > 0 and backlog > 0:
            self._slow[place] = Meter(Rate(backlog, left_ms), now_ms, now_ms + left_ms)

    def open(self, place: Place) -> None:
        self.closed.discard(place)
        self._slow.pop(place, None)

    def meters(self, place: Place, now_ms: int) -> list[Meter]:
        """What a task has to pass at a place, beside ``closed``."""
        slow = self._slow.get(place)
        if slow is not None and slow.until_ms is not None and slow.until_ms <= now_ms:
            del self._slow[place]
            slow = None
        limit = self._limits.get(place[1]) if place[0] in (QUEUE, TASK) else None
        return [meter for meter in (slow, limit) if meter is not None]

    def is_metered(self, place: Place, now_ms: int) -> bool:
        return bool(self.meters(place, now_ms))

    def room(self, place: Place, now_ms: int) -> tuple[int | None, int]:
        """How many may leave at a place now, None for any number; and when to ask again, if none may."""
        room: int | None = None
        again_ms = 0
        for meter in self.meters(place, now_ms):
            free = meter.room(now_ms)
            if free == 0:
                again_ms = max(again_ms, meter.next_ms())
            room = free if room is None else min(room, free)
        return room, again_ms

    def spend(self, place: Place, count: int, now_ms: int) -> None:
        for meter in self.meters(place, now_ms):
            meter.spend(count, now_ms)


def places_of(row: Row) -> tuple[Place, Place]:
    """The gates at which a task is asked for, in order."""
    return (TASK, row.task), (QUEUE, row.target)


#: A row that is to wait where it is, and all behind it.
STAY: Place = ("stay", "")


@dataclass(slots=True)
class Router:
    """For one chunk of one lane: where each of its rows is to go, None to the broker."""

    gates: Gates
    own: Place | None  #: the lane's own place; None for one that takes everything
    busy: set[Place]  #: lanes that have something waiting: what belongs there goes behind it
    now_ms: int
    again_ms: int = 0  #: when what is to stay may be asked again

    def __call__(self, row: Row) -> Place | None:
        task, queue = places_of(row)
        closed = self.gates.closed
        for place in (task, queue):
            if place in closed and place != self.own:
                return place
        if self.own is not None and self.own[0] is None:  # it has passed the gates, and waits for its destination
            return None
        metered = [place for place in (task, queue) if place != self.own and self.gates.is_metered(place, self.now_ms)]
        home = self.own or self._home(task, queue, metered)
        if self.own == queue and task in metered:
            return task
        if home is not None and home in self.busy:
            return home
        if (refusing := (None, row.target)) in self.busy:
            return refusing
        if home is not None and not self._all_have_room(metered):
            self.busy.add(home)
            return STAY if home == self.own else home
        for place in metered:
            self.gates.spend(place, 1, self.now_ms)
        return None

    def _home(self, task: Place, queue: Place, metered: list[Place]) -> Place | None:
        """The one lane in which a row waits for its meters: that of its task, if that is metered, else of its queue."""
        return next((place for place in (task, queue) if place in metered or place in self.busy), None)

    def _all_have_room(self, places: list[Place]) -> bool:
        for place in places:
            room, self.again_ms = self.gates.room(place, self.now_ms)
            if room == 0:
                return False
        return True
