"""Every statement of the store, by name, for one dialect.

A range is always (after, upto] in one lane of one shard; as a comparison of pairs it is a range of the position
index on both dialects, which tests/unit/store/test_schema.py watches on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Subquery,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from celery_wheel.store.archived import Archived
from celery_wheel.store.commanding import Commanding
from celery_wheel.store.loading import Loading
from celery_wheel.store.model import REST, Position
from celery_wheel.store.prepared import Prepared
from celery_wheel.store.schema import batch, inbox, lane, outcome, payload, scheduler, shard, tally, timer, watch

#: Values of one ``IN``. A statement has a fixed number of places, so that it is compiled once; what is not needed
#: repeats the last value. SQLite before 3.32 allows 999.
IN_PLACES = 500

#: The same of a look for tasks, mostly for one or a few.
FIND_PLACES = 50

#: Names of the values of ``known``.
ENVELOPES = tuple(f"envelope_{n}" for n in range(IN_PLACES))

#: The columns of a ``Row``, in the order of its fields.
ROW = (
    timer.c.id,
    timer.c.lane,
    timer.c.due_ms,
    timer.c.seq,
    timer.c.eta_ms,
    timer.c.task,
    timer.c.exchange,
    timer.c.exchange_type,
    timer.c.routing_key,
    timer.c.queue,
    timer.c.priority,
    timer.c.expires_ms,
    timer.c.queue_expires_ms,
    payload.c.headers,
    payload.c.properties,
    payload.c.body,
    timer.c.misfire_ms,
)

BATCH_RANGE = (
    batch.c.id,
    batch.c.lane,
    batch.c.from_due_ms,
    batch.c.from_seq,
    batch.c.to_due_ms,
    batch.c.to_seq,
    batch.c.bytes,
    batch.c.dispatched_ms,
)


def _in_range(table: Table = timer) -> ColumnElement[bool]:
    position = tuple_(table.c.due_ms, table.c.seq)
    return and_(
        table.c.shard == bindparam("shard"),
        table.c.lane == bindparam("lane"),
        position > tuple_(bindparam("after_due_ms"), bindparam("after_seq")),
        position <= tuple_(bindparam("upto_due_ms"), bindparam("upto_seq")),
    )


def span(shard: int, lane: int, after: Position, upto: Position) -> dict[str, int]:
    """The bound values of a range."""
    return {
        "shard": shard,
        "lane": lane,
        "after_due_ms": after.due_ms,
        "after_seq": after.seq,
        "upto_due_ms": upto.due_ms,
        "upto_seq": upto.seq,
    }


def in_parts(wanted: Sequence[Any], places: int) -> list[tuple[Any, ...]]:
    """As many at a time as a statement has places; one that is not needed repeats the last."""
    parts = [list(wanted[start : start + places]) for start in range(0, len(wanted), places)]
    return [(*part, *part[-1:] * (places - len(part))) for part in parts]


def _held() -> ColumnElement[bool]:
    return and_(shard.c.shard == bindparam("at_shard"), shard.c.epoch == bindparam("at_epoch"))


class Adding(Protocol):
    """A statement that adds rows, given as tuples in the order of ``names``."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int | None: ...


