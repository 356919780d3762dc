"""The control part of a SQL store: commands, answers, tombstones, watches, gates, and chunks of bulk loads.

::

    client   put_command ─► item in the inbox ┄┄ polls ─► results       no answer in time: withdraw
    holder                  └ read_inbox ─► Change(answers, tombstones, watches, gates) ─► expire, later
    loader   ``loads`` ─► committed
    holder                └ read_loads ─► Change(rows, loaded) ─► expire: done
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import BulkLoadChunk, Gate, KeyedRow, Row, StoppedRow, TaskRow, Tombstone
from celery_wheel.store.sql import changes
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.ids import bytes_to_task_id, task_id_to_bytes
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.statements import Statements
from celery_wheel.store.sql.statements.bulk_load import KEPT_MS
from celery_wheel.store.sql.statements.clauses import KEY_PLACES, in_parts
from celery_wheel.store.sql.statements.control import KEYS

#: Task ids of tombstones read at a time: memory holds one page of them, not all.
IDS_AT_ONCE = 5_000


class SqlControl:
    """A part of ``SqlStore``."""

    _database: Database
    _statements: Statements
    _catalogue: Catalogue

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        [item] = self.put_commands([(shard, kind, payload)])
        return item

    def put_commands(self, commands: Sequence[tuple[int, str, bytes]], items: list[int] | None = None) -> list[int]:
        put = self._statements.control.put_command
        items = [] if items is None else items
        with self._database.writing() as connection:
            for shard, kind, payload in commands:
                items.append(put(connection, shard=shard, kind=kind, payload=payload).scalar_one())
        self._database.ring()
        return items

    def command_payload(self, item: int) -> bytes | None:
        with self._database.reading() as connection:
            found: bytes | None = self._statements.control.command_payload(connection, item=item).scalar()
        return found

    def withdraw(self, item: int, command: tuple[int, str, bytes]) -> bool:
        shard, kind, payload = command
        control = self._statements.control
        with self._database.writing() as connection:
            # PostgreSQL waits here for another transaction that has put the same id, be it a session whose client is
            # gone: after it, the deletion finds the item, or nobody ever will.
            was_absent = control.put_again(connection, item=item, shard=shard, kind=kind, payload=payload).rowcount
            # The id of an item that was rolled back may be another item's by now, in SQLite.
            return bool(control.withdraw(connection, item=item, payload=payload).rowcount) and not was_absent

    def answer(self, command_id: str) -> dict[str, Any] | None:
        return self.answers([command_id]).get(command_id)

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not command_ids:
            return {}
        ids = {changes.digits(one): one for one in command_ids}
        with self._database.reading() as connection:
            parts = in_parts(list(ids), KEY_PLACES)
            found = [row for part in parts for row in self._statements.control.answers.at(connection, part)]
        return {ids[changes.digits(str(number))]: json.loads(results) for number, results in found}

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, Tombstone]:
        with self._database.reading() as connection:
            found = self._found(connection, self._statements.control.tombstones, shard, task_ids, KEY_PLACES)
        return {row.task_id: Tombstone(*row) for row in found}

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        after = ""
        query = self._statements.control.tombstone_ids
        while True:
            with self._database.reading() as connection:
                ids = query(connection, shard=shard, after=after, limit=IDS_AT_ONCE).scalars().all()
            if not ids:
                return
            yield from ids
            after = ids[-1]

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[KeyedRow]:
        query = self._statements.control.watchers
        with self._database.reading() as connection:
            parts = [dict(zip(KEYS, part, strict=True)) for part in in_parts(keys, KEY_PLACES)]
            rows = [row for part in parts for row in query(connection, shard=shard, kind=kind, **part)]
            row_of = self._catalogue.row
            return [KeyedRow(key, bytes_to_task_id(id_), row_of(connection, row)) for key, id_, *row in rows]

    def stopped_rows(self, shard: int, task_ids: Sequence[str]) -> list[StoppedRow]:
        with self._database.reading() as connection:
            found = self._of_tasks(connection, self._statements.control.stopped_rows, shard, task_ids)
            row_of = self._catalogue.row
            last = {
                row[0]: StoppedRow(bytes_to_task_id(id_), kind, row_of(connection, row)) for id_, kind, *row in found
            }
        return sorted(last.values(), key=lambda one: one.row.position)

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[Row]:
        with self._database.reading() as connection:
            found = self._found(connection, self._statements.control.rows, shard, row_ids, KEY_PLACES)
            return self._catalogue.rows(connection, found)

    def _found(
        self, connection: Connection, query: Prepared, shard: int, values: Sequence[Any], places: int
    ) -> list[Any]:
        """Run the query for the values, as many at a time as it has places."""
        return [row for part in in_parts(values, places) for row in query.at(connection, (shard, *part))]

    def _of_tasks(self, connection: Connection, query: Prepared, shard: int, task_ids: Sequence[str]) -> list[Any]:
        """Run a query for task ids."""
        return self._found(connection, query, shard, list(map(task_id_to_bytes, task_ids)), KEY_PLACES)

    def unannounced(self, shard: int, after: int, limit: int) -> list[TaskRow]:
        with self._database.reading() as connection:
            found = self._statements.control.unannounced(connection, shard=shard, after=after, limit=limit).all()
            return self._task_rows(connection, found)

    def _task_rows(self, connection: Connection, found: Iterable[Any]) -> list[TaskRow]:
        row_of = self._catalogue.row
        return [TaskRow(bytes_to_task_id(id_), row_of(connection, row)) for id_, *row in found]

    def gates(self, shard: int) -> list[Gate]:
        with self._database.reading() as connection:
            return [Gate(*row) for row in self._statements.control.gates(connection, shard=shard)]

    def read_loads(self, shard: int, max_rows: int) -> list[BulkLoadChunk]:
        found: list[BulkLoadChunk] = []
        bulk_load = self._statements.bulk_load
        with self._database.reading() as connection:
            for number in bulk_load.committed(connection).scalars().all():
                place = {"load": number, "shard": shard}
                sizes = bulk_load.sizes(connection, **place, limit=max(1, max_rows)).all()
                count = 0
                for _, rows in sizes:
                    if (found or count) and rows > max_rows:
                        break
                    max_rows -= rows
                    count += 1
                if count:
                    found += [BulkLoadChunk(*row) for row in bulk_load.read(connection, **place, limit=count)]
                if count < len(sizes) or max_rows <= 0:
                    break
        return found

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int, audits_before_ms: int = 0) -> None:
        control, bulk_load = self._statements.control, self._statements.bulk_load
        with self._database.writing(durable=False) as connection:
            changes.fence(connection, self._statements, shard, epoch)
            control.forget_answers(connection, at_shard=shard, before_ms=answers_before_ms)
            control.forget_audit(connection, at_shard=shard, before_ms=audits_before_ms)
            control.forget_tombstones(connection, at_shard=shard, now_ms=now_ms)
            bulk_load.finish(connection)
            bulk_load.forget_parts(connection)
            bulk_load.forget(connection, before_ms=now_ms - KEPT_MS)
