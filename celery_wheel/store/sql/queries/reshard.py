"""The queries of ``reshard``. Values are bound by name; ``number`` is a shard's, ``shards`` are several."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Table, and_, bindparam, delete, func, select, tuple_, union_all, update

from celery_wheel.store.sql.schema import (
    answer,
    audit,
    batch,
    gate,
    inbox,
    lane,
    outcome,
    route,
    schedule,
    schedule_run,
    schedule_skip,
    scheduler,
    shard,
    snapshot,
    tally,
    timer,
    tombstone,
    total,
    watch,
)

_NUMBER: Any = bindparam("number")
_SHARDS: Any = bindparam("shards", expanding=True)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_WATERMARK = tuple_(lane.c.watermark_due_ms, lane.c.watermark_seq)

# -- may the store be resharded? --------------------------------------------------------------------

#: Locks every shard's row, and fences every holder.
FENCE_ALL = update(shard).values(epoch=shard.c.epoch + 1)
LIVE_SCHEDULERS = select(scheduler.c.name).where(scheduler.c.seen_ms > bindparam("since_ms"))
HOLDERS = select(shard.c.shard, shard.c.holder).where(shard.c.holder.is_not(None))
LANES_IN_DOUBT = select(lane.c.shard).where(lane.c.shard.in_(_SHARDS), _OFFSET < _WATERMARK)
ANY_INBOX_ITEM = select(inbox.c.id).limit(1)

#: One of the shards with a settlement, or with an outcome, that is not archived.
UNARCHIVED = [
    select(table.c.shard)
    .join(shard, and_(shard.c.shard == table.c.shard, table.c.id > shard.c.archived))
    .where(table.c.shard.in_(_SHARDS))
    .limit(1)
    for table in (batch, outcome)
]

_END = tuple_(batch.c.to_due_ms, batch.c.to_seq)
#: A shard with a settlement that is not archived and whose rows are pending again, after a rollback.
UNARCHIVED_ROLLBACK = (
    select(batch.c.shard)
    .join(lane, and_(lane.c.shard == batch.c.shard, lane.c.lane == batch.c.lane, _END > _OFFSET))
    .join(shard, and_(shard.c.shard == batch.c.shard, batch.c.id > shard.c.archived))
    .limit(1)
)

# -- move -------------------------------------------------------------------------------------------

HIGHEST_NUMBERS = union_all(select(func.max(shard.c.seq)), select(func.max(timer.c.id)))
SEQS = select(shard.c.shard, shard.c.seq)
SET_SEQ = update(shard).where(shard.c.shard == _NUMBER).values(seq=bindparam("highest"))
MAIN_WATERMARKS = select(lane.c.shard, lane.c.watermark_due_ms).where(lane.c.lane == 0)

_KEY = (timer.c.due_ms, timer.c.seq)
_PLACE = tuple_(*_KEY)
_IS_UNPUBLISHED = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane, _PLACE > _WATERMARK)
#: A shard's rows after the watermarks of their lanes, in order of position; an occurrence with its schedule's name.
ROWS_TO_MOVE = (
    select(timer.c.id, *_KEY, timer.c.key, timer.c.task_id, timer.c.envelope_id, route.c.target, route.c.task)
    .add_columns(schedule.c.name.label("schedule"))
    .select_from(timer)
    .join(route, route.c.id == timer.c.route)
    .join(lane, _IS_UNPUBLISHED)
    .outerjoin(schedule_run, schedule_run.c.timer_id == timer.c.id)
    .outerjoin(schedule, schedule.c.id == schedule_run.c.schedule)
    .where(timer.c.shard == _NUMBER, tuple_(bindparam("after_due_ms"), bindparam("after_seq")) < _PLACE)
    .order_by(*_KEY)
    .limit(bindparam("limit"))
)

_PLACE_IN_SHARD = {"shard": bindparam("to"), "lane": 0, "due_ms": bindparam("due"), "seq": bindparam("new")}
MOVE_ROW = update(timer).where(timer.c.id == bindparam("moved")).values(**_PLACE_IN_SHARD)
MOVE_WATCHES = update(watch).where(watch.c.timer_id == bindparam("moved")).values(shard=bindparam("to"))

_ENVELOPES: Any = bindparam("envelopes", expanding=True)
#: The envelope ids of messages that the shard ``to`` has already, with their tasks' ids.
PRESENT = select(timer.c.envelope_id, timer.c.task_id).where(
    timer.c.shard == bindparam("to"), timer.c.envelope_id.in_(_ENVELOPES)
)
RENAME_ROW = update(timer).where(timer.c.id == bindparam("renamed")).values(envelope_id=bindparam("own"))
_REMOVED: Any = bindparam("removed")
REMOVE_DOUBLED = [
    delete(table).where(column == _REMOVED)
    for table, column in ((watch, watch.c.timer_id), (schedule_run, schedule_run.c.timer_id), (timer, timer.c.id))
]

#: A shard's schedules in the order of their ids.
SCHEDULES_TO_MOVE = (
    select(schedule.c.id, schedule.c.name)
    .where(schedule.c.shard == _NUMBER, schedule.c.id > bindparam("after"))
    .order_by(schedule.c.id)
    .limit(bindparam("limit"))
)
MOVE_SCHEDULE = update(schedule).where(schedule.c.id == bindparam("moved")).values(shard=bindparam("to"))
MOVE_SKIPS = update(schedule_skip).where(schedule_skip.c.schedule == bindparam("moved")).values(shard=bindparam("to"))

#: Tables whose rows every shard gets: (table, the columns that name a row, the column that says which is the latest).
SPREAD: tuple[tuple[Table, tuple[str, ...], str], ...] = (
    (tombstone, ("task_id",), "until_ms"),
    (gate, ("scope", "name"), "at_ms"),
)


def spread_rows(table: Table, latest: str) -> Select[Any]:
    columns = [column for column in table.c if column.name not in ("id", "shard")]
    return select(table.c.shard, *columns).order_by(table.c[latest], table.c.id)


# -- shrink -----------------------------------------------------------------------------------------

#: The audit log stays: the first shard forgets the entries of a removed one.
KEEP_AUDIT = update(audit).where(audit.c.shard == _NUMBER).values(shard=0)
_TIMERS = select(timer.c.id).where(timer.c.shard == _NUMBER)
REMOVE_RUNS = delete(schedule_run).where(schedule_run.c.timer_id.in_(_TIMERS))
REMOVE_TIMERS = delete(timer).where(timer.c.shard == _NUMBER)
#: A shard's rows in every other table, and its own row.
REMOVE_OTHERS = [
    delete(table).where(table.c.shard == _NUMBER)
    for table in (watch, answer, tombstone, gate, outcome, batch, tally, total, schedule_skip, lane, snapshot, shard)
]
