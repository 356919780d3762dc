"""``Maintenance`` of a SQL store: ``resharding`` in one transaction, and the marks of an archive."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, and_, func, select, update

from celery_wheel.store.database import Database
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.ports.maintenance import Archivable, Resharded, ShardOf, Unarchived
from celery_wheel.store.resharding import reshard
from celery_wheel.store.schema import batch, outcome, shard

_MARKS = select(shard.c.shard, shard.c.seq, shard.c.forgotten, shard.c.archived).order_by(shard.c.shard)


class SqlMaintenance:
    """Implements ``celery_wheel.store.ports.Maintenance``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reshard(self, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False) -> Resharded:
        return reshard(self._database, shards, shard_of, now_ms, archived_only=archived_only)

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Durable: a mark that is lower than an archive knows is what tells it that the store was put back."""
        with self._database.writing(durable=True) as connection:
            for number, mark in sorted(marks.items()):
                higher = and_(shard.c.shard == number, shard.c.archived < mark)
                connection.execute(update(shard).where(higher).values(archived=mark))

    def unarchived(self) -> list[Unarchived]:
        found = []
        with self._database.snapshot() as connection:
            for row in connection.execute(_MARKS).all():
                at_ms = _first_after(connection, row.shard, row.archived)
                if at_ms is not None:
                    found.append(Unarchived(row.shard, row.archived, at_ms))
        return found

    def archivable(self, after: Mapping[int, int]) -> list[Archivable]:
        with self._database.snapshot() as connection:
            return [
                Archivable(
                    shard=row.shard,
                    seq=row.seq,
                    forgotten=row.forgotten,
                    archived=row.archived,
                    first_ms=_first_after(connection, row.shard, row.forgotten),
                    days=_days(connection, row.shard, after.get(row.shard, 0), row.seq),
                )
                for row in connection.execute(_MARKS).all()
            ]


def _first_after(connection: Connection, shard: int, number: int) -> int | None:
    """When the first event of a shard beyond a number took place; None where there is none."""
    instants = []
    for table, at_ms in ((batch, batch.c.dispatched_ms), (outcome, outcome.c.at_ms)):
        beyond = select(at_ms).where(table.c.shard == shard, table.c.id > number)
        instants.append(connection.scalar(beyond.order_by(table.c.id).limit(1)))
    return min((at_ms for at_ms in instants if at_ms is not None), default=None)


def _days(connection: Connection, shard: int, after: int, upto: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for table, at_ms, count in (
        (batch, batch.c.dispatched_ms, func.sum(batch.c.count)),
        (outcome, outcome.c.at_ms, func.count()),
    ):
        day = at_ms.op("/")(DAY_MS).label("day")
        of_range = select(day, count).where(table.c.shard == shard, table.c.id > after, table.c.id <= upto)
        for since, events in connection.execute(of_range.group_by("day")):
            found[since] = found.get(since, 0) + int(events)
    return found
