"""Holding a shard: its epoch and lease, the fence of every write, the schedulers at work, shards and lanes as read.

::

    acquire    epoch + 1, durable whatever the durability: no epoch may be used twice
    renew      the lease and the holder's snapshot, not durable: a snapshot is worth nothing after a crash
    fence      locks the shard's row at the holder's epoch: the first statement of each write
      └ no row: another epoch holds the shard; Fenced, and the caller rolls back
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, bindparam, case, delete, or_, select, update

from celery_wheel.errors import Fenced, StoreError, StoreRolledBack
from celery_wheel.store.model import DAY_MS, LaneState, Position, ShardRecord
from celery_wheel.store.sql.catalogue import Catalogue, StorePart
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.schema import lane, scheduler, shard, snapshot
from celery_wheel.store.sql.statement import SHOWN, Statements, held, in_order, places
from celery_wheel.store.store_model import Renewal
from celery_wheel.values.format import format_count

#: A scheduler gives a sign of life twice a second.
SILENT_MS = 5_000


class LeaseStatements:
    def __init__(self, statements: Statements) -> None:
        clock = statements.clock
        row = shard.c.shard == bindparam("at_shard")
        now: ColumnElement[int] = bindparam("now_ms", type_=BigInteger) if clock is None else clock
        lease: dict[str, Any] = {"lease_until_ms": now + bindparam("lease_ms", type_=BigInteger)}
        free = row
        if clock is not None:
            # The epoch says that the lease is this holder's own; two containers of one host may share a name and a pid.
            own, expired = shard.c.epoch == bindparam("own_epoch"), shard.c.lease_until_ms <= statements.began
            # No lease ends that late unless the clock was put back; a standby would wait for a dead holder until then.
            put_back = shard.c.lease_until_ms > clock + 2 * bindparam("lease_ms", type_=BigInteger)
            free = and_(row, or_(shard.c.holder.is_(None), expired, put_back, own))
        self.take = statements(
            update(shard).where(free).values(epoch=shard.c.epoch + 1, holder=bindparam("holder"), **lease)
        )
        self.epoch = statements(select(shard.c.epoch, shard.c.accepted).where(row))
        self.seq = statements(select(shard.c.seq).where(row))
        current = and_(held(), shard.c.accepted >= bindparam("known"))
        self.renew = statements(update(shard).where(current).values(lease))
        # One shard's long transaction must neither delay the renewals of the others, nor let them lock their rows.
        unlocked = select(shard.c.shard).where(current).with_for_update(skip_locked=True)
        self.renew_free = statements(
            update(shard).where(shard.c.shard == unlocked.correlate(None).scalar_subquery()).values(lease)
        )
        figures: dict[str, Any] = places("at_ms", "figures", "levels")
        self.show = statements(update(snapshot).where(snapshot.c.shard == bindparam("at_shard")).values(figures))
        self.release = statements(update(shard).where(held()).values(holder=None, lease_until_ms=None))
        # The first statement of every holder's transaction is one of these two, and the other follows only where it
        # must: PostgreSQL keeps each version of the row for every open transaction of the server, and each statement on
        # the row reads all of them. A lock makes none. Threads may commit in another order than they took their seqs.
        self.fence = statements(select(shard.c.seq).where(current).with_for_update())
        highest = case((shard.c.seq < bindparam("seq"), bindparam("seq")), else_=shard.c.seq)
        more = shard.c.history_bytes + bindparam("more")
        accepted = shard.c.accepted + bindparam("accepted")
        values = {"seq": highest, "history_bytes": more, "accepted": accepted}
        self.advance = statements(update(shard).where(current).values(values))

        self.holders = statements(select(shard.c.shard, shard.c.holder).order_by(shard.c.shard))
        self.register_scheduler = statements.put(scheduler, ["name"], ["seen_ms"])
        self.unregister_scheduler = statements(delete(scheduler).where(scheduler.c.name == bindparam("scheduler")))
        self.forget_schedulers = statements(delete(scheduler).where(scheduler.c.seen_ms < bindparam("before_ms")))
        live = select(scheduler.c.name).where(scheduler.c.seen_ms > bindparam("since_ms"))
        self.schedulers = statements(live.order_by(scheduler.c.name))

        at_shard: Any = bindparam("shard")
        shown = select(shard, *SHOWN, snapshot.c.levels).outerjoin(snapshot, snapshot.c.shard == shard.c.shard)
        self.state = statements(shown.where(shard.c.shard == at_shard))
        lanes = select(lane).where(lane.c.shard == at_shard).order_by(lane.c.lane)
        self.all_lanes, self.lanes = statements(lanes), statements(lanes.where(~lane.c.closed))


def fence(connection: Connection, statements: Statements, shard: int, epoch: int, known: int = 0) -> int:
    """Lock the shard for this transaction, where this epoch still holds it; returns the highest seq stored."""
    place = {"at_shard": shard, "at_epoch": epoch}
    last: int | None = statements.of(LeaseStatements).fence(connection, **place, known=known).scalar()
    if last is None:
        raise_fenced(connection, statements, shard, epoch)
    return last


def advance(
    connection: Connection,
    statements: Statements,
    shard: int,
    epoch: int,
    seq: int = 0,
    weight: int = 0,
    *,
    accepted: int = 0,
    known: int = 0,
) -> None:
    """Fence, store a higher seq, and add the bytes of new settlements and the number of accepted messages."""
    place = {"at_shard": shard, "at_epoch": epoch, "known": known}
    advanced = statements.of(LeaseStatements).advance
    if advanced(connection, **place, seq=seq, more=weight, accepted=accepted).rowcount == 0:
        raise_fenced(connection, statements, shard, epoch)


def raise_fenced(connection: Connection, statements: Statements, shard: int, epoch: int) -> NoReturn:
    """Tell why the shard's row did not match: another epoch, or too few accepted messages."""
    now, accepted = statements.of(LeaseStatements).epoch(connection, at_shard=shard).one_or_none() or (None, 0)
    if now == epoch:
        raise StoreRolledBack(
            f"the store has only {accepted} accepted messages of shard {shard}, and had confirmed more: it lost its "
            "last commits; nothing was written"
        )
    raise Fenced(
        f"shard {shard} is at epoch {now}, not {epoch}: another holder took it, or this holder took it anew; "
        "nothing was written, and the memory of the former epoch is dropped; no action is needed"
    )


