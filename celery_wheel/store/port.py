"""What an engine asks of a store. Every store passes tests/stores; the simulation's model does too.

A store is the truth: an accepted message is in it, and the wheel is only a cache of its near part.

Rules for every implementation

1. ``apply`` is one transaction. It begins by locking the shard's row and comparing its epoch; another
   epoch raises ``Fenced`` and writes nothing. So a takeover waits for an open commit, and a former
   holder can change nothing.
2. ``acquire`` raises the epoch, whoever held the shard before, the caller included: a holder that drops
   its memory comes back under a new epoch, and whatever of its old term is still under way is fenced.
3. A read sees every change whose ``apply`` returned before the read began.
4. Any failure raises ``StoreError``; the caller must assume that the change may be in or not.
5. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from celery_wheel.store.model import (
    Change,
    Gate,
    InboxItem,
    LaneState,
    LoadChunk,
    Position,
    RangeSummary,
    Row,
    ShardState,
    TallyKey,
    Tombstone,
    Withdrawn,
)


class Store(Protocol):
    @property
    def uuid(self) -> str:
        """Made with the store and never changed: brokers remember it beside the offset."""

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
        """Note that a scheduler is at work; returns all that were heard of within ``silent_ms``, sorted."""

    def depart(self, scheduler: str) -> None:
        """It is no longer: the others need not wait for its silence."""

    def holders(self) -> dict[int, str | None]:
        """Who holds each shard, or held it last; None where it was given up."""

    # -- the holder's one write, and housekeeping ---------------------------------------------------

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        """Commit all of ``change``, durably, or nothing."""

    def forget(
        self, shard: int, epoch: int, before_ms: int, max_bytes: int, limit: int, archived_only: bool = False
    ) -> int:
        """Remove up to about ``limit`` rows of history, oldest batch first; returns how many went.

        History are the rows of batches dispatched before ``before_ms`` and the resting rows that came to
        rest before it; beyond ``max_bytes`` of history in all, the oldest batches go even if younger.
        With ``archived_only`` none of it goes while an archive has not everything of it: what waits for that holds up
        what is younger.
        """

    # -- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        """The store's own clock, as a second opinion; None where it has none but this host's."""

    def state(self, shard: int) -> ShardState: ...

    def lanes(self, shard: int) -> list[LaneState]:
        """All lanes that leave, lane 0 included, which always exists."""

    def known(self, shard: int, envelope_ids: Sequence[str]) -> set[str]:
        """Those of the ids that this shard has accepted or rejected and not yet forgotten."""

    def reach(self, shard: int, lane: int, after: Position, upto: Position, max_count: int, max_bytes: int) -> Position:
        """How far a slice from ``after`` may go: to ``upto`` if (after, upto] is within both bounds, else to
        the position of the last row that still is; always at least one row."""

    def slice(self, shard: int, lane: int, after: Position, upto: Position) -> list[Row]:
        """The rows in (after, upto], in order."""

    def count(self, shard: int, lane: int, after: Position, upto: Position) -> int:
        """How many rows are in (after, upto]: the guard's question, about 1 µs a row."""

    def summary(self, shard: int, lane: int, after: Position, upto: Position) -> RangeSummary: ...

    def find(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, Row]]:
        """Rows of those task ids in lanes that leave, settled or not, each with its task id."""

    def resting(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        """Those of the task ids that have a row that does not leave, with the kind of its last outcome."""

    def set_aside(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, str, Row]]:
        """Rows of those task ids that do not leave, each with its task id and the kind of its last outcome, in the
        order in which they came to rest."""

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[Row]:
        """Those of the rows that the store has, wherever they are."""

    def batch_start(self, shard: int, lane: int, upto: Position, since_ms: int) -> Position | None:
        """``from_`` of the earliest batch of the lane dispatched at or after ``since_ms`` that begins before ``upto``;
        None when there is none. ``upto`` may be in the middle of one: a broker that lost writes twice was there."""

    def pending(self, shard: int) -> dict[TallyKey, int]:
        """The tally: pending rows by hour, queue and task. Zero counts are left out."""

    # -- the inbox: written by anybody, taken in by the holder ------------------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None: ...

    def put_inboxes(self, items: Mapping[int, Sequence[tuple[str, bytes]]]) -> None:
        """Items of several shards, in one transaction."""

    def read_inbox(self, shard: int, limit: int, max_bytes: int | None = None) -> list[InboxItem]:
        """The oldest items by id, at least one if there is one. There is no cursor: commits come out of order; taking
        in deletes."""

    # -- bulk loads: written by ``loads``, taken in by the holder ------------------------------------------

    def read_loads(self, shard: int, max_rows: int) -> list[LoadChunk]:
        """The oldest chunks of committed loads that are that many messages together, at least one if there is one; in
        the order of loads and in them of ids. Taking in deletes."""

    # -- commands: asked by anybody, answered by the holder ---------------------------------------------

    def ask(self, shard: int, kind: str, payload: bytes) -> int:
        """Put one command into the inbox; returns the item's id."""

    def asked(self, item: int) -> bytes | None:
        """What an item of the inbox says; None where it was taken in, or was never committed."""

    def take_back(self, item: int) -> bool:
        """Take an item out of the inbox before the holder has; False when the holder was first."""

    def answer(self, command_id: str) -> dict[str, Any] | None:
        """The verdicts on a command; committed together with its leaving the inbox."""

    def tombstones(self, shard: int) -> list[Tombstone]:
        """All that were not expired."""

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[str, str, Row]]:
        """Rows in lanes that leave, settled or not, that have a watch of that kind on one of the keys: with the key and
        the task id, in order of position."""

    def withdrawn(self, shard: int, after: int, limit: int) -> list[Withdrawn]:
        """Rows with a watch of kind WITHDRAWN and an id above ``after``, in the order of their ids."""

    def gates(self, shard: int) -> list[Gate]:
        """What is paused or leaves slowly, in the order in which it was set."""

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int) -> None:
        """Remove tombstones that are over, and old answers; note of which loads all is taken in. Need not be
        durable."""

    def close(self) -> None: ...
