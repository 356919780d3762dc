"""The engine's port of a store, and a store with all of its parts. Standard library only.

The store is the truth: it has every accepted message, and the window only caches its near part. The rules for every
implementation of ``Store``, of which the SQL store is one and the simulation's model another:

1. ``apply`` is one transaction. It begins by locking the shard's row and comparing its epoch; another
   epoch raises ``Fenced`` and writes nothing. A takeover therefore waits for an open commit, and a
   former holder can change nothing.
2. ``acquire`` raises the epoch even where the caller held the shard before: a holder that drops its
   memory returns under a new epoch, and calls of its former shard state are fenced.
3. A read sees every change whose ``apply`` returned before the read began.
4. Any failure raises ``StoreError``; the change may be committed or not.
5. Several threads may call the methods at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from celery_wheel.errors import WheelError
from celery_wheel.store import model
from celery_wheel.store.erasure_model import AuditErasure, ErasureCriterion
from celery_wheel.store.schedule_model import Run, Schedule
from celery_wheel.store.store_model import Bell as Bell
from celery_wheel.store.store_model import ForgetPlace as ForgetPlace
from celery_wheel.store.store_model import Renewal as Renewal
from celery_wheel.store.store_model import Retention as Retention
from celery_wheel.store.store_model import StoreIdentity as StoreIdentity

if TYPE_CHECKING:
    from celery_wheel.store.bulk_model import BulkPart, BulkRows


class Store(Protocol):
    @property
    def uuid(self) -> str:
        """The store's id, which never changes: brokers keep it beside the offsets."""

    def derived_id(self, name: str) -> str:
        """Return an envelope id, always the same for a name; another store has another, and nobody else can guess it.

        So it is for messages that the scheduler makes itself: a producer's message cannot take its place.
        """

    # -- holding a shard --------------------------------------------------------------------------

    def acquire(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        """Take the shard, or take it anew; returns the new epoch, or None while another holder has its lease.

        The new epoch is greater than every earlier epoch. A lease expires by the store's own clock; by ``now_ms``
        where the store has no clock and the kernel does not free the shard at its holder's death.
        """

    def renew(
        self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object] | None, known: int = 0
    ) -> None:
        """Renew the lease; store the holder's snapshot, if there is one. Raises Fenced after a takeover, and
        StoreRolledBack where the shard has accepted fewer messages than are ``known``, as ``apply`` does by
        ``Change.known``."""

    def renew_all(self, renewals: Sequence[Renewal], now_ms: int, lease_ms: int) -> set[int]:
        """Renew the leases of several shards in one transaction; returns the renewed shards.

        It waits for no other transaction on a shard: a shard that one is changing is left out, as one is for which
        ``renew`` raises.
        """

    def release(self, shard: int, epoch: int) -> None:
        """Give up the shard, so that a standby takes it without waiting for the lease."""

    def register_scheduler(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        """Record a sign of life; returns the schedulers with one in the last ``silent_ms``, sorted."""

    def unregister_scheduler(self, scheduler: str) -> None:
        """Remove a scheduler that stops, so that other schedulers need not wait for its silence."""

    def holders(self) -> dict[int, str | None]:
        """Return shard → its holder or last holder; None where the shard was given up."""

    # -- the holder's one write, and housekeeping ---------------------------------------------------

    def apply(self, shard: int, epoch: int, change: model.Change) -> None:
        """Commit all of ``change``, durably, or nothing."""

    def apply_all(self, changes: Sequence[model.ShardChange]) -> list[WheelError | None]:
        """Apply the changes of different shards, in few transactions; returns the error that ``apply`` raises for each.

        A shard that is fenced fails alone. So does a change with a mistake: where nothing of a transaction with several
        changes can be committed, each is applied by itself. Where its commit may have been made, all of it is in doubt.
        """

    def forget(self, shard: int, epoch: int, retention: Retention, limit: int) -> int:
        """Remove up to about ``limit`` rows of the history not to be kept, oldest settlement first; returns how many.

        History is the rows of settlements and of lane STOPPED. Closed lanes without rows and settlements go, too.
        """

    def repack(self, shard: int, epoch: int) -> int | None:
        """Pack and encrypt some rows anew, after a change of the key or an erasure.

        Returns how many of the shard were read so far; None where nothing is to be done.
        """

    def forget_named(
        self, shard: int, epoch: int, name: str, retention: Retention, after: ForgetPlace
    ) -> tuple[int, ForgetPlace]:
        """Remove some rows of the history of a queue or a task, ``queue:mail`` or ``task:app.report``, that is older
        than its retention; returns how many, and the place after which the next call looks.

        A call is one transaction of at most 500 rows. ``retention.max_bytes`` is not looked at.
        """

    # -- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        """Return the store's own clock; None where it has no clock but this host's."""

    def state(self, shard: int) -> model.ShardRecord: ...

    def lanes(self, shard: int) -> list[model.LaneState]:
        """Return all open lanes, with lane 0, which always exists and is never closed."""

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        """Return those of the ids that this shard has accepted or rejected and not yet forgotten, with their tasks'."""

    def slice_end(
        self, shard: int, lane: int, after: model.Position, upto: model.Position, max_count: int, max_bytes: int
    ) -> model.Position:
        """Return the end of a slice from ``after``: ``upto`` if (after, upto] is within both bounds, else the position
        of the last row within them; a slice has at least one row if (after, upto] has any."""

    def slice(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> list[model.Row]:
        """Return the rows in (after, upto], in order."""

    def count(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> int:
        """Return how many rows (after, upto] has; about 1 µs a row."""

    def count_chunks(self, chunks: Sequence[tuple[int, int, model.Position, model.Position]]) -> list[int]:
        """Count the rows of short ranges for the guard, each given as to ``count``; two to three times as fast."""

    def summary(self, shard: int, lane: int, after: model.Position, upto: model.Position) -> model.RangeSummary: ...

    def find(self, shard: int, task_ids: Sequence[str]) -> list[model.Row]:
        """Return the rows of those tasks in every lane but STOPPED, settled or not."""

    def last_outcomes(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        """Return task id → kind of the last outcome, of those tasks with a row in lane STOPPED."""

    def stopped_rows(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, model.Row]]:
        """Return the rows of those tasks in lane STOPPED, in order of position: that of their outcomes."""

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[model.Row]:
        """Return the existing rows among these ids, in any lane."""

    def settlement_start(self, shard: int, lane: int, upto: model.Position, since_ms: int) -> model.Position | None:
        """Return ``from_`` of the lane's earliest settlement that was dispatched at or after ``since_ms`` and begins
        before ``upto``; None where none does. ``upto`` may be inside a settlement, where a broker lost writes twice."""

    def pending(self, shard: int) -> dict[model.TallyKey, int]:
        """Return the tally: pending rows by hour, queue and task, without zeros."""

    # -- the inbox: every process may write to it, the holder reads it ----------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None: ...

    def put_inboxes(self, items: Mapping[int, Sequence[model.NewItem]]) -> None:
        """Put items into the inboxes of several shards, in one transaction."""

    def has_arrivals(self, shard: int) -> bool:
        """Whether the inbox has an item or a committed load has a chunk; cheap enough for 20 calls a second."""

    def arrivals(self, shards: Sequence[int]) -> Sequence[int]:
        """Return those of the shards that have arrivals; where none has, as cheap as ``has_arrivals`` of one."""

    def bell(self) -> Bell:
        """Return a new bell, for one thread, which closes it."""

    def read_inbox(
        self, shard: int, limit: int, max_bytes: int | None = None, max_rows: int = 2**31
    ) -> list[model.InboxItem]:
        """Return the oldest items by id, at least one if the inbox has any. Commits come out of order, so there is no
        cursor: the ``Change`` that carries out or accepts an item deletes it.

        Args:
            max_bytes: of their payloads; None: no limit, neither of bytes nor of messages.
            max_rows: the most commands and messages in them, each message of a pack counted.
        """

    # -- bulk loads: ``loads`` writes them, the holder reads them -----------------------------------------

    def read_loads(self, shard: int, max_rows: int) -> list[model.BulkLoadChunk]:
        """Return the oldest chunks of committed loads, up to ``max_rows`` messages but at least one chunk if any
        exists, in the order of loads and then of ids. The ``Change`` that accepts a chunk deletes it."""

    # -- bulk actions: requests begin them, the holder carries them out --------------------------------

    def next_bulk(self, shard: int, action: str | None = None) -> BulkPart | None:
        """Return the shard's part of a bulk action; without its id, of the running action whose last step is the
        longest ago. ``has_arrivals`` is True while there is one."""

    def bulk_rows(self, part: BulkPart, limit: int | None) -> BulkRows:
        """Return the next rows that match, from the place on that the part has come to; or with ``limit`` None their
        number. A look reads 20,000 rows at most, so it may find none although later rows match."""

    def bulk_task_rows(self, row_ids: Sequence[int]) -> list[model.Row]:
        """Return the existing rows among these ids, in any lane, with the ids of their tasks."""

    # -- commands: every process may send them, the holder answers ----------------------------------------

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        """Put one command into the inbox; returns the item's id."""

    def put_commands(self, commands: Sequence[tuple[int, str, bytes]], items: list[int] | None = None) -> list[int]:
        """Put commands (shard, kind, payload) into their inboxes, in one transaction; returns the items' ids.

        Args:
            items: the same list, filled before the commit: the caller has the ids where the commit's answer is lost.
        """

    def command_payload(self, item: int) -> bytes | None:
        """Return an inbox item's payload; None where the holder has deleted it, or where it was never committed."""

    def withdraw(self, item: int, command: tuple[int, str, bytes]) -> bool:
        """Delete an inbox item; returns False where the holder deleted it first, or where it was never committed.

        Either is final: a transaction that puts the item and has not ended is waited for.
        """

    def answer(self, command_id: str) -> dict[str, Any] | None:
        """Return the answer to a command; the holder commits it together with the deletion of the inbox item."""

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return id → answer, of the answered ones among these commands."""

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, model.Tombstone]:
        """Return task id → tombstone; an expired tombstone is included until ``expire`` removes it."""

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        """Iterate over the task ids of all tombstones, a page at a time."""

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[model.Watch, model.Row]]:
        """Return the watches of that kind on one of the keys, with their rows, in every lane but STOPPED, settled or
        not, in order of position."""

    def unannounced(self, shard: int, after: int, limit: int) -> list[model.Row]:
        """Return the rows with a watch of kind UNANNOUNCED and an id above ``after``, in the order of their ids."""

    def gates(self, shard: int) -> list[model.Gate]:
        """Return the gates in the order of their setting."""

    # -- groups: rows that wait in lines ------------------------------------------------------------------

    def lines(self, shard: int) -> list[model.LineState]:
        """Return the lines with their numbers of waiting rows."""

    def limits(self, shard: int, groups: Sequence[str] | None = None) -> list[model.GroupLimit]:
        """Return the limits of single groups, by their names; ``groups``: of these alone."""

    def rates(self, shard: int) -> dict[str, int]:
        """Return when the rates of groups are as unused, of the groups that have used theirs; ``expire`` removes the
        others."""

    def first_waiting(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[model.Row]:
        """Return the first rows of lines, in the order of (rank, due time, seq) in each.

        Args:
            wanted: (number of a line, the most rows of it), each line once.
        """

    # -- recurring schedules: the holder of their shard writes them ---------------------------------------

    def due_schedules(self, shard: int, upto_ms: int, limit: int) -> list[Schedule]:
        """Return the schedules with ``next_ms <= upto_ms``, the earliest first."""

    def next_schedule_ms(self, shard: int, skip: int = 0) -> int | None:
        """Return the earliest ``next_ms`` after ``skip`` earlier ones; None where there are no more."""

    def schedules_named(self, names: Sequence[str]) -> list[tuple[int, Schedule]]:
        """Return the existing schedules among these names, each with its shard, in no order."""

    def runs_of(self, schedule_ids: Sequence[int], pending_only: bool, limit: int) -> list[tuple[Run, model.Row, int]]:
        """Return runs with their rows, in any lane, and the rows' shards; the latest instant first.

        A forgotten row has no run. A schedule that was moved has runs in other shards.

        Args:
            pending_only: only rows after the offset of their lane. All runs of a schedule without such rows are read.
            limit: the most runs that are returned, for all schedules together.
        """

    def runs_at(self, timer_ids: Sequence[int]) -> list[tuple[int, Run]]:
        """Return the runs of these rows, each with its shard; a forgotten row has no run."""

    def open_runs(self, shard: int, now_ms: int) -> list[Run]:
        """Return the shard's runs of groups that have not ended and whose ``until_ms`` is after now, by their ids."""

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int, audits_before_ms: int = 0) -> None:
        """Remove expired tombstones, old answers and the shard's old entries of the audit log, and mark wholly accepted
        loads as done; need not be durable."""

    # -- erasure ------------------------------------------------------------------------------------------

    def erasable(
        self, shard: int, which: ErasureCriterion, after: int, upto: int, limit: int
    ) -> tuple[list[int], int | None]:
        """Return the ids of the shard's rows that match, in any lane, from the first after ``after`` to ``upto``; and
        the id up to which the store has looked, None where that is ``upto``.

        The rows are at most ``limit``, and few megabytes together. A look reads 20,000 rows at most, so a page may be
        empty although later rows match.
        """

    def audited(self, shard: int, which: ErasureCriterion, after: int) -> tuple[list[AuditErasure], int | None]:
        """Return a page of what to erase from the shard's audit log: the requests that name the value, or a row that
        matches; and the entry up to which the store has looked, None where it was the last one."""

    def schedule_traces(self, schedule_ids: Sequence[int]) -> tuple[int, int]:
        """Return the number of revisions of these schedules, and that of their skips, in all shards."""

    def scrub(self) -> None:
        """Remove what erased rows have left: all rows are packed anew by a dictionary that has learnt nothing, and the
        database's log is emptied, as far as that disturbs nobody."""

    def close(self) -> None: ...


if TYPE_CHECKING:
    from celery_wheel.store.sql.store import SqlStore

    #: A store as ``open_store`` returns it: a type for rooms that are loaded long before a store is opened, and SQL.
    FullStore = SqlStore
else:
    FullStore = Any