class Statements:
    """``insert_or`` is the dialect's own ``insert``, the one that has ``on_conflict_do_update``.

    Args:
        clock: the database's own clock in Unix milliseconds, where the lease is in the shard's row and runs out by it.
        began: the same clock when the transaction began.
        adding: how many rows get into a table faster than by the prepared insert.
    """

    def __init__(
        self,
        dialect: Dialect,
        insert_or: Callable[[Table], Any],
        *,
        clock: ColumnElement[int] | None = None,
        began: ColumnElement[int] | None = None,
        adding: Callable[[Table, Prepared], Adding] | None = None,
    ) -> None:
        self._dialect = dialect
        self._insert_or = insert_or
        self._clock = clock
        self._began = began
        self._adding = adding
        self._holding()
        self._writing()
        self.commanding = Commanding(self._prepare, insert_or)
        self.loading = Loading(self._prepare, self._bulk, insert_or)
        self.commanding.watches(ROW, self._claims_on)
        self.commanding.recalling(ROW)
        self._forgetting()
        self._ranges()
        self._lookups()

    def _prepare(self, clause: Any) -> Prepared:
        return Prepared(clause, self._dialect)

    def _bulk(self, table: Table, clause: Any = None) -> Adding:
        prepared = self._prepare(insert(table) if clause is None else clause)
        return prepared if self._adding is None else self._adding(table, prepared)

    def _holding(self) -> None:
        row = shard.c.shard == bindparam("at_shard")
        now: ColumnElement[int] = bindparam("now_ms", type_=BigInteger) if self._clock is None else self._clock
        lease: dict[str, Any] = {"lease_until_ms": now + bindparam("lease_ms", type_=BigInteger)}
        free = row
        if self._clock is not None:
            # Ours by the epoch and not by the name: on one host two containers may have the same name and pid.
            ours, over = shard.c.epoch == bindparam("own_epoch"), shard.c.lease_until_ms <= self._began
            # No lease ends that late, unless the clock was put back: a dead holder would be waited for as long as that.
            put_back = shard.c.lease_until_ms > self._clock + 2 * bindparam("lease_ms", type_=BigInteger)
            free = and_(row, or_(shard.c.holder.is_(None), over, put_back, ours))
        self.take = self._prepare(
            update(shard).where(free).values(epoch=shard.c.epoch + 1, holder=bindparam("holder"), **lease)
        )
        self.epoch = self._prepare(select(shard.c.epoch).where(row))
        self.seq = self._prepare(select(shard.c.seq).where(row))
        self.renew = self._prepare(
            update(shard)
            .where(_held())
            .values(snapshot=bindparam("snapshot"), snapshot_at_ms=bindparam("snapshot_at_ms"), **lease)
        )
        self.release = self._prepare(update(shard).where(_held()).values(holder=None, lease_until_ms=None))
        # The first statement of every holder's transaction: the fence, the lock, and the highest seq in one.
        # Changes of several threads may commit in another order than their positions were given in.
        highest = case((shard.c.seq < bindparam("seq"), bindparam("seq")), else_=shard.c.seq)
        self.fence = self._prepare(update(shard).where(_held()).values(seq=highest))
        self.weigh = self._prepare(
            update(shard).where(_held()).values(history_bytes=shard.c.history_bytes + bindparam("more"))
        )

        self.holders = self._prepare(select(shard.c.shard, shard.c.holder).order_by(shard.c.shard))
        new = self._insert_or(scheduler).values(name=bindparam("name"), seen_ms=bindparam("seen_ms"))
        self.attend = self._prepare(
            new.on_conflict_do_update(index_elements=["name"], set_={"seen_ms": new.excluded.seen_ms})
        )
        self.depart = self._prepare(delete(scheduler).where(scheduler.c.name == bindparam("left")))
        self.forget_schedulers = self._prepare(delete(scheduler).where(scheduler.c.seen_ms < bindparam("before_ms")))
        heard = select(scheduler.c.name).where(scheduler.c.seen_ms > bindparam("since_ms"))
        self.schedulers = self._prepare(heard.order_by(scheduler.c.name))

    def _writing(self) -> None:
        self.add_timer = self._bulk(timer)
        self.add_payload = self._bulk(payload)
        self.add_outcome = self._bulk(outcome)
        self.add_batch = self._bulk(batch)
        self.move = self._prepare(
            update(timer)
            .where(timer.c.id == bindparam("moved"), timer.c.shard == bindparam("at_shard"))
            .values(
                lane=bindparam("lane"),
                due_ms=bindparam("due_ms"),
                seq=bindparam("seq"),
                eta_ms=func.coalesce(bindparam("eta_ms", type_=BigInteger), timer.c.eta_ms),
            )
        )
        columns = [
            "shard",
            "lane",
            "offset_due_ms",
            "offset_seq",
            "watermark_due_ms",
            "watermark_seq",
            "target",
            "redelivered",
            "scope",
        ]
        new = self._insert_or(lane).inline().values({name: bindparam(name) for name in columns})
        places = {name: new.excluded[name] for name in columns[2:]}
        self.set_lane = self._prepare(new.on_conflict_do_update(index_elements=columns[:2], set_=places))
        columns = ["shard", "hour", "queue", "task", "pending"]
        new = self._insert_or(tally).inline().values({name: bindparam(name) for name in columns})
        total = {"pending": tally.c.pending + new.excluded.pending}
        self.add_tally = self._prepare(new.on_conflict_do_update(index_elements=columns[:4], set_=total))
        self.take_in = self._prepare(
            delete(inbox).where(inbox.c.id == bindparam("item"), inbox.c.shard == bindparam("at_shard"))
        )
        given: dict[str, Any] = {name: bindparam(name) for name in ("shard", "kind", "payload")}
        self.put_inbox = self._bulk(inbox, insert(inbox).inline().values(given))

    def _forgetting(self) -> None:
        gone: list[BindParameter[int]] = [bindparam(f"gone_{n}") for n in range(IN_PLACES)]
        self.archived = Archived(self._prepare, _held(), _in_range(), gone)
        oldest = select(*BATCH_RANGE).where(batch.c.shard == bindparam("shard")).order_by(batch.c.id)
        self.oldest_batches = self._prepare(oldest.limit(bindparam("limit")))
        ids = select(timer.c.id).where(_in_range()).order_by(timer.c.due_ms, timer.c.seq)
        self.ids_in_range = self._prepare(ids.limit(bindparam("limit")))
        self.forget_timer = self._prepare(delete(timer).where(timer.c.id == bindparam("gone")))
        self.forget_payload = self._prepare(delete(payload).where(payload.c.id == bindparam("gone")))
        self.forget_outcome = self._prepare(delete(outcome).where(outcome.c.timer_id == bindparam("gone")))
        self.forget_batch = self._prepare(delete(batch).where(batch.c.id == bindparam("gone")))
        self.forget_tally = self._prepare(
            delete(tally).where(tally.c.shard == bindparam("shard"), tally.c.pending == 0)
        )

    def _ranges(self) -> None:
        joined = timer.join(payload, payload.c.id == timer.c.id)
        in_order = (timer.c.due_ms, timer.c.seq)
        self.slice = self._prepare(select(*ROW).select_from(joined).where(_in_range()).order_by(*in_order))
        self.count = self._prepare(select(func.count()).select_from(timer).where(_in_range()))
        sizes = select(*in_order, timer.c.size).where(_in_range()).order_by(*in_order)
        self.sizes = self._prepare(sizes.limit(bindparam("limit")))
        hour = timer.c.due_ms.op("/")(bindparam("hour_ms"))
        queue = func.coalesce(func.nullif(timer.c.queue, ""), timer.c.routing_key)
        groups = select(hour.label("hour"), queue.label("to"), timer.c.task, func.count(), func.sum(timer.c.size))
        self.summary = self._prepare(groups.where(_in_range()).group_by("hour", "to", timer.c.task))

    def _lookups(self) -> None:
        at_shard: BindParameter[int] = bindparam("shard")
        self.state = self._prepare(select(shard).where(shard.c.shard == at_shard))
        self.lanes = self._prepare(select(lane).where(lane.c.shard == at_shard).order_by(lane.c.lane))
        envelopes: list[BindParameter[str]] = [bindparam(name) for name in ENVELOPES]
        self.known = self._prepare(self._known_of(at_shard, envelopes))
        joined = timer.join(payload, payload.c.id == timer.c.id)
        wanted: list[BindParameter[str]] = [bindparam(f"task_{n}") for n in range(FIND_PLACES)]
        rest: ColumnElement[int] = literal_column(str(REST))  # these are called with the values of places alone
        of_task = and_(timer.c.shard == at_shard, timer.c.task_id.in_(wanted))
        found = select(timer.c.task_id, *ROW).select_from(joined).where(of_task, timer.c.lane != rest)
        self.find = self._prepare(found.order_by(timer.c.due_ms, timer.c.seq))
        resting = timer.join(outcome, outcome.c.timer_id == timer.c.id)
        kinds = select(timer.c.task_id, outcome.c.kind).select_from(resting).where(of_task, timer.c.lane == rest)
        self.resting = self._prepare(kinds.order_by(outcome.c.at_ms, outcome.c.id))
        # Where they end is compared by the caller: given the choice, SQLite took the index of the ends, which is the
        # whole history, and not that of the time, which is the last minutes.
        since = select(*BATCH_RANGE).where(batch.c.shard == at_shard, batch.c.lane == bindparam("lane"))
        self.batches_since = self._prepare(since.where(batch.c.dispatched_ms >= bindparam("since_ms")))
        counts = select(tally.c.hour, tally.c.queue, tally.c.task, tally.c.pending)
        self.pending = self._prepare(counts.where(tally.c.shard == at_shard, tally.c.pending > 0))
        items = select(inbox.c.id, inbox.c.kind, inbox.c.payload).where(inbox.c.shard == at_shard)
        self.read_inbox = self._prepare(items.order_by(inbox.c.id).limit(bindparam("limit")))
        sizes = select(func.length(inbox.c.payload)).where(inbox.c.shard == at_shard)
        self.inbox_sizes = self._prepare(sizes.order_by(inbox.c.id).limit(bindparam("limit")))

    def _known_of(self, shard: BindParameter[int], envelopes: list[BindParameter[str]]) -> Any:
        return select(timer.c.envelope_id).where(timer.c.shard == shard, timer.c.envelope_id.in_(envelopes))

    def _claims_on(self, keys: list[BindParameter[str]]) -> Subquery:
        here = and_(watch.c.shard == bindparam("shard"), watch.c.kind == bindparam("kind"), watch.c.key.in_(keys))
        return select(watch.c.key, watch.c.timer_id).where(here).subquery("claim")
