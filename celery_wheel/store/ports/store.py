"""The store protocol of the engine. Every store passes tests/stores; the simulation's model does too.

The store is the truth: every accepted message is in it, and the window is only a cache of its near part.

Rules for every implementation

1. ``apply`` is one transaction. It begins by locking the shard's row and comparing its epoch; another
   epoch raises ``Fenced`` and writes nothing. So a takeover waits for an open commit, and a former
   holder can change nothing.
2. ``acquire`` raises the epoch, whoever held the shard before, the caller included: a holder that drops
   its memory comes back under a new epoch, and calls of its former state are fenced.
3. A read sees every change whose ``apply`` returned before the read began.
4. Any failure raises ``StoreError``; the caller must assume that the change may be committed or not.
5. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from celery_wheel.store.model import (
    Cancelled,
    Change,
    Gate,
    InboxItem,
    LaneState,
    LoadChunk,
    Position,
    RangeSummary,
    Row,
    ShardRecord,
    TallyKey,
    Tombstone,
)
from celery_wheel.store.ports.browse import Browse
from celery_wheel.store.ports.handover import Handover
from celery_wheel.store.ports.loads import BulkLoads
from celery_wheel.store.ports.maintenance import Maintenance


class Store(Protocol):
    @property
    def uuid(self) -> str:
        """The store's id, which never changes: brokers keep it beside the offsets."""

    # -- holding a shard --------------------------------------------------------------------------

    def acquire(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        """Take the shard, or take it anew; returns the new epoch, or None while another lives.

        The new epoch is greater than every epoch before it. A lease runs out by the store's own clock; where
        it has none, and the kernel does not free the shard at a holder's death either, by ``now_ms``.
        """

    def renew(self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object]) -> None:
        """Keep the shard and publish the holder's snapshot. Raises Fenced when it was taken over."""

    def release(self, shard: int, epoch: int) -> None:
        """Give the shard up at once, so that a standby need not wait for the lease."""

    def attend(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        """Note that a scheduler is at work; returns all that were at work within ``silent_ms``, sorted."""

    def depart(self, scheduler: str) -> None:
        """Remove the note of a scheduler that stops, so that the others need not wait for its silence."""

    def holders(self) -> dict[int, str | None]:
        """Return shard → its holder, or its last holder; None where it was given up."""

    # -- the holder's one write, and housekeeping ---------------------------------------------------

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        """Commit all of ``change``, durably, or nothing."""

    def forget(
        self, shard: int, epoch: int, before_ms: int, max_bytes: int, limit: int, archived_only: bool = False
    ) -> int:
        """Remove up to about ``limit`` rows of history, oldest batch first; returns how many went.

        History is the rows of batches dispatched before ``before_ms``, and the rows of lane REST with an older
        outcome; beyond ``max_bytes`` of history in all, the oldest batches are removed even if younger.
        Closed lanes without rows and batches are removed too.
        With ``archived_only`` a batch is removed only when an archive has all of it, and no younger one before it.
        """

    # -- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        """Return the store's own clock; None where it has none but this host's."""

    def state(self, shard: int) -> ShardRecord: ...

    def lanes(self, shard: int) -> list[LaneState]:
        """Return all open lanes, and lane 0 among them, which always exists and is never closed."""

    def known(self, shard: int, envelope_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that this shard has accepted or rejected and not yet forgotten."""

    def reach(self, shard: int, lane: int, after: Position, upto: Position, max_count: int, max_bytes: int) -> Position:
        """Return the end of a slice from ``after``: ``upto`` if (after, upto] is within both bounds, else the position
        of the last row that is; a slice has at least one row if (after, upto] has any."""

    def slice(self, shard: int, lane: int, after: Position, upto: Position) -> list[Row]:
        """Return the rows in (after, upto], in order."""

    def count(self, shard: int, lane: int, after: Position, upto: Position) -> int:
        """Return how many rows are in (after, upto], for the guard; about 1 µs a row."""

    def summary(self, shard: int, lane: int, after: Position, upto: Position) -> RangeSummary: ...

    def find(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, Row]]:
        """Return rows of those task ids in every lane but REST, settled or not, each with its task id."""

    def resting(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        """Return task id → kind of the last outcome, of those task ids with a row in lane REST."""

    def set_aside(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, str, Row]]:
        """Return rows of those task ids in lane REST, each with its task id and the kind of its last outcome, in the
        order of their outcomes."""

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[Row]:
        """Return those of the rows that the store has, in any lane."""

    def batch_start(self, shard: int, lane: int, upto: Position, since_ms: int) -> Position | None:
        """``from_`` of the earliest batch of the lane dispatched at or after ``since_ms`` that begins before ``upto``;
        None when there is none. ``upto`` may be in the middle of one: a broker that lost writes twice was there."""

    def pending(self, shard: int) -> dict[TallyKey, int]:
        """The tally: pending rows by hour, queue and task. Zero counts are left out."""

    # -- the inbox: written by anybody, read by the holder ----------------------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None: ...

    def put_inboxes(self, items: Mapping[int, Sequence[tuple[str, bytes]]]) -> None:
        """Items of several shards, in one transaction."""

    def read_inbox(self, shard: int, limit: int, max_bytes: int | None = None) -> list[InboxItem]:
        """Return the oldest items by id, at least one if there is one. There is no cursor, since commits come out of
        order: the ``Change`` that takes an item in deletes it."""

    # -- bulk loads: written by ``loads``, read by the holder ----------------------------------------------

    def read_loads(self, shard: int, max_rows: int) -> list[LoadChunk]:
        """Return the oldest chunks of committed loads, up to ``max_rows`` messages but at least one chunk if there is
        one, in the order of loads and then of ids. The ``Change`` that takes a chunk in deletes it."""

    # -- commands: asked by anybody, answered by the holder ---------------------------------------------

    def ask(self, shard: int, kind: str, payload: bytes) -> int:
        """Put one command into the inbox; returns the item's id."""

    def asked(self, item: int) -> bytes | None:
        """Return an inbox item's payload; None where the holder has taken it in, or where it was never committed."""

    def withdraw(self, item: int) -> bool:
        """Delete an inbox item; False where the holder took it in first."""

    def answer(self, command_id: str) -> dict[str, Any] | None:
        """Return the answer to a command, which is committed together with the deletion of its inbox item."""

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return id → answer, of those commands that are answered."""

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, Tombstone]:
        """Return task id → tombstone, of those task ids; one that is over is included until ``expire`` removes it."""

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        """Iterate over the task ids of all tombstones, read a page at a time."""

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[str, str, Row]]:
        """Return rows with a watch of that kind on one of the keys, in every lane but REST, settled or not: (key, task
        id, row) in order of position."""

    def unannounced(self, shard: int, after: int, limit: int) -> list[Cancelled]:
        """Return rows with a watch of kind UNANNOUNCED and an id above ``after``, in the order of their ids."""

    def gates(self, shard: int) -> list[Gate]:
        """Return the gates in the order in which they were set."""

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int) -> None:
        """Remove old tombstones and answers, and mark loads that are accepted as a whole as done. The call need not be
        durable."""

    def close(self) -> None: ...


class FullStore(Store, Protocol):
    """A store with all its ports, as ``open_store`` opens it."""

    @property
    def name(self) -> str:
        """What people call the store in messages: the file's path, or host and database."""

    @property
    def shards(self) -> int:
        """How many shards the store was made with, as it was opened."""

    @property
    def browse(self) -> Browse: ...

    @property
    def loads(self) -> BulkLoads: ...

    @property
    def handover(self) -> Handover: ...

    @property
    def maintenance(self) -> Maintenance: ...

    def as_opened(self) -> bool:
        """Whether the store is the one that was opened: not emptied, not made anew, with as many shards."""

    def replaced(self) -> bool:
        """Whether what was opened is no longer what its name names; cheap enough to be asked each time."""
