"""The store on a SQL database: each method of the port is a statement or two, the same for every dialect.

::

    apply     writing   changes.write      fsync, unless durability is "memory"
    acquire   writing                      fsync, whatever the durability: no epoch may be used twice
    renew     writing                      no fsync: a holder's snapshot is worth nothing after a crash
    renew_all writing                      as renew, for several shards; it waits for none of their rows
    forget    writing   history.forget     no fsync
    reads     reading                      one statement each, except in ``known``
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from uuid import UUID, uuid5

from sqlalchemy import Connection

from celery_wheel.errors import StoreError
from celery_wheel.store.model import (
    HOUR_MS,
    SCHEMA_VERSION,
    Change,
    InboxItem,
    LaneState,
    NewItem,
    Position,
    RangeSummary,
    Row,
    ShardRecord,
    TallyKey,
    TaskRow,
)
from celery_wheel.store.ports import Bell, Renewal, Retention, StoreIdentity
from celery_wheel.store.sql import changes, timers
from celery_wheel.store.sql import forget as history
from celery_wheel.store.sql.archive_floor import ArchiveFloors
from celery_wheel.store.sql.browse import Browse
from celery_wheel.store.sql.bulk_loads import SqlLoads
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.control import SqlControl
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.fields import in_order
from celery_wheel.store.sql.handover import SqlHandover
from celery_wheel.store.sql.ids import bytes_to_task_id, uuids_to_bytes
from celery_wheel.store.sql.lanes import read_lanes, shard_record
from celery_wheel.store.sql.maintenance import SqlMaintenance
from celery_wheel.store.sql.queries import setup
from celery_wheel.store.sql.schedules import SqlSchedules
from celery_wheel.store.sql.statements.clauses import in_parts, span
from celery_wheel.store.sql.statements.lookups import ENVELOPES, FEW_ENVELOPES
from celery_wheel.values.format import format_count

#: The epoch of a shard that this store object has not held; no epoch is negative.
NEVER_HELD = -1

#: The position of a row, as a plain tuple.
_POSITION = attrgetter("due_ms", "seq")

#: The row of a scheduler is removed after a day of silence.
FORGOTTEN_AFTER_MS = 86_400_000


class SqlStore(SqlControl, SqlSchedules):
    """Implements ``celery_wheel.store.ports.FullStore``."""

    def __init__(self, database: Database, uuid: str, secret: UUID, shards: int) -> None:
        self._database = database
        self._statements = database.statements
        self._uuid = uuid
        self._secret = secret
        self.shards = shards
        #: A lock for each shard: a shard whose row is locked, or whose host does not answer, delays no other shard.
        self._holding: dict[int, threading.Lock] = {}
        self._floors = ArchiveFloors()
        self._catalogue = Catalogue(database)
        self._held: dict[int, int] = {}  #: shard → the last epoch in which this store object held it
        self.browse = Browse(database, self._catalogue, shards)
        self.loads = SqlLoads(database)
        self.handover = SqlHandover(database, self._catalogue)
        self.maintenance = SqlMaintenance(database)

    @property
    def uuid(self) -> str:
        return self._uuid

    def derived_id(self, name: str) -> str:
        return str(uuid5(self._secret, name))

    @property
    def name(self) -> str:
        return self._database.name

    @property
    def database(self) -> Database:
        """The database, for the pipeline's source, which reads the tables itself."""
        return self._database

    def is_replaced(self) -> bool:
        return self._database.is_replaced()

    # -- holding a shard --------------------------------------------------------------------------

    def acquire(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        with self._holding.setdefault(shard, threading.Lock()):
            if not self._database.hold(shard, holder):
                return None
            try:
                epoch = self._raise_epoch(shard, holder, now_ms, lease_ms)
            except BaseException:
                if shard not in self._held:
                    self._database.release(shard)
                raise
            if epoch is not None:
                self._held[shard] = epoch
                self._catalogue.forget()
            return epoch

    def _raise_epoch(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        """Return None where the row has another holder's lease that has not expired, or another session works on it."""
        own_epoch = self._held.get(shard, NEVER_HELD)
        values = {"at_shard": shard, "holder": holder, "now_ms": now_ms, "lease_ms": lease_ms, "own_epoch": own_epoch}
        with self._database.writing(durable=True) as connection:
            free = self._database.evict_stopped_holder(connection, shard, own_epoch)
            taken = free and self._statements.take(connection, **values).rowcount > 0
            epoch: int | None = self._statements.epoch(connection, at_shard=shard).scalar()
        if epoch is None:
            raise StoreError(self._no_shard(shard))
        return epoch if taken else None

    def renew(self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object]) -> None:
        with self._database.writing(durable=False) as connection:
            lease = {"now_ms": now_ms, "lease_ms": lease_ms}
            if self._statements.renew(connection, at_shard=shard, at_epoch=epoch, **lease).rowcount == 0:
                changes.raise_fenced(connection, self._statements, shard, epoch)
            self._show(connection, [Renewal(shard, epoch, snapshot)], now_ms)
        self._database.tidy()

    def renew_all(self, renewals: Sequence[Renewal], now_ms: int, lease_ms: int) -> set[int]:
        statement = self._statements.renew_free
        lease = {"now_ms": now_ms, "lease_ms": lease_ms}
        places = in_order(statement, [{"at_shard": one.shard, "at_epoch": one.epoch, **lease} for one in renewals])
        renewed = {one.shard for one in renewals}
        with self._database.writing(durable=False) as connection:
            if statement.many(connection, places) < len(places):  # the driver tells only how many
                found = [statement.at(connection, place).rowcount for place in places]
                renewed = {one.shard for one, count in zip(renewals, found, strict=True) if count}
            self._show(connection, [one for one in renewals if one.shard in renewed], now_ms)
        self._database.tidy()
        return renewed

    def _show(self, connection: Connection, renewed: Sequence[Renewal], now_ms: int) -> None:
        """Store the holders' snapshots, in the transaction that has renewed their leases."""
        show = self._statements.show
        show.many(connection, in_order(show, [_shown(one, now_ms) for one in renewed]))

    def release(self, shard: int, epoch: int) -> None:
        """Do nothing where the shard is at another epoch: it is no longer held under this one."""
        with self._holding.setdefault(shard, threading.Lock()):
            with self._database.writing() as connection:
                values = {"at_shard": shard, "at_epoch": epoch, "holder": None, "lease_until_ms": None}
                released = self._statements.release(connection, **values).rowcount > 0
            if released:
                self._database.release(shard)
                self._held.pop(shard, None)

    def register_scheduler(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        with self._database.writing(durable=False) as connection:
            self._statements.register_scheduler(connection, name=scheduler, seen_ms=now_ms)
            self._statements.forget_schedulers(connection, before_ms=now_ms - FORGOTTEN_AFTER_MS)
            live = self._statements.schedulers(connection, since_ms=now_ms - silent_ms).scalars().all()
        return list(live)

    def unregister_scheduler(self, scheduler: str) -> None:
        with self._database.writing(durable=False) as connection:
            self._statements.unregister_scheduler(connection, scheduler=scheduler)

    def holders(self) -> dict[int, str | None]:
        with self._database.reading() as connection:
            return {row.shard: row.holder for row in self._statements.holders(connection)}

    # -- the holder's one write, and housekeeping ---------------------------------------------------

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        packed = self._catalogue.pack(timers.plain(change))
        with self._database.writing() as connection:
            changes.write(connection, self._statements, self._catalogue, shard, epoch, change, packed)

    def forget(self, shard: int, epoch: int, retention: Retention, limit: int) -> int:
        return history.forget(self._database, self._floors, shard, epoch, retention, limit)

    # -- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        return self._database.now_ms()

    def state(self, shard: int) -> ShardRecord:
        with self._database.reading() as connection:
            row = self._statements.state(connection, shard=shard).one_or_none()
        if row is None:
            raise StoreError(self._no_shard(shard))
        return shard_record(row)

    def lanes(self, shard: int) -> list[LaneState]:
        with self._database.reading() as connection:
            return read_lanes(connection, self._statements, shard)

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        found: dict[bytes, bytes] = {}
        wanted = dict(zip(envelope_ids, uuids_to_bytes(envelope_ids), strict=True))
        names, statement = ENVELOPES, self._statements.known
        if len(wanted) <= len(FEW_ENVELOPES):
            names, statement = FEW_ENVELOPES, self._statements.known_few
        with self._database.reading() as connection:
            asked = sorted(wanted.values())  # neighbours share a page of the index
            if len(asked) > len(names):  # ids are UUIDv7: most are later than all that are stored
                latest = bytes(self._statements.latest_envelope(connection, shard=shard).scalar() or b"")
                del asked[bisect_right(asked, latest) :]
            for part in in_parts(asked, len(names)):
                values = dict(zip(names, part, strict=True))
                found |= {bytes(id_): task_id for id_, task_id, _ in statement(connection, shard=shard, **values)}
        hits = [(id_, stored) for id_, stored in wanted.items() if stored in found] if found else []
        return {id_: bytes_to_task_id(found[stored]) for id_, stored in hits}

    def slice_end(
        self, shard: int, lane: int, after: Position, upto: Position, max_count: int, max_bytes: int
    ) -> Position:
        limit, weight, last = max(1, max_count) + 1, 0, (0, 0)
        with self._database.reading() as connection:
            rows = self._statements.sizes(connection, **span(shard, lane, after, upto), limit=limit)
            for n, (due_ms, seq, size) in enumerate(rows):
                weight += size
                if n and (n >= max_count or weight > max_bytes):
                    rows.close()
                    return Position(*last)
                last = due_ms, seq
        return upto

    def slice(self, shard: int, lane: int, after: Position, upto: Position) -> list[Row]:
        with self._database.reading() as connection:
            # One by one: 25,000 rows of the database at a time would be as much work for the garbage collector.
            found = self._statements.slice(connection, **span(shard, lane, after, upto))
            rows = self._catalogue.rows(connection, found)
        rows.sort(key=_POSITION)
        return rows

    def count(self, shard: int, lane: int, after: Position, upto: Position) -> int:
        with self._database.reading() as connection:
            count: int = self._statements.count(connection, **span(shard, lane, after, upto)).scalar_one()
        return count

    def summary(self, shard: int, lane: int, after: Position, upto: Position) -> RangeSummary:
        with self._database.reading() as connection:
            range_ = span(shard, lane, after, upto)
            groups = self._statements.summary(connection, **range_, hour_ms=HOUR_MS).all()
        tally = Counter[TallyKey]()
        for hour, queue, task, count, _ in groups:  # several routes may have the same names
            tally[TallyKey(hour, queue, task)] += count
        return RangeSummary(sum(tally.values()), sum(int(weight) for *_, weight in groups), tally)

    def find(self, shard: int, task_ids: Sequence[str]) -> list[TaskRow]:
        with self._database.reading() as connection:
            return self._task_rows(connection, self._of_tasks(connection, self._statements.find, shard, task_ids))

    def last_outcomes(self, shard: int, task_ids: Sequence[str]) -> dict[str, str]:
        with self._database.reading() as connection:
            found = self._of_tasks(connection, self._statements.last_outcomes, shard, task_ids)
        return {bytes_to_task_id(id_): kind for id_, kind in found}

    def batch_start(self, shard: int, lane: int, upto: Position, since_ms: int) -> Position | None:
        with self._database.reading() as connection:
            batches = self._statements.batches_since(connection, shard=shard, lane=lane, since_ms=since_ms).all()
        starts = [Position(batch.from_due_ms, batch.from_seq) for batch in batches]
        return min((start for start in starts if start < upto), default=None)

    def pending(self, shard: int) -> dict[TallyKey, int]:
        with self._database.reading() as connection:
            rows = self._statements.pending(connection, shard=shard).all()
        return {TallyKey(hour, queue, task): count for hour, queue, task, count in rows}

    # -- the inbox: every process may write to it, the holder reads it ----------------------------------

    def put_inbox(self, shard: int, items: Iterable[tuple[str, bytes]]) -> None:
        self.put_inboxes({shard: list(items)})

    def put_inboxes(self, items: Mapping[int, Sequence[NewItem]]) -> None:
        rows = [
            {"shard": shard, "kind": kind, "payload": payload, "rows": count[0] if count else None}
            for shard, of_shard in items.items()
            for kind, payload, *count in of_shard
        ]
        with self._database.writing() as connection:
            self._statements.put_inbox.many(connection, in_order(self._statements.put_inbox, rows))
        self._database.ring()
        self._database.tidy()  # a bulk load may run while no scheduler does

    def has_arrivals(self, shard: int) -> bool:
        return self._database.poll(self._statements.bulk_load.arrivals, (shard, shard))

    def arrivals(self, shards: Sequence[int]) -> list[int]:
        if not self._database.poll(self._statements.bulk_load.any_arrivals, ()):
            return []
        return [shard for shard in shards if self.has_arrivals(shard)]

    def bell(self) -> Bell:
        return self._database.bell()

    def read_inbox(
        self, shard: int, limit: int, max_bytes: int | None = None, max_rows: int = 2**31
    ) -> list[InboxItem]:
        with self._database.reading() as connection:
            if max_bytes is not None:
                limit = self._inbox_within(connection, shard, limit, max_bytes, max_rows)
            if limit == 0:
                return []
            return [InboxItem(*row) for row in self._statements.read_inbox(connection, shard=shard, limit=limit)]

    def _inbox_within(self, connection: Connection, shard: int, limit: int, max_bytes: int, max_rows: int) -> int:
        """Return how many of the oldest items fit into that many messages and bytes; at least one if there is any."""
        weight = total = count = 0
        for size, rows in self._statements.inbox_sizes(connection, shard=shard, limit=limit).all():
            weight += size
            total += rows
            if count and (weight > max_bytes or total > max_rows):
                break
            count += 1
        return count

    def close(self) -> None:
        self._database.close()

    def identity(self) -> StoreIdentity:
        return StoreIdentity(self._uuid, *self._database.identity())

    def is_as_opened(self) -> bool:
        with self._database.reading() as connection:
            found = connection.execute(setup.store_row("uuid", "shards", "schema_version")).one_or_none()
        if found is None:
            return False
        is_same = (str(UUID(str(found.uuid))), found.shards) == (self._uuid, self.shards)
        return is_same and found.schema_version == SCHEMA_VERSION  # of a store that was moved, it is another

    def brokers(self) -> set[str]:
        with self._database.reading() as connection:
            return _lines(connection)

    def add_brokers(self, places: set[str]) -> None:
        with self._database.writing() as connection:
            connection.execute(setup.update_store(brokers="\n".join(sorted(_lines(connection) | places))))

    def _no_shard(self, shard: int) -> str:
        return (
            f"shard {shard} is not in the store {self._database.name}, which had "
            f"{format_count(self.shards, 'shard')} when it was opened; nothing was done; its tables were emptied since "
            "(manage.py flush), or it was resharded: restart the scheduler, with wheel_shards set to the store's number"
        )


def _lines(connection: Connection) -> set[str]:
    """Return the places of the store's broker."""
    return set((connection.execute(setup.store_row("brokers")).scalar_one_or_none() or "").splitlines())


def _shown(one: Renewal, now_ms: int) -> dict[str, object]:
    figures = dict(one.snapshot)
    levels = figures.pop("levels", None)
    return {
        "at_shard": one.shard,
        "at_ms": now_ms,
        "figures": json.dumps(figures),
        "levels": None if levels is None else json.dumps(levels),
    }
