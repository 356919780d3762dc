"""The statements of a shard's holder: lease, epoch, fence; and the schedulers at work."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, case, delete, or_, select, update

from celery_wheel.store.sql.schema import scheduler, shard, snapshot
from celery_wheel.store.sql.statements.clauses import StatementFactory, held


class LeaseStatements(StatementFactory):
    """A part of ``Statements``."""

    _clock: ColumnElement[int] | None
    _began: ColumnElement[int] | None

    def _prepare_lease(self) -> None:
        row = shard.c.shard == bindparam("at_shard")
        now: ColumnElement[int] = bindparam("now_ms", type_=BigInteger) if self._clock is None else self._clock
        lease: dict[str, Any] = {"lease_until_ms": now + bindparam("lease_ms", type_=BigInteger)}
        free = row
        if self._clock is not None:
            # The epoch says that the lease is this holder's own; two containers of one host may share a name and a pid.
            own, expired = shard.c.epoch == bindparam("own_epoch"), shard.c.lease_until_ms <= self._began
            # No lease ends that late unless the clock was put back; a standby would wait for a dead holder until then.
            put_back = shard.c.lease_until_ms > self._clock + 2 * bindparam("lease_ms", type_=BigInteger)
            free = and_(row, or_(shard.c.holder.is_(None), expired, put_back, own))
        self.take = self._prepare(
            update(shard).where(free).values(epoch=shard.c.epoch + 1, holder=bindparam("holder"), **lease)
        )
        self.epoch = self._prepare(select(shard.c.epoch).where(row))
        self.seq = self._prepare(select(shard.c.seq).where(row))
        self.renew = self._prepare(update(shard).where(held()).values(lease))
        # One shard's long transaction must neither delay the renewals of the others, nor let them lock their rows.
        unlocked = select(shard.c.shard).where(held()).with_for_update(skip_locked=True)
        self.renew_free = self._prepare(
            update(shard).where(shard.c.shard == unlocked.correlate(None).scalar_subquery()).values(lease)
        )
        figures: dict[str, Any] = {name: bindparam(name) for name in ("at_ms", "figures", "levels")}
        self.show = self._prepare(update(snapshot).where(snapshot.c.shard == bindparam("at_shard")).values(figures))
        self.release = self._prepare(update(shard).where(held()).values(holder=None, lease_until_ms=None))
        # The first statement of every holder's transaction is one of these two, and the other follows only where it
        # must: PostgreSQL keeps each version of the row for every open transaction of the server, and each statement on
        # the row reads all of them. A lock makes none. Threads may commit in another order than they took their seqs.
        self.fence = self._prepare(select(shard.c.seq).where(held()).with_for_update())
        highest = case((shard.c.seq < bindparam("seq"), bindparam("seq")), else_=shard.c.seq)
        more = shard.c.history_bytes + bindparam("more")
        self.advance = self._prepare(update(shard).where(held()).values(seq=highest, history_bytes=more))

        self.holders = self._prepare(select(shard.c.shard, shard.c.holder).order_by(shard.c.shard))
        new = self._insert_or(scheduler).values(name=bindparam("name"), seen_ms=bindparam("seen_ms"))
        self.register_scheduler = self._prepare(
            new.on_conflict_do_update(index_elements=["name"], set_={"seen_ms": new.excluded.seen_ms})
        )
        self.unregister_scheduler = self._prepare(delete(scheduler).where(scheduler.c.name == bindparam("scheduler")))
        self.forget_schedulers = self._prepare(delete(scheduler).where(scheduler.c.seen_ms < bindparam("before_ms")))
        live = select(scheduler.c.name).where(scheduler.c.seen_ms > bindparam("since_ms"))
        self.schedulers = self._prepare(live.order_by(scheduler.c.name))
