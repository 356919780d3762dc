"""The queries of ``SqlLoads``. Values are bound by name: ``load``, ``part``, …"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Update, and_, bindparam, delete, exists, func, select, update

from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN
from celery_wheel.store.ports.bulk_loads import BulkLoad
from celery_wheel.store.sql.fields import columns_of
from celery_wheel.store.sql.schema import load, load_chunk, load_part

_LOAD = select(*columns_of(BulkLoad, load))
_ROWS = func.coalesce(func.sum(load_chunk.c.rows), 0)
_THIS = load.c.id == bindparam("load")
_CHUNK_OF_LOAD = load_chunk.c.load == bindparam("load")
_CHUNK_OF_PART = and_(_CHUNK_OF_LOAD, load_chunk.c.part == bindparam("part"))
_HAS_CHUNKS = exists().where(load_chunk.c.load == load.c.id)

# -- loads ------------------------------------------------------------------------------------------

BY_ID = _LOAD.where(_THIS)
BY_NAME = _LOAD.where(load.c.name == bindparam("name"))
BY_PREFIX = _LOAD.where(func.substr(load.c.name, 1, bindparam("length")) == bindparam("prefix")).order_by(load.c.id)
LATEST = _LOAD.order_by(load.c.id.desc()).limit(bindparam("limit"))
UNFINISHED = _LOAD.where((load.c.state == OPEN) | and_(load.c.state == COMMITTED, _HAS_CHUNKS)).order_by(load.c.id)
#: The messages of committed loads.
PENDING_ROWS = select(_ROWS).join(load, load.c.id == load_chunk.c.load).where(load.c.state == COMMITTED)
LOCK_ABORTED = select(load.c.id).where(_THIS, load.c.state == ABORTED).with_for_update(read=True)
#: Locks the load, shared with the transactions of its other parts.
LOCK_RUN = select(load.c.name, load.c.state, load.c.run).where(_THIS).with_for_update(read=True)


def change(load_id: int, **values: Any) -> Update:
    return update(load).where(load.c.id == load_id).values(**values)


def abort(load_id: int, now_ms: int, run: int | None) -> Update:
    """Abort the load where it is open, and in this run if ``run`` is given."""
    aborted = change(load_id, state=ABORTED, ended_ms=now_ms).where(load.c.state == OPEN)
    return aborted if run is None else aborted.where(load.c.run == run)


# -- parts ------------------------------------------------------------------------------------------

_PART_OF_LOAD = load_part.c.load == bindparam("load")
LOCK_ATTEMPT = select(load_part.c.attempt).where(_PART_OF_LOAD, load_part.c.part == bindparam("part")).with_for_update()
ATTEMPTS = select(load_part.c.part, load_part.c.attempt).where(_PART_OF_LOAD)
DELETE_PARTS = delete(load_part).where(_PART_OF_LOAD)

_FORGOTTEN = and_(load.c.id.in_(bindparam("loads", expanding=True)), load.c.state == DONE)
FORGET_PARTS = delete(load_part).where(load_part.c.load.in_(select(load.c.id).where(_FORGOTTEN)))
FORGET = delete(load).where(_FORGOTTEN)

# -- chunks -----------------------------------------------------------------------------------------

_SLICE = (load_chunk.c.number, func.min(load_chunk.c.digest), func.sum(load_chunk.c.rows))
SLICES = select(*_SLICE).where(_CHUNK_OF_PART).group_by(load_chunk.c.number)
PART_ROWS = select(load_chunk.c.part, func.sum(load_chunk.c.rows)).where(_CHUNK_OF_LOAD).group_by(load_chunk.c.part)
#: (chunks, rows) of a load.
FIGURES = select(func.count(), _ROWS).where(_CHUNK_OF_LOAD)
CHUNK_IDS = select(load_chunk.c.id).where(_CHUNK_OF_LOAD).order_by(load_chunk.c.id).limit(bindparam("limit"))
DELETE_CHUNKS = delete(load_chunk).where(load_chunk.c.id.in_(bindparam("ids", expanding=True)))
DELETE_SLICES = delete(load_chunk).where(_CHUNK_OF_PART, load_chunk.c.number.in_(bindparam("numbers", expanding=True)))
DELETE_SLICES_FROM = delete(load_chunk).where(_CHUNK_OF_PART, load_chunk.c.number >= bindparam("slices"))
