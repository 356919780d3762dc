"""The store on a SQL database: the port's methods, each a statement or two, the same for every dialect.

::

    apply     writing   changes.write      fsync, unless durability is "memory"
    acquire   writing                      fsync, whatever the durability: an epoch must never be given twice
    renew     writing                      no fsync: what the holder says of itself is worth nothing after a crash
    forget    writing   history.forget     no fsync
    reads     reading                      one statement each, but for ``known``
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, select

from celery_wheel.errors import StoreError
from celery_wheel.store import changes, history
from celery_wheel.store.archived import Floors
from celery_wheel.store.browse import SqlBrowse
from celery_wheel.store.database import Database
from celery_wheel.store.desk import Desk
from celery_wheel.store.fields import in_order
from celery_wheel.store.handover import SqlHandover
from celery_wheel.store.loads import SqlLoads
from celery_wheel.store.maintenance import SqlMaintenance
from celery_wheel.store.model import (
    HOUR_MS,
    Change,
    InboxItem,
    LaneState,
    Position,
    RangeSummary,
    Row,
    ShardRecord,
    TallyKey,
)
from celery_wheel.store.schema import meta
from celery_wheel.store.statements.lookups import ENVELOPES, FIND_PLACES
from celery_wheel.store.statements.parts import IN_PLACES, in_parts, span

#: No epoch is this one.
NEVER_HELD = -1


#: A scheduler that was silent for a day has no row.
FORGOTTEN_AFTER_MS = 86_400_000


class SqlStore(Desk):
    """Implements ``celery_wheel.store.ports.FullStore``."""

    def __init__(self, database: Database, uuid: str, shards: int) -> None:
        self._database = database
        self._sql = database.statements
        self._uuid = uuid
        #: How many shards the store was made with.
        self.shards = shards
        #: One a shard: a shard whose row is locked, or whose host is away, holds up no other.
        self._holding: dict[int, threading.Lock] = {}
        self._floors = Floors()
        self._held: dict[int, int] = {}  #: shard → the epoch of this store's own last term
        self.browse = SqlBrowse(self)
        self.loads = SqlLoads(database)
        self.handover = SqlHandover(self)
        self.maintenance = SqlMaintenance(database)

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def name(self) -> str:
        return self._database.name

    @property
    def database(self) -> Database:
        """For what reads the tables by itself: the pipeline's source."""
        return self._database

    def replaced(self) -> bool:
        return self._database.replaced()

    # -- holding a shard --------------------------------------------------------------------------

    def acquire(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        with self._holding.setdefault(shard, threading.Lock()):
            if not self._database.hold(shard, holder):
                return None
            try:
                epoch = self._raise_epoch(shard, holder, now_ms, lease_ms)
            except BaseException:
                if shard not in self._held:
                    self._database.let_go(shard)
                raise
            if epoch is not None:
                self._held[shard] = epoch
            return epoch

    def _raise_epoch(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        """None where the lease is in the row and another's has not run out, or another is at work on it."""
        own_epoch = self._held.get(shard, NEVER_HELD)
        values = {"at_shard": shard, "holder": holder, "now_ms": now_ms, "lease_ms": lease_ms, "own_epoch": own_epoch}
        with self._database.writing(durable=True) as connection:
            free = self._database.make_way(connection, shard, own_epoch)
            taken = free and self._sql.take(connection, **values).rowcount > 0
            epoch: int | None = self._sql.epoch(connection, at_shard=shard).scalar()
        if epoch is None:
            raise StoreError(self._no_shard(shard))
        return epoch if taken else None

    def renew(self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object]) -> None:
        values = {
            "at_shard": shard,
            "at_epoch": epoch,
            "now_ms": now_ms,
            "lease_ms": lease_ms,
            "snapshot": json.dumps(snapshot),
            "snapshot_at_ms": now_ms,
        }
        with self._database.writing(durable=False) as connection:
            if self._sql.renew(connection, **values).rowcount == 0:
                changes.raise_fenced(connection, self._sql, shard, epoch)
        self._database.tidy()

    def release(self, shard: int, epoch: int) -> None:
        """Does nothing when the shard is at another epoch: the shard is no longer held under this one."""
        with self._holding.setdefault(shard, threading.Lock()):
            with self._database.writing() as connection:
                values = {"at_shard": shard, "at_epoch": epoch, "holder": None, "lease_until_ms": None}
                released = self._sql.release(connection, **values).rowcount > 0
            if released:
                self._database.let_go(shard)
                self._held.pop(shard, None)

    def attend(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        with self._database.writing(durable=False) as connection:
            self._sql.attend(connection, name=scheduler, seen_ms=now_ms)
            self._sql.forget_schedulers(connection, before_ms=now_ms - FORGOTTEN_AFTER_MS)
            heard = self._sql.schedulers(connection, since_ms=now_ms - silent_ms).scalars().all()
        return list(heard)

    def depart(self, scheduler: str) -> None:
        with self._database.writing(durable=False) as connection:
            self._sql.depart(connection, left=scheduler)

    def holders(self) -> dict[int, str | None]:
        with self._database.reading() as connection:
            return {row.shard: row.holder for row in self._sql.holders(connection)}

    # -- the holder's one write, and housekeeping ---------------------------------------------------

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        with self._database.writing() as connection:
            changes.write(connection, self._sql, shard, epoch, change)

    def forget(
        self, shard: int, epoch: int, before_ms: int, max_bytes: int, limit: int, archived_only: bool = False
    ) -> int:
        retention = history.Retention(before_ms, max_bytes, archived_only)
        return history.forget(self._database, self._floors, shard, epoch, retention, limit)

    # -- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        return self._database.now_ms()

    def state(self, shard: int) -> ShardRecord:
        with self._database.reading() as connection:
            row = self._sql.state(connection, shard=shard).one_or_none()
        if row is None:
            raise StoreError(self._no_shard(shard))
        snapshot = None if row.snapshot is None else json.loads(row.snapshot)
        return ShardRecord(shard, row.epoch, row.holder, row.lease_until_ms, row.seq, snapshot, row.snapshot_at_ms)

    def lanes(self, shard: int) -> list[LaneState]:
        with self._database.reading() as connection:
            return self.lanes_seen_by(connection, shard)

    def lanes_seen_by(self, connection: Connection, shard: int, *, closed: bool = False) -> list[LaneState]:
        """The same, at the moment that the connection sees; with the closed ones, if asked for."""
        rows = (self._sql.all_lanes if closed else self._sql.lanes)(connection, shard=shard).all()
        return [
            LaneState(
                row.lane,
                Position(row.offset_due_ms, row.offset_seq),
                Position(row.watermark_due_ms, row.watermark_seq),
                row.target,
                bool(row.redelivered),
                row.scope,
            )
            for row in rows
        ]

    def known(self, shard: int, envelope_ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        wanted = {id_: changes.digits(id_) for id_ in envelope_ids}
        digits = sorted(wanted.values())  # neighbours share a page of the index
        with self._database.reading() as connection:
            for start in range(0, len(digits), IN_PLACES):
                part = digits[start : start + IN_PLACES]
                values = dict(zip(ENVELOPES, part + part[-1:] * (IN_PLACES - len(part)), strict=True))
                # A database that knows UUIDs answers with UUIDs.
                known = self._sql.known(connection, shard=shard, **values).scalars()
                found.update(changes.digits(str(id_)) for id_ in known)
        return {id_ for id_, in_store in wanted.items() if in_store in found}

    def reach(self, shard: int, lane: int, after: Position, upto: Position, max_count: int, max_bytes: int) -> Position:
        with self._database.reading() as connection:
            rows = self._sql.sizes(connection, **span(shard, lane, after, upto), limit=max(1, max_count) + 1).all()
        weight = 0
        for n, (_, _, size) in enumerate(rows):
            weight += size
            if n and (n >= max_count or weight > max_bytes):
                due_ms, seq, _ = rows[n - 1]
                return Position(due_ms, seq)
        return upto

    def slice(self, shard: int, lane: int, after: Position, upto: Position) -> list[Row]:
        with self._database.reading() as connection:
            return [Row(*row) for row in self._sql.slice(connection, **span(shard, lane, after, upto))]

    def count(self, shard: int, lane: int, after: Position, upto: Position) -> int:
        with self._database.reading() as connection:
            count: int = self._sql.count(connection, **span(shard, lane, after, upto)).scalar_one()
        return count

    def summary(self, shard: int, lane: int, after: Position, upto: Position) -> RangeSummary:
        with self._database.reading() as connection:
            range_ = span(shard, lane, after, upto)
            groups = self._sql.summary(connection, **range_, hour_ms=HOUR_MS).all()
        tally = {TallyKey(hour, queue, task): count for hour, queue, task, count, _ in groups}
        return RangeSummary(sum(tally.values()), sum(int(weight) for *_, weight in groups), tally)

    def find(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, Row]]:
        with self._database.reading() as connection:
            parts = in_parts(task_ids, FIND_PLACES)
            found = [row for part in parts for row in self._sql.find.at(connection, (shard, *part))]
        return [(task_id, Row(*row)) for task_id, *row in found]

    def resting(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        with self._database.reading() as connection:
            parts = in_parts(task_ids, FIND_PLACES)
            found = [row for part in parts for row in self._sql.resting.at(connection, (shard, *part))]
        return dict(map(tuple, found))

    def batch_start(self, shard: int, lane: int, upto: Position, since_ms: int) -> Position | None:
        with self._database.reading() as connection:
            batches = self._sql.batches_since(connection, shard=shard, lane=lane, since_ms=since_ms).all()
        starts = [Position(batch.from_due_ms, batch.from_seq) for batch in batches]
        return min((start for start in starts if start < upto), default=None)

    def pending(self, shard: int) -> dict[TallyKey, int]:
        with self._database.reading() as connection:
            rows = self._sql.pending(connection, shard=shard).all()
        return {TallyKey(hour, queue, task): count for hour, queue, task, count in rows}

    # -- the inbox: written by anybody, taken in by the holder ------------------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None:
        self.put_inboxes({shard: list(items)})

    def put_inboxes(self, items: Mapping[int, Sequence[tuple[str, bytes]]]) -> None:
        rows = [
            {"shard": shard, "kind": kind, "payload": payload}
            for shard, of_shard in items.items()
            for kind, payload in of_shard
        ]
        with self._database.writing() as connection:
            self._sql.put_inbox.many(connection, in_order(self._sql.put_inbox, rows))
        self._database.tidy()  # a bulk load may run while no scheduler does

    def read_inbox(self, shard: int, limit: int, max_bytes: int | None = None) -> list[InboxItem]:
        with self._database.reading() as connection:
            if max_bytes is not None:
                limit = self._inbox_within(connection, shard, limit, max_bytes)
            if limit == 0:
                return []
            return [InboxItem(*row) for row in self._sql.read_inbox(connection, shard=shard, limit=limit)]

    def _inbox_within(self, connection: Connection, shard: int, limit: int, max_bytes: int) -> int:
        """How many of the oldest items are that many bytes together; at least one, if there is one."""
        weight = count = 0
        for (size,) in self._sql.inbox_sizes(connection, shard=shard, limit=limit).all():
            weight += size
            if count and weight > max_bytes:
                break
            count += 1
        return count

    def close(self) -> None:
        self._database.close()

    def as_opened(self) -> bool:
        """Whether the store is the one that was opened: not emptied, not made anew, with as many shards."""
        with self._database.reading() as connection:
            found = connection.execute(select(meta.c.uuid, meta.c.shards)).one_or_none()
        return found is not None and (str(UUID(str(found.uuid))), found.shards) == (self._uuid, self.shards)

    def _no_shard(self, shard: int) -> str:
        return (
            f"shard {shard} is not in the store {self._database.name}, which had {self.shards} when it was opened; "
            "nothing was done; if its tables were emptied since (manage.py flush) or it has another number of shards, "
            "restart the scheduler, with wheel_shards set to that number"
        )