def live_schedulers(connection: Connection, statements: Statements, since_ms: int) -> list[str]:
    """Return the schedulers with a sign of life after that instant, sorted."""
    return list(statements.of(LeaseStatements).schedulers(connection, since_ms=since_ms).scalars())


class SqlHolding(StorePart):
    def __init__(self, database: Database, catalogue: Catalogue, shards: int) -> None:
        super().__init__(database, catalogue, shards)
        self._lease = database.statements.of(LeaseStatements)
        #: A lock for each shard: a shard whose row is locked, or whose host does not answer, delays no other shard.
        self._holding: dict[int, threading.Lock] = {}
        self._held: dict[int, int] = {}  #: shard → the last epoch in which this store object held it

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
                self._catalogue.forget(shard)
            return epoch

    def _raise_epoch(self, shard: int, holder: str, now_ms: int, lease_ms: int) -> int | None:
        """Return None where the row has another holder's lease that has not expired, or another session works on it."""
        own_epoch = self._held.get(shard, -1)  # no epoch is negative
        values = {"at_shard": shard, "holder": holder, "now_ms": now_ms, "lease_ms": lease_ms, "own_epoch": own_epoch}
        with self._database.writing(durable=True) as connection:
            free = self._database.evict_stopped_holder(connection, shard, own_epoch)
            taken = free and self._lease.take(connection, **values).rowcount > 0
            epoch: int | None = self._lease.epoch(connection, at_shard=shard).scalar()
        if epoch is None:
            raise StoreError(self._no_shard(shard))
        return epoch if taken else None

    def renew(
        self, shard: int, epoch: int, now_ms: int, lease_ms: int, snapshot: dict[str, object] | None, known: int = 0
    ) -> None:
        with self._database.writing(durable=False) as connection:
            lease = {"now_ms": now_ms, "lease_ms": lease_ms, "known": known}
            if self._lease.renew(connection, at_shard=shard, at_epoch=epoch, **lease).rowcount == 0:
                raise_fenced(connection, self._statements, shard, epoch)
            self._show(connection, [Renewal(shard, epoch, snapshot)], now_ms)
        self._database.tidy()

    def renew_all(self, renewals: Sequence[Renewal], now_ms: int, lease_ms: int) -> set[int]:
        statement = self._lease.renew_free
        lease = {"now_ms": now_ms, "lease_ms": lease_ms}
        places_ = [{"at_shard": one.shard, "at_epoch": one.epoch, "known": one.known, **lease} for one in renewals]
        wanted = in_order(statement, places_)
        renewed = {one.shard for one in renewals}
        with self._database.writing(durable=False) as connection:
            if statement.many(connection, wanted) < len(wanted):  # the driver tells only how many
                found = [statement.at(connection, place).rowcount for place in wanted]
                renewed = {one.shard for one, count in zip(renewals, found, strict=True) if count}
            self._show(connection, [one for one in renewals if one.shard in renewed], now_ms)
        self._database.tidy()
        return renewed

    def _show(self, connection: Connection, renewed: Sequence[Renewal], now_ms: int) -> None:
        """Store the holders' snapshots, in the transaction that has renewed their leases."""
        rows = []
        for one in renewed:
            if one.snapshot is None:
                continue
            figures = dict(one.snapshot)
            levels = figures.pop("levels", None)
            row = {"figures": json.dumps(figures), "levels": None if levels is None else json.dumps(levels)}
            rows.append({"at_shard": one.shard, "at_ms": now_ms, **row})
        self._lease.show.many_named(connection, rows)

    def release(self, shard: int, epoch: int) -> None:
        """Do nothing where the shard is at another epoch: it is no longer held under this one."""
        with self._holding.setdefault(shard, threading.Lock()):
            with self._database.writing() as connection:
                values = {"at_shard": shard, "at_epoch": epoch, "holder": None, "lease_until_ms": None}
                released = self._lease.release(connection, **values).rowcount > 0
            if released:
                self._database.release(shard)
                self._held.pop(shard, None)

    def register_scheduler(self, scheduler: str, now_ms: int, silent_ms: int) -> list[str]:
        with self._database.writing(durable=False) as connection:
            self._lease.register_scheduler(connection, name=scheduler, seen_ms=now_ms)
            self._lease.forget_schedulers(connection, before_ms=now_ms - DAY_MS)
            return live_schedulers(connection, self._statements, now_ms - silent_ms)

    def unregister_scheduler(self, scheduler: str) -> None:
        with self._database.writing(durable=False) as connection:
            self._lease.unregister_scheduler(connection, scheduler=scheduler)

    def holders(self) -> dict[int, str | None]:
        with self._database.reading() as connection:
            return {row.shard: row.holder for row in self._lease.holders(connection)}

    def now_ms(self) -> int | None:
        return self._database.now_ms()

    def state(self, shard: int) -> ShardRecord:
        with self._database.reading() as connection:
            row = self._lease.state(connection, shard=shard).one_or_none()
        if row is None:
            raise StoreError(self._no_shard(shard))
        return shard_record(row)

    def lanes(self, shard: int) -> list[LaneState]:
        with self._database.reading() as connection:
            return read_lanes(connection, self._statements, shard)

    def _no_shard(self, shard: int) -> str:
        return (
            f"shard {shard} is not in the store {self._database.name}, which had "
            f"{format_count(self.shards, 'shard')} when it was opened; nothing was done; its tables were emptied since "
            "(manage.py flush), or it was resharded: restart the scheduler, with wheel_shards set to the store's number"
        )


def read_lanes(connection: Connection, statements: Statements, shard: int, *, closed: bool = False) -> list[LaneState]:
    """Return the shard's open lanes, in order of their numbers; with ``closed``, the closed lanes too."""
    lease = statements.of(LeaseStatements)
    return [lane_state(row) for row in (lease.all_lanes if closed else lease.lanes)(connection, shard=shard)]


def lane_state(row: Any) -> LaneState:
    return LaneState(
        row.lane,
        Position(row.offset_due_ms, row.offset_seq),
        Position(row.watermark_due_ms, row.watermark_seq),
        row.target,
        bool(row.redelivered),
        row.scope,
    )


def shard_record(row: Any) -> ShardRecord:
    """Return the record of a shard's row, with the levels in the snapshot where they were read."""
    snapshot = None if row.snapshot is None else json.loads(row.snapshot)
    if snapshot is not None and row.levels is not None:
        snapshot["levels"] = json.loads(row.levels)
    return ShardRecord(
        row.shard, row.epoch, row.holder, row.lease_until_ms, row.seq, snapshot, row.snapshot_at_ms, row.accepted
    )
