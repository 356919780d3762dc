"""Gates: pauses and rate limits, of a task, a queue, a group or everything; the route of a due row through them.

A row waits in the lane of one gate and passes all its gates from there: the lane of its task where that gate is closed
or metered, else the lane of its queue. So rows of a task that go to a limited queue delay rows of the same task that go
to other queues. A row moves to a gate's lane only when it is due: setting a gate costs the same, however much is
pending.

A meter lets one row through every ``per_ms / count``, and after a pause at once the rows of ``BURST_MS``, so that fast
meters publish chunks. With several shards each shard gets its part of a rate. Times are monotonic milliseconds.

A row asks its group for room (see ``groups``) after the gates of its task and its queue: a row that they stop takes no
slot. The gate of a group has no lane: the rows that it stops wait in the lines of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from celery_wheel.store.model import PAUSED, Gate, Row

#: (scope, name) of a gate and of its lane; the scope of a refusing destination is None.
Place = tuple[str | None, str]

ALL, QUEUE, TASK, GROUP = "all", "queue", "task", "group"

EVERYTHING: Place = (ALL, "")

BURST_MS = 100


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` rows in ``per_ms``."""

    count: int
    per_ms: int


class Meter:
    """A leaky bucket, in microseconds: ``_free_us`` is when it will be empty again."""

    def __init__(self, rate: Rate, now_ms: int, until_ms: int | None = None, *, exact: bool = False) -> None:
        """
        Args:
            until_ms: the meter lets everything through from this instant on; None: it never ends.
            exact: no ``per_ms`` has more than ``count`` rows, also with the rows that pass at once.
        """
        self.until_ms = until_ms
        per_us, burst_us = rate.per_ms * 1_000, BURST_MS * 1_000
        self._each_us = -(-per_us // rate.count)  # rounded up: never faster
        if exact:
            burst_us = min(burst_us, per_us // 10)
            if self._each_us < burst_us:  # n rows within per_us need n * each_us < per_us + burst_us
                self._each_us = -(-(per_us + burst_us) // (rate.count + 1))
        self._burst_us = max(self._each_us, burst_us)
        self.at_once = self._burst_us // self._each_us  #: the most rows that it lets through at once
        self._free_us = now_ms * 1_000

    def room(self, now_ms: int, pending: int = 0) -> int:
        """Return how many rows may be published now, beside ``pending`` rows that may be published at any time."""
        taken_us = max(0, self._free_us - now_ms * 1_000)
        return max(0, (self._burst_us - taken_us) // self._each_us - pending)

    def spend(self, count: int, now_ms: int) -> None:
        self._free_us = max(self._free_us, now_ms * 1_000) + count * self._each_us

    def resume(self, empty_ms: int, now_ms: int) -> None:
        """Go on as a meter that would be empty at ``empty_ms``, but as a full one at most."""
        self._free_us = max(self._free_us, min(empty_ms * 1_000, now_ms * 1_000 + self._burst_us))

    def empty_ms(self) -> int:
        """Return when the bucket is empty, so that the meter is as a new one."""
        return -(-self._free_us // 1_000)

    def next_ms(self, pending: int = 0) -> int:
        """Return when the next row may be published, beside ``pending`` ones; their number is below ``at_once``."""
        return -(-(self._free_us - self._burst_us + (pending + 1) * self._each_us) // 1_000)


class Gates:
    def __init__(self, rates: Mapping[str, Rate] | None = None, now_ms: int = 0) -> None:
        self.closed: set[Place] = set()  #: those of tasks and queues, and EVERYTHING
        self.closed_groups: set[str] = set()
        self._limits = {name: Meter(rate, now_ms) for name, rate in (rates or {}).items()}
        self._slow: dict[Place, Meter] = {}

    def __bool__(self) -> bool:
        return bool(self.closed or self.closed_groups or self._limits or self._slow)

    def set(self, gate: Gate, backlog: int, wall_ms: int, now_ms: int) -> None:
        """Set a gate; ``backlog``: rows behind a slow one, to be published evenly in what is left of its time."""
        place = (gate.scope, gate.name)
        self.open(place)
        if gate.state == PAUSED:
            if gate.scope == GROUP:
                self.closed_groups.add(gate.name)
            else:
                self.closed.add(place)
            return
        left_ms = gate.at_ms + gate.per_ms - wall_ms
        if left_ms > 0 and backlog > 0:
            self._slow[place] = Meter(Rate(backlog, left_ms), now_ms, now_ms + left_ms)

    def open(self, place: Place) -> None:
        self.closed.discard(place)
        if place[0] == GROUP:
            self.closed_groups.discard(place[1])
        self._slow.pop(place, None)

    def meters(self, place: Place, now_ms: int) -> list[Meter]:
        """Return the meters that rows have to pass at a place."""
        slow = self._slow.get(place)
        if slow is not None and slow.until_ms is not None and slow.until_ms <= now_ms:
            del self._slow[place]
            slow = None
        limit = self._limits.get(place[1]) if place[0] in (QUEUE, TASK) else None
        return [meter for meter in (slow, limit) if meter is not None]

    def room(self, place: Place, now_ms: int) -> tuple[int | None, int]:
        """Return how many rows may pass a place now (None: any number), and when to try again where none may."""
        room: int | None = None
        retry_at_ms = 0
        for meter in self.meters(place, now_ms):
            free = meter.room(now_ms)
            if free == 0:
                retry_at_ms = max(retry_at_ms, meter.next_ms())
            room = free if room is None else min(room, free)
        return room, retry_at_ms

    def spend(self, place: Place, count: int, now_ms: int) -> None:
        for meter in self.meters(place, now_ms):
            meter.spend(count, now_ms)


def places_of(row: Row) -> tuple[Place, Place]:
    """Return the gates of a row, in the order in which it passes them."""
    return (TASK, row.route.task), (QUEUE, row.route.target)


#: Route of a row that stays in its lane, with every row behind it.
STAY: Place = ("stay", "")

#: Route of a row that waits in a line of its group.
LINE: Place = (GROUP, "")


class Admission(Protocol):
    """The groups, as a row asks them; see ``groups``."""

    def admit(self, row: Row, now_ms: int) -> bool:
        """Whether a row may be published now; it takes a slot."""

    def has_slot(self, row: Row) -> bool: ...

    def is_limited(self, row: Row) -> bool:
        """Whether the row's group has a limit, or its queue a depth."""


@dataclass(slots=True)
class GateRouter:
    """Routes each row of one chunk of one lane: to the lane of a place, or STAY; None is the broker."""

    gates: Gates
    own: Place | None  #: the lane's own place; None for a lane for any row
    busy: set[Place]  #: places whose lanes have rows waiting: later rows of the place go behind them
    now_ms: int
    retry_at_ms: int = 0  #: monotonic: when to try again the row that stays
    groups: Admission | None = None  #: None: no row has a limit by its group
    _metered: list[Place] = field(default_factory=list)

    def __call__(self, row: Row) -> Place | None:
        place = self._gate(row)
        # A row that was released before its group was paused waits anew.
        if place is None and (
            row.group in self.gates.closed_groups
            or (self.groups is not None and not self.groups.admit(row, self.now_ms))
        ):
            return LINE
        if place is None or place[0] is None:
            for passed in self._metered:
                self.gates.spend(passed, 1, self.now_ms)
        return place

    def _gate(self, row: Row) -> Place | None:
        """Return the gate or destination for which a row waits; None: none; ``_metered`` are the meters it passes."""
        if not (self.gates or self.busy or self.own):
            return None
        task, queue = places_of(row)
        self._metered = []
        closed = self.gates.closed
        for place in (task, queue):
            if place in closed and place != self.own:
                return place
        if self.own is not None and self.own[0] is None:  # the row has passed its gates and waits for its destination
            return None
        is_released = self.groups is not None and self.groups.has_slot(row)  # it has waited, and goes behind no other
        busy = set[Place]() if is_released else self.busy - {self.own}
        metered = [place for place in (task, queue) if place != self.own and self.gates.meters(place, self.now_ms)]
        # A row waits for its meters with its task if that is metered or busy, else with its queue.
        home = self.own or next((one for one in (task, queue) if one in metered or one in busy), None)
        if self.own == queue and task in metered:
            return task
        if home is not None and home in busy:
            return home
        if home is not None and not self._all_have_room(metered):
            if self.groups is not None and self.groups.is_limited(row):
                return LINE  # groups share the rate of a queue as they share the queue
            self.busy.add(home)
            return STAY if home == self.own else home
        self._metered = metered
        refusing = (None, row.route.target)
        return refusing if refusing in busy else None

    def _all_have_room(self, places: list[Place]) -> bool:
        for place in places:
            room, self.retry_at_ms = self.gates.room(place, self.now_ms)
            if room == 0:
                return False
        return True
