"""The store's desk: requests, bulk loads, answers, tombstones, watches and gates.

::

    asker    ask ─► item in the inbox ┄┄ answer? answer? ─► verdicts       no answer in time: withdraw
    holder            └─ read_inbox ─► Change(answers, tombstones, watches, gates) ─► expire, later
    loader   ``loads`` ─► committed
    holder                └─ read_loads ─► Change(rows, loaded) ─► expire: done
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from celery_wheel.store import changes
from celery_wheel.store.database import Database
from celery_wheel.store.model import Cancelled, Gate, LoadChunk, Row, Tombstone
from celery_wheel.store.statements import Statements
from celery_wheel.store.statements.commanding import KEY_PLACES, KEYS
from celery_wheel.store.statements.loading import KEPT_MS
from celery_wheel.store.statements.parts import in_parts

#: Task ids that are read at a time: a page is in memory, and all of them need not be.
IDS_AT_ONCE = 5_000


class Desk:
    """A part of ``SqlStore``."""

    _database: Database
    _sql: Statements

    def ask(self, shard: int, kind: str, payload: bytes) -> int:
        with self._database.writing() as connection:
            item: int = self._sql.commanding.ask(connection, shard=shard, kind=kind, payload=payload).scalar_one()
        return item

    def asked(self, item: int) -> bytes | None:
        with self._database.reading() as connection:
            found: bytes | None = self._sql.commanding.asked(connection, item=item).scalar()
        return found

    def withdraw(self, item: int) -> bool:
        with self._database.writing() as connection:
            return bool(self._sql.commanding.withdraw(connection, item=item).rowcount)

    def answer(self, command_id: str) -> dict[str, Any] | None:
        return self.answers([command_id]).get(command_id)

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not command_ids:
            return {}
        ids = {changes.digits(one): one for one in command_ids}
        with self._database.reading() as connection:
            parts = in_parts(list(ids), KEY_PLACES)
            found = [row for part in parts for row in self._sql.commanding.answers.at(connection, part)]
        return {ids[changes.digits(str(number))]: json.loads(verdicts) for number, verdicts in found}

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, Tombstone]:
        with self._database.reading() as connection:
            parts = in_parts(task_ids, KEY_PLACES)
            found = [row for part in parts for row in self._sql.commanding.tombstones.at(connection, (shard, *part))]
        return {row.task_id: Tombstone(*row) for row in found}

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        after = ""
        while True:
            with self._database.reading() as connection:
                query = self._sql.commanding.tombstone_ids
                ids = query(connection, shard=shard, after=after, limit=IDS_AT_ONCE).scalars().all()
            if not ids:
                return
            yield from ids
            after = ids[-1]

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[str, str, Row]]:
        with self._database.reading() as connection:
            parts = in_parts(keys, KEY_PLACES)
            values = [dict(zip(KEYS, part, strict=True)) for part in parts]
            found = [self._sql.commanding.watchers(connection, shard=shard, kind=kind, **one) for one in values]
            rows = [row for part in found for row in part]
        return [(key, task_id, Row(*row)) for key, task_id, *row in rows]

    def set_aside(self, shard: int, task_ids: Sequence[str]) -> list[tuple[str, str, Row]]:
        with self._database.reading() as connection:
            parts = in_parts(task_ids, KEY_PLACES)
            found = [one for part in parts for one in self._sql.commanding.set_aside.at(connection, (shard, *part))]
        last = {one[2]: (one[0], one[1], Row(*one[2:])) for one in found}
        return sorted(last.values(), key=lambda one: one[2].position)

    def rows(self, shard: int, row_ids: Sequence[int]) -> list[Row]:
        with self._database.reading() as connection:
            parts = in_parts(row_ids, KEY_PLACES)
            return [Row(*row) for part in parts for row in self._sql.commanding.rows.at(connection, (shard, *part))]

    def unannounced(self, shard: int, after: int, limit: int) -> list[Cancelled]:
        with self._database.reading() as connection:
            found = self._sql.commanding.unannounced(connection, shard=shard, after=after, limit=limit).all()
        return [Cancelled(task_id, Row(*row)) for task_id, *row in found]

    def gates(self, shard: int) -> list[Gate]:
        with self._database.reading() as connection:
            return [Gate(*row) for row in self._sql.commanding.gates(connection, shard=shard)]

    def read_loads(self, shard: int, max_rows: int) -> list[LoadChunk]:
        found: list[LoadChunk] = []
        with self._database.reading() as connection:
            for number in self._sql.loading.committed(connection).scalars().all():
                place = {"load": number, "shard": shard}
                sizes = self._sql.loading.sizes(connection, **place, limit=max(1, max_rows)).all()
                count = 0
                for _, rows in sizes:
                    if (found or count) and rows > max_rows:
                        break
                    max_rows -= rows
                    count += 1
                if count:
                    found += [LoadChunk(*row) for row in self._sql.loading.read(connection, **place, limit=count)]
                if count < len(sizes) or max_rows <= 0:
                    break
        return found

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int) -> None:
        with self._database.writing(durable=False) as connection:
            changes.fence(connection, self._sql, shard, epoch)
            self._sql.commanding.forget_answers(connection, at_shard=shard, before_ms=answers_before_ms)
            self._sql.commanding.forget_tombstones(connection, at_shard=shard, now_ms=now_ms)
            self._sql.loading.over(connection)
            self._sql.loading.forget_parts(connection)
            self._sql.loading.forget(connection, before_ms=now_ms - KEPT_MS)
