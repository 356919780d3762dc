"""The prepared statements of bulk loads; ``queries.bulk_loads`` has the others.

::

    wheel_load        begin                     the loading process
                      finish, forget            the holder: done once all is accepted; forgotten a year later
    wheel_load_part   claim, forget             the loading process; the holder
    wheel_load_chunk  add                       the loading process
                      arrivals                  the holder: whether a chunk, or an item of the inbox, is there
                      any_arrivals              the holders: the same, for all shards
                      sizes, read, accept       the holder, of committed loads, in the order of their ids
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, and_, bindparam, delete, exists, insert, literal_column, or_, select, update

from celery_wheel.store.model import ABORTED, COMMITTED, DONE, OPEN, BulkLoadChunk
from celery_wheel.store.sql.fields import ObjectInsert, columns_of
from celery_wheel.store.sql.schema import inbox, load, load_chunk, load_part
from celery_wheel.store.sql.statement import Prepared

#: A load's name cannot be loaded again for so long after its end: 366 days.
KEPT_MS = 366 * 86_400_000

_CHUNK = ("load", "part", "number", "shard", "rows", "digest", "payload")


class BulkLoadStatements:
    """``prepare`` compiles for the dialect; ``bulk`` adds many rows; ``insert_or`` is the dialect's own ``insert``."""

    def __init__(
        self, prepare: Callable[[Any], Prepared], bulk: Callable[[Any, Any], Any], insert_or: Callable[[Any], Any]
    ) -> None:
        values: dict[str, Any] = {name: bindparam(name) for name in _CHUNK}
        self.add_chunk = ObjectInsert(bulk(load_chunk, insert(load_chunk).inline().values(values)), "load", "part")
        now: Any = bindparam("now_ms", type_=BigInteger)
        new = insert_or(load).inline()
        new = new.values(name=bindparam("name"), state=_word(OPEN), run=_number(0), created_ms=now, begun_ms=now)
        new = new.values(rows=_number(0))
        self.begin = prepare(new.on_conflict_do_nothing(index_elements=["name"]))
        place = ["load", "part"]
        new = insert_or(load_part).inline()
        new = new.values({name: bindparam(name) for name in (*place, "run", "attempt")})
        last = {name: new.excluded[name] for name in ("run", "attempt")}
        self.claim = prepare(new.on_conflict_do_update(index_elements=place, set_=last))

        committed = select(load.c.id).where(load.c.state == _word(COMMITTED))
        self.committed = prepare(committed.order_by(load.c.id))
        here = and_(load_chunk.c.load == bindparam("load"), load_chunk.c.shard == bindparam("shard"))
        of_load = and_(load.c.state == _word(COMMITTED), load_chunk.c.shard == bindparam("at_shard"))
        loaded = exists().where(load_chunk.c.load == load.c.id, of_load)
        waiting = exists().where(inbox.c.shard == bindparam("shard"))
        self.arrivals = prepare(select(_number(1)).where(or_(waiting, loaded)))
        committed_some = exists(select(load.c.id).where(load.c.state == _word(COMMITTED)))
        some = or_(exists(select(inbox.c.id)), committed_some)
        self.any_arrivals = prepare(select(_number(1)).where(some))
        sizes = select(load_chunk.c.id, load_chunk.c.rows).where(here).order_by(load_chunk.c.id)
        self.sizes = prepare(sizes.limit(bindparam("limit")))
        read = select(*columns_of(BulkLoadChunk, load_chunk))
        self.read = prepare(read.where(here).order_by(load_chunk.c.id).limit(bindparam("limit")))
        taken = and_(load_chunk.c.id == bindparam("chunk"), load_chunk.c.shard == bindparam("at_shard"))
        self.accept = prepare(delete(load_chunk).where(taken))

        left = exists().where(load_chunk.c.load == load.c.id)
        self.finish = prepare(update(load).where(load.c.state == _word(COMMITTED), ~left).values(state=_word(DONE)))
        is_over = select(load.c.id).where(load.c.state == _word(DONE))
        self.forget_parts = prepare(delete(load_part).where(load_part.c.load.in_(is_over)))
        ended = load.c.state.in_([_word(DONE), _word(ABORTED)])
        self.forget = prepare(delete(load).where(ended, load.c.ended_ms < bindparam("before_ms")))


def _word(state: str) -> Any:
    return literal_column(f"'{state}'")


def _number(value: int) -> Any:
    return literal_column(str(value))
