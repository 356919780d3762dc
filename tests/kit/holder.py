"""Messages for a store, and a holder that takes positions as the engine does."""

import itertools
import os
import uuid
from typing import Any

from sqlalchemy import update

from celery_wheel.store.model import (
    HOUR_MS,
    ORIGIN,
    SHARD_BITS,
    STOPPED,
    Change,
    LaneState,
    Message,
    Move,
    NewReject,
    Outcome,
    Position,
    Row,
    Settlement,
    StoredMessage,
    TallyKey,
    Unreadable,
)
from celery_wheel.store.ports import Store
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import wait_until

NOW = 1_800_000_000_000 // HOUR_MS * HOUR_MS
LEASE = 3_000
END = Position(2**62, 2**62)
EVERYTHING = (ORIGIN, END)
NO_LIMIT = 2**62

#: Two processes write to one store in test_kill; their messages differ.
_numbers = itertools.count(os.getpid() << 24 | 1)


def message(**parts: Any) -> Message:
    envelope_id = str(uuid.UUID(int=next(_numbers) << 80 | 7 << 76))
    values: dict[str, Any] = {
        "envelope_id": envelope_id,
        "task_id": f"task-{envelope_id}",
        "task": "app.remind",
        "eta_ms": NOW,
        "created_ms": NOW - 5,
        "exchange": "",
        "exchange_type": "direct",
        "routing_key": "celery",
        "queue": "celery",
        "priority": None,
        "key": None,
        "expires_ms": None,
        "queue_expires_ms": None,
        "headers": b"{}",
        "properties": b"{}",
        "body": b"[[], {}, {}]",
    }
    return Message(**{**values, **parts})


def acquire(store: Store, shard: int = 0, name: str = "host-a", lease_ms: int = LEASE, *, waits: bool = False) -> int:
    """Acquire a shard without a living holder.

    Args:
        waits: for the end of a lease that runs by the database's clock, which is ended else.
    """
    epochs: list[int] = []

    def acquired() -> bool:
        epoch = store.acquire(shard, name, NOW, lease_ms)
        if epoch is None and isinstance(store, SqlStore) and not waits:
            with store.database.writing() as connection:
                connection.execute(update(schema.shard).where(schema.shard.c.shard == shard).values(lease_until_ms=0))
        epochs.extend([] if epoch is None else [epoch])
        return bool(epochs)

    wait_until(acquired, f"{name} takes shard {shard}", 10)
    return epochs[0]


class Holder:
    def __init__(self, store: Store, shard: int = 0, name: str = "host-a") -> None:
        self.store = store
        self.shard = shard
        self.name = name
        self.acquire()

    def acquire(self) -> int:
        self.epoch = acquire(self.store, self.shard, self.name)
        self._count = self.store.state(self.shard).seq >> SHARD_BITS
        return self.epoch

    def seq(self) -> int:
        self._count += 1
        return self._count << SHARD_BITS | self.shard

    @property
    def highest_seq(self) -> int:
        return self._count << SHARD_BITS | self.shard

    def row(self, due_ms: int = NOW, *, lane: int = 0, **parts: Any) -> StoredMessage:
        seq = self.seq()
        return StoredMessage(seq, lane, due_ms, seq, NOW, message(**{"eta_ms": due_ms, **parts}))

    def reject(self, raw: bytes = b"not json", at_ms: int = NOW) -> NewReject:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, raw.hex()))
        return NewReject(self.seq(), at_ms, Unreadable(envelope_id, "no JSON", raw))

    def move(self, row: StoredMessage | Row, due_ms: int, lane: int = 0) -> Move:
        return Move(row.id, lane, due_ms, self.seq())

    def stop(self, row: StoredMessage | Row, at_ms: int = NOW) -> Move:
        return self.move(row, at_ms, STOPPED)

    def outcome(self, timer_id: int, kind: str = "cancelled", at_ms: int = NOW) -> Outcome:
        return Outcome(self.seq(), timer_id, kind, "asked for", "somebody", at_ms)

    def settlement(
        self, from_: Position, to: Position, *, at_ms: int = NOW, weight: int = 100, lane: int = 0
    ) -> Settlement:
        return Settlement(self.seq(), lane, from_, to, 1, weight, at_ms)

    def apply(self, **parts: Any) -> None:
        self.store.apply(self.shard, self.epoch, Change(seq=self.highest_seq, **parts))

    def accept(self, *due_ms: int, **parts: Any) -> list[StoredMessage]:
        rows = [self.row(due, **parts) for due in due_ms]
        self.apply(rows=rows)
        return rows

    def settle(self, from_: Position, to: Position, *, at_ms: int = NOW, weight: int = 100, lane: int = 0) -> None:
        settlement = self.settlement(from_, to, at_ms=at_ms, weight=weight, lane=lane)
        self.apply(settlements=[settlement], lanes=[LaneState(lane, to, to)])

    def put_offset(self, offset: Position, lane: int = 0) -> None:
        self.apply(lanes=[LaneState(lane, offset, offset)])

    def slice(self, after: Position = ORIGIN, upto: Position = END, lane: int = 0) -> list[Row]:
        return self.store.slice(self.shard, lane, after, upto)

    def ids(self, lane: int = 0) -> list[int]:
        return [row.id for row in self.slice(lane=lane)]


def place(row: StoredMessage | Row | Move) -> Position:
    return Position(row.due_ms, row.seq)


def ids(rows: list[StoredMessage]) -> list[int]:
    return [row.id for row in rows]


def hour_of(row: StoredMessage) -> TallyKey:
    return TallyKey(row.due_ms // HOUR_MS, row.message.queue or row.message.routing_key, row.message.task)
