"""The statements of history that is forgotten once it is archived; ``store.sql.archive_floor`` explains the numbers.

::

    wheel_shard     marks, forgotten            the holder, at its epoch
    wheel_timer     ids_in_range                and whether an outcome of the row is not archived yet
    wheel_batch     floors                      the first position of each lane with a batch beyond the mark
    wheel_outcome   last_outcome
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, case, func, literal_column, select, update

from celery_wheel.store.sql.schema import batch, outcome, shard, timer
from celery_wheel.store.sql.statement import Prepared


class ArchiveStatements:
    """``held``: the shard's row at the holder's epoch; ``in_range``: rows of a range of positions."""

    def __init__(
        self,
        prepare: Callable[[Any], Prepared],
        held: ColumnElement[bool],
        in_range: ColumnElement[bool],
        timers: Sequence[Any],
    ) -> None:
        self.marks = prepare(select(shard.c.history_bytes, shard.c.archived, shard.c.seq).where(held))
        beyond = outcome.join(shard, and_(shard.c.shard == outcome.c.shard, outcome.c.id > shard.c.archived))
        # For EXISTS, PostgreSQL may make a table of all outcomes beyond the marks, anew for each removed batch.
        one = (
            select(outcome.c.id).select_from(beyond).where(outcome.c.timer_id == timer.c.id).limit(literal_column("1"))
        )
        waits = one.scalar_subquery().is_not(None)
        ids = select(timer.c.id, waits.label("waits")).where(in_range).order_by(timer.c.due_ms, timer.c.seq)
        self.ids_in_range = prepare(ids.limit(bindparam("limit")))
        of_shard = batch.c.shard == bindparam("shard")
        order = (batch.c.from_due_ms, batch.c.from_seq)
        nth = func.row_number().over(partition_by=batch.c.lane, order_by=order).label("nth")
        beyond_mark = select(batch.c.lane, *order, nth).where(of_shard, batch.c.id > bindparam("after")).subquery()
        columns = (beyond_mark.c.lane, beyond_mark.c.from_due_ms, beyond_mark.c.from_seq)
        self.floors = prepare(select(*columns).where(beyond_mark.c.nth == 1))
        # With the shard as a condition, SQLite reads all outcomes of the shard by the index that begins with it, and
        # PostgreSQL reads all outcomes from the highest id down.
        of_it = case((outcome.c.shard == bindparam("shard"), outcome.c.id))
        self.last_outcome = prepare(select(func.max(of_it)).where(outcome.c.timer_id.in_(timers)))
        number: Any = bindparam("number", type_=BigInteger)
        higher = case((shard.c.forgotten < number, number), else_=shard.c.forgotten)
        self.forgotten = prepare(update(shard).where(held).values(forgotten=higher))
