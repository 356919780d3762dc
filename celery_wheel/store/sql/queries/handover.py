"""The queries of ``SqlHandover``. Values are bound by name; ``after`` is the position of the last row read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, func, select, tuple_, update

from celery_wheel.store.model import STOPPED
from celery_wheel.store.ports.handover import MOVED
from celery_wheel.store.route import Route
from celery_wheel.store.schedule_model import Revision
from celery_wheel.store.sql.browse.messages import TASKS
from celery_wheel.store.sql.fields import columns_of
from celery_wheel.store.sql.schema import batch, inbox, lane, outcome, revision, route, schedule, timer, watch
from celery_wheel.store.sql.statements.schedules import SCHEDULE

#: The packing and the bytes of a message, and the other columns of a ``Message``, by their names.
MESSAGE = (
    *(timer.c.packing, timer.c.message, timer.c.envelope_id, timer.c.task_id, timer.c.eta_ms, timer.c.created_ms),
    *(timer.c.key, timer.c.expires_ms, timer.c.misfire_ms, *[route.c[name] for name in Route.__slots__]),
)

_KEY = (timer.c.due_ms, timer.c.seq)
_PLACE = tuple_(*_KEY)
_OFFSET = tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
_SAME_LANE = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)
_IS_PENDING = and_(_SAME_LANE, _PLACE > _OFFSET)
_OF_SHARD = timer.c.shard == bindparam("shard")
_AMONG_IDS = timer.c.id.in_(bindparam("ids", expanding=True))
_LIMIT: Any = bindparam("limit")

# -- pending rows -----------------------------------------------------------------------------------

_AFTER = and_(
    _OF_SHARD, timer.c.lane == bindparam("lane"), tuple_(bindparam("after_due_ms"), bindparam("after_seq")) < _PLACE
)
SIZES_AFTER = select(timer.c.size).where(_AFTER).order_by(*_KEY).limit(_LIMIT)
#: (id, due_ms, seq, message …) of a lane's next rows.
MESSAGES_AFTER = select(timer.c.id, *_KEY, *MESSAGE).select_from(TASKS).where(_AFTER).order_by(*_KEY).limit(_LIMIT)
CLAIMS = select(watch.c.timer_id, watch.c.kind, watch.c.key).where(
    watch.c.shard == bindparam("shard"), watch.c.timer_id.in_(bindparam("ids", expanding=True))
)
COUNT_PENDING = select(func.count()).select_from(timer.join(lane, _IS_PENDING)).where(_OF_SHARD)
#: The pending rows among ``ids``, with the columns of their tally keys.
PENDING_AMONG = (
    select(timer.c.id, timer.c.due_ms, route.c.target, route.c.task)
    .select_from(TASKS.join(lane, _IS_PENDING))
    .where(_OF_SHARD, _AMONG_IDS)
)
COUNT_INBOX = select(func.coalesce(func.sum(func.coalesce(inbox.c.rows, 1)), 0))

# -- stopped rows -----------------------------------------------------------------------------------

_others = outcome.alias()
_LAST = select(func.max(_others.c.id)).where(_others.c.timer_id == timer.c.id).scalar_subquery()
_WITH_OUTCOME = timer.join(outcome, and_(outcome.c.timer_id == timer.c.id, outcome.c.id == _LAST))
_IS_STOPPED = and_(_OF_SHARD, timer.c.lane == STOPPED)
_OF_KINDS = and_(_IS_STOPPED, outcome.c.kind.in_(bindparam("kinds", expanding=True)))
COUNT_STOPPED = select(func.count()).select_from(_WITH_OUTCOME).where(_OF_KINDS)
#: (id, due_ms, kind, reason, message …) of stopped rows with ids above ``after``.
STOPPED_MESSAGES = (
    select(timer.c.id, timer.c.due_ms, outcome.c.kind, outcome.c.reason, *MESSAGE)
    .select_from(_WITH_OUTCOME.join(route, route.c.id == timer.c.route))
    .where(_OF_KINDS, timer.c.id > bindparam("after"))
    .order_by(timer.c.id)
    .limit(_LIMIT)
)
#: (id, due_ms, lane, accepted_ms, kind, reason, message …) of rows, with their last outcome if they have one.
MESSAGES_OF = (
    select(timer.c.id, timer.c.due_ms, timer.c.lane, timer.c.accepted_ms, outcome.c.kind, outcome.c.reason, *MESSAGE)
    .select_from(TASKS.outerjoin(outcome, and_(outcome.c.timer_id == timer.c.id, outcome.c.id == _LAST)))
    .where(_AMONG_IDS)
    .order_by(timer.c.id)
)
_IS_MOVED = exists().where(outcome.c.timer_id == timer.c.id, outcome.c.kind == MOVED)
#: The ids of stopped rows among ``ids`` that were not moved.
STOPPED_AMONG = select(timer.c.id).where(_IS_STOPPED, _AMONG_IDS, ~_IS_MOVED)

# -- settlements of rows that were not due: the values are those of a batch ----------------------------

EARLY_BATCHES = (
    select(batch)
    .where(batch.c.shard == bindparam("shard"), batch.c.to_due_ms > batch.c.dispatched_ms)
    .order_by(batch.c.id)
)
_IN_BATCH: ColumnElement[bool] = and_(
    _OF_SHARD,
    timer.c.lane == bindparam("lane"),
    tuple_(bindparam("from_due_ms"), bindparam("from_seq")) < _PLACE,
    tuple_(bindparam("to_due_ms"), bindparam("to_seq")) >= _PLACE,
)
_IS_SETTLED = exists().where(_SAME_LANE, _PLACE <= _OFFSET)
#: The ids of a batch's settled rows that were due after its dispatch.
EARLY_ROWS = (
    select(timer.c.id)
    .where(_IN_BATCH, timer.c.due_ms > bindparam("dispatched_ms"), _IS_SETTLED)
    .order_by(*_KEY)
    .limit(_LIMIT)
)
#: (count, bytes, last due_ms) of a batch's rows.
BATCH_FIGURES = select(func.count(), func.coalesce(func.sum(timer.c.size), 0), func.max(timer.c.due_ms)).where(
    _IN_BATCH
)
LAST_SEQ = select(func.max(timer.c.seq)).where(_IN_BATCH, timer.c.due_ms == bindparam("last_ms"))
DELETE_BATCH = delete(batch).where(batch.c.id == bindparam("id"))
SHRINK_BATCH = (
    update(batch)
    .where(batch.c.id == bindparam("batch"))
    .values({name: bindparam(f"new_{name}") for name in ("count", "bytes", "to_due_ms", "to_seq")})
)

# -- schedules ------------------------------------------------------------------------------------------

COUNT_SCHEDULES = select(func.count()).select_from(schedule).where(schedule.c.shard == bindparam("shard"))
#: The schedules of a shard with ids above ``after``.
SCHEDULES = (
    select(*SCHEDULE)
    .where(schedule.c.shard == bindparam("shard"), schedule.c.id > bindparam("after"))
    .order_by(schedule.c.id)
    .limit(_LIMIT)
)
REVISIONS = (
    select(*columns_of(Revision, revision))
    .where(revision.c.schedule.in_(bindparam("ids", expanding=True)))
    .order_by(revision.c.schedule, revision.c.number)
)
