"""One line of a page, as plain values. Instants are Unix milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func

from celery_wheel.store.model import REST, Position
from celery_wheel.store.schema import batch, outcome, timer

#: Where a task goes, as ``Row.target`` and the tally have it.
TARGET: ColumnElement[str] = func.coalesce(func.nullif(timer.c.queue, ""), timer.c.routing_key)


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


#: In the order of a Task's fields, up to ``size``.
TASK_COLUMNS: tuple[ColumnElement[Any], ...] = (
    timer.c.id,
    timer.c.shard,
    timer.c.lane,
    timer.c.due_ms,
    timer.c.seq,
    timer.c.eta_ms,
    timer.c.task_id,
    timer.c.task,
    TARGET.label("target"),
    timer.c.priority,
    timer.c.key,
    timer.c.expires_ms,
    timer.c.created_ms,
    timer.c.accepted_ms,
    timer.c.size,
)


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


STOPPED_COLUMNS: tuple[ColumnElement[Any], ...] = (
    outcome.c.id,
    outcome.c.shard,
    outcome.c.timer_id,
    outcome.c.kind,
    outcome.c.reason,
    outcome.c.actor,
    outcome.c.at_ms,
    timer.c.task_id,
    timer.c.task,
    TARGET.label("target"),
    timer.c.size,
    timer.c.lane,
)


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


SETTLED_COLUMNS: tuple[ColumnElement[Any], ...] = (
    batch.c.id,
    batch.c.shard,
    batch.c.lane,
    batch.c.from_due_ms,
    batch.c.from_seq,
    batch.c.to_due_ms,
    batch.c.to_seq,
    batch.c.count,
    batch.c.bytes,
    batch.c.dispatched_ms,
    batch.c.epoch,
)
