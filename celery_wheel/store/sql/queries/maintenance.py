"""The queries of ``SqlMaintenance``. An event is a settlement or an outcome."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, func, select, update

from celery_wheel.store.model import DAY_MS
from celery_wheel.store.ports.maintenance import EPOCH_LEAP
from celery_wheel.store.sql.schema import batch, outcome, shard

_EVENTS = ((batch, batch.c.dispatched_ms, func.sum(batch.c.count)), (outcome, outcome.c.at_ms, func.count()))

MARKS = select(shard.c.shard, shard.c.seq, shard.c.forgotten, shard.c.archived).order_by(shard.c.shard)

LEAP = update(shard).values(epoch=shard.c.epoch + EPOCH_LEAP)

#: Raises the mark of ``number``; a lower mark changes nothing.
RAISE_MARK = (
    update(shard)
    .where(and_(shard.c.shard == bindparam("number"), shard.c.archived < bindparam("mark")))
    .values(archived=bindparam("mark"))
)

#: The instant of a shard's first settlement, and of its first outcome, after a number.
FIRST_EVENTS = [
    select(at_ms)
    .where(table.c.shard == bindparam("number"), table.c.id > bindparam("after"))
    .order_by(table.c.id)
    .limit(1)
    for table, at_ms, _ in _EVENTS
]

#: (day, events) of a shard's settlements, and of its outcomes, with numbers in (after, upto].
EVENTS_BY_DAY = [
    select(at_ms.op("/")(DAY_MS).label("day"), count)
    .where(table.c.shard == bindparam("number"), table.c.id > bindparam("after"), table.c.id <= bindparam("upto"))
    .group_by("day")
    for table, at_ms, count in _EVENTS
]
