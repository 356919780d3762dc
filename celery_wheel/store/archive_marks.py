"""The mark of an archive in the store: raised by whoever archives, looked at by who wants to know what waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, select, update

from celery_wheel.store.database import Database
from celery_wheel.store.schema import batch, outcome, shard

#: What to run where history waits for it.
ARCHIVE = "run: celery-wheel-pipeline archive --store <wheel_store> --output <archive>"


def note(database: Database, marks: Mapping[int, int]) -> None:
    """Of each shard, the number up to which an archive has everything. It is only raised.

    It need not be durable: a mark that is lost makes history stay for longer.
    """
    with database.writing(durable=False) as connection:
        for number, mark in sorted(marks.items()):
            higher = and_(shard.c.shard == number, shard.c.archived < mark)
            connection.execute(update(shard).where(higher).values(archived=mark))


@dataclass(frozen=True, slots=True)
class Waiting:
    """``at_ms``: when the oldest event of a shard that is not archived took place; ``mark``: its archive's."""

    shard: int
    mark: int
    at_ms: int


def waiting(database: Database) -> list[Waiting]:
    """Of each shard the oldest event beyond its mark, if there is one."""
    found = []
    with database.snapshot() as connection:
        for number, mark in connection.execute(select(shard.c.shard, shard.c.archived).order_by(shard.c.shard)).all():
            at_ms = first_after(connection, number, mark)
            if at_ms is not None:
                found.append(Waiting(number, mark, at_ms))
    return found


def first_after(connection: Connection, shard: int, number: int) -> int | None:
    """When the first event of a shard beyond a number took place; None where there is none."""
    instants = []
    for table, at_ms in ((batch, batch.c.dispatched_ms), (outcome, outcome.c.at_ms)):
        beyond = select(at_ms).where(table.c.shard == shard, table.c.id > number)
        instants.append(connection.scalar(beyond.order_by(table.c.id).limit(1)))
    return min((at_ms for at_ms in instants if at_ms is not None), default=None)
