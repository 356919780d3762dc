"""What ``Browse`` answers with, as plain values: lines of pages, pages, counts. Instants are Unix milliseconds.

::

    Criteria ─► Page[Task | Stopped | Settled]      lines in order of position; ``next`` is where the next page begins
    task id  ─► Detail                              a message with its bytes, and what became of it
    tally    ─► Due, DueBy, Names                   counts

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from celery_wheel.store.model import HOUR_MS, MAX_SEQ, REST, Position

#: Behind every position: the first page of what is shown newest first begins here.
END = Position(2**62, MAX_SEQ)


@dataclass(frozen=True, slots=True)
class Task:
    """A message without its bytes."""

    id: int
    shard: int
    lane: int
    due_ms: int
    seq: int
    eta_ms: int
    task_id: str
    task: str
    target: str  #: queue, or routing key where none was named
    priority: int | None
    key: str | None
    expires_ms: int | None
    created_ms: int
    accepted_ms: int
    size: int
    dispatched_ms: int | None = None  #: when it left; None while it waits, and where that is no longer known

    @property
    def position(self) -> Position:
        return Position(self.due_ms, self.seq)

    @property
    def late_ms(self) -> int | None:
        """How long after its eta it left."""
        return None if self.dispatched_ms is None else self.dispatched_ms - self.eta_ms


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of a message that did not simply leave."""

    id: int
    shard: int
    timer_id: int
    kind: str
    reason: str
    actor: str
    at_ms: int
    task_id: str
    task: str
    target: str
    size: int
    lane: int

    @property
    def rests(self) -> bool:
        """It is set aside still; else it was asked to leave after all."""
        return self.lane == REST

    @property
    def position(self) -> Position:
        """Its place on a page: the time it happened."""
        return Position(self.at_ms, self.id)


@dataclass(frozen=True, slots=True)
class Settled:
    """One settlement: the messages of a lane in (from, to] were handed to the broker at ``dispatched_ms``."""

    id: int
    shard: int
    lane: int
    from_due_ms: int
    from_seq: int
    to_due_ms: int
    to_seq: int
    count: int
    bytes: int
    dispatched_ms: int
    epoch: int

    @property
    def from_(self) -> Position:
        return Position(self.from_due_ms, self.from_seq)

    @property
    def to(self) -> Position:
        return Position(self.to_due_ms, self.to_seq)

    @property
    def position(self) -> Position:
        """Its place on a page: the time at which they left; numbers of two shards say nothing of it."""
        return Position(self.dispatched_ms, self.id)


class Placed(Protocol):
    @property
    def position(self) -> Position: ...


T = TypeVar("T", bound=Placed)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """``next``: give it as ``after`` for what follows. None on the last page."""

    items: list[T]
    next: Position | None


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a page is of; what is None does not matter.

    Times are from ``from_ms`` on and before ``to_ms``: when a task is due, when one was set aside, when a
    settlement was.
    """

    shard: int | None = None
    task: str | None = None
    queue: str | None = None
    key: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def first(self) -> Position:
        """Every position that counts is behind this one."""
        return Position(self.from_ms or 0, 0).previous()

    @property
    def last(self) -> Position:
        """No position that counts is behind this one."""
        return END if self.to_ms is None else Position(self.to_ms, 0).previous()


@dataclass(frozen=True, slots=True)
class Detail:
    """A message, its bytes, and what became of it.

    ``state``: ``pending``, ``leaving`` (handed to the broker, whose answer is not in the store yet), ``dispatched``, or
    the kind of its last outcome: ``rejected``, ``cancelled``, ``expired``, ``parked``.
    """

    task: Task
    state: str
    waits_for: str | None  #: the destination that refuses it for the time being
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    envelope_id: str
    headers: bytes
    properties: bytes
    body: bytes
    outcomes: list[Stopped]


@dataclass(frozen=True, slots=True)
class Head:
    headers: bytes  #: a JSON object
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Due:
    """How many messages of a shard are due in the hour that begins at ``from_ms``."""

    shard: int
    from_ms: int
    pending: int

    @property
    def to_ms(self) -> int:
        return self.from_ms + HOUR_MS


@dataclass(frozen=True, slots=True)
class DueBy:
    """How many messages are due in the hour that begins at ``from_ms``; of the queue or the task ``name``."""

    from_ms: int
    name: str
    pending: int


@dataclass(frozen=True, slots=True)
class Names:
    """The queues and tasks that have anything pending, with how much."""

    queues: dict[str, int]
    tasks: dict[str, int]
