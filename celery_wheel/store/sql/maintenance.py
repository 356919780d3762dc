"""``Maintenance`` of a SQL store: the resharding in one transaction, and the marks of an archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection

from celery_wheel.store.ports.maintenance import Archivable, Resharded, ShardOf, Unarchived
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.queries import maintenance as queries
from celery_wheel.store.sql.reshard import reshard


class SqlMaintenance:
    """Implements ``celery_wheel.store.ports.Maintenance``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reshard(self, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False) -> Resharded:
        return reshard(self._database, shards, shard_of, now_ms, archived_only=archived_only)

    def leap(self) -> None:
        with self._database.writing(durable=True) as connection:
            connection.execute(queries.LEAP)

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Durable, since an archive recognises a restored store by a mark that is lower than its own."""
        with self._database.writing(durable=True) as connection:
            for number, mark in sorted(marks.items()):
                connection.execute(queries.RAISE_MARK, {"number": number, "mark": mark})

    def unarchived(self) -> list[Unarchived]:
        found = []
        with self._database.snapshot() as connection:
            for row in connection.execute(queries.MARKS).all():
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
                for row in connection.execute(queries.MARKS).all()
            ]


def _first_after(connection: Connection, shard: int, number: int) -> int | None:
    """Return the instant of a shard's first event after the number; None where it has none."""
    instants = [connection.scalar(query, {"number": shard, "after": number}) for query in queries.FIRST_EVENTS]
    return min((at_ms for at_ms in instants if at_ms is not None), default=None)


def _days(connection: Connection, shard: int, after: int, upto: int) -> dict[int, int]:
    found = Counter[int]()
    for query in queries.EVENTS_BY_DAY:
        for day, events in connection.execute(query, {"number": shard, "after": after, "upto": upto}):
            found[day] += int(events)
    return dict(found)
