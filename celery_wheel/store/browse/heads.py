"""The headers of tasks on a page, and where they go; without their bodies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from celery_wheel.store.schema import payload, timer
from celery_wheel.store.sql import SqlStore

#: Ids in one question; SQLite may take no more than 999 values.
AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Head:
    headers: bytes  #: a JSON object
    exchange: str
    routing_key: str


def heads(store: SqlStore, ids: Iterable[int]) -> dict[int, Head]:
    """By the id of the row; one that is gone by now is left out."""
    wanted, found = list(ids), dict[int, Head]()
    columns = (timer.c.id, payload.c.headers, timer.c.exchange, timer.c.routing_key)
    query = select(*columns).join_from(timer, payload, payload.c.id == timer.c.id)
    with store.database.reading() as connection:
        for start in range(0, len(wanted), AT_ONCE):
            rows = connection.execute(query.where(timer.c.id.in_(wanted[start : start + AT_ONCE])))
            found.update({row_id: Head(bytes(headers), *place) for row_id, headers, *place in rows})
    return found
