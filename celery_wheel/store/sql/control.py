"""Control: tombstones, watches, gates and the audit log, as a holder reads them, and their part of ``apply``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, insert, select

from celery_wheel.store.model import STOPPED, UNANNOUNCED, WATCH, Change, Gate, Row, Tombstone, Watch
from celery_wheel.store.sql import audit
from celery_wheel.store.sql.bulk import BulkStatements
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.groups import GroupStatements
from celery_wheel.store.sql.holding import fence
from celery_wheel.store.sql.loads import LoadStatements, record_ends
from celery_wheel.store.sql.schema import answer, digits, gate, timer, tombstone, watch
from celery_wheel.store.sql.statement import (
    CLAIM,
    ROW,
    ObjectInsert,
    Statements,
    columns_of,
    constant,
    names_of,
    numbered,
    places,
)

#: Task ids of tombstones read at a time: memory holds one page of them, not all.
IDS_AT_ONCE = 5_000


class ControlStatements:
    def __init__(self, statements: Statements) -> None:
        self._prepare_writes(statements)
        of_shard = tombstone.c.shard == bindparam("shard")
        named = select(*columns_of(Tombstone, tombstone)).where(of_shard)
        self.tombstones = statements(named.where(tombstone.c.task_id.in_(numbered("task"))))
        page = select(tombstone.c.task_id).where(of_shard, tombstone.c.task_id > bindparam("after"))
        self.tombstone_ids = statements(page.order_by(tombstone.c.task_id).limit(bindparam("limit")))
        gates = select(*columns_of(Gate, gate)).where(gate.c.shard == bindparam("shard"))
        self.gates = statements(gates.order_by(gate.c.id))
        claim = statements.claims_on(numbered("key"))
        claimed = claim.join(timer, timer.c.id == claim.c.timer_id)
        found = select(*claim.c, timer.c.task_id, *ROW).select_from(claimed)
        found = found.where(timer.c.lane != constant(STOPPED))
        self.watchers = statements(found.order_by(timer.c.due_ms, timer.c.seq))
        here = (watch.c.shard == bindparam("shard"), watch.c.kind == constant(UNANNOUNCED), watch.c.key == constant(""))
        rows = select(timer.c.task_id, *ROW).select_from(watch.join(timer, timer.c.id == watch.c.timer_id))
        rows = rows.where(*here, watch.c.timer_id > bindparam("after")).order_by(watch.c.timer_id)
        self.unannounced = statements(rows.limit(bindparam("limit")))

    def _prepare_writes(self, statements: Statements) -> None:
        new = statements.insert_or(answer).inline().values(places("id", "shard", "at_ms", "results"))
        # The first answer stays: a second command with its id, which no caller makes, must not end the holder's state.
        self.add_answer = statements(new.on_conflict_do_nothing(index_elements=["id"]))
        new = statements.put(tombstone, ["shard", "task_id"], ["until_ms", "reason", "actor"])
        self.add_tombstone = ObjectInsert(new, "shard")
        new = statements(insert(watch).inline().values(places("shard", *names_of(Watch))))
        self.add_watch = ObjectInsert(new, "shard")
        # By the timer alone, whose id implies the shard: with the shard as a condition, SQLite uses the index of the
        # keys and reads every watch of the shard for each timer.
        of_timer = watch.c.timer_id == bindparam("gone")
        self.unwatch = statements(delete(watch).where(of_timer))
        self.complete = statements(delete(watch).where(of_timer, watch.c.kind == constant(WATCH)))
        new = statements.put(gate, ["shard", "scope", "name"], ["state", "per_ms", "reason", "actor", "at_ms"])
        self.set_gate = ObjectInsert(new, "shard")
        place = [gate.c[name] == bindparam(f"at_{name}") for name in ("shard", "scope", "name")]
        self.remove_gate = statements(delete(gate).where(*place))
        before: Any = bindparam("before_ms", type_=BigInteger)
        old = answer.c.shard == bindparam("at_shard"), answer.c.at_ms < before
        self.forget_answers = statements(delete(answer).where(*old))
        over = and_(tombstone.c.shard == bindparam("at_shard"), tombstone.c.until_ms < bindparam("now_ms"))
        self.forget_tombstones = statements(delete(tombstone).where(over))


class SqlControl(StorePart):
    @property
    def _control(self) -> ControlStatements:
        return self._statements.of(ControlStatements)

    def tombstones(self, shard: int, task_ids: Sequence[str]) -> dict[str, Tombstone]:
        with self._database.reading() as connection:
            found = self._control.tombstones.each(connection, "task", task_ids, shard=shard)
        return {row.task_id: Tombstone(*row) for row in found}

    def tombstone_ids(self, shard: int) -> Iterator[str]:
        after = ""
        while True:
            with self._database.reading() as connection:
                found = self._control.tombstone_ids(connection, shard=shard, after=after, limit=IDS_AT_ONCE)
                ids = found.scalars().all()
            if not ids:
                return
            yield from ids
            after = ids[-1]

    def watchers(self, shard: int, kind: str, keys: Sequence[str]) -> list[tuple[Watch, Row]]:
        with self._database.reading() as connection:
            rows = self._control.watchers.each(connection, "key", keys, shard=shard, kind=kind)
            row_of = self._catalogue.row
            claims = [(Watch(kind, *found[: len(CLAIM)]), found[len(CLAIM) :]) for found in rows]
            return [(claim, row_of(connection, row, id_)) for claim, (id_, *row) in claims]

    def unannounced(self, shard: int, after: int, limit: int) -> list[Row]:
        with self._database.reading() as connection:
            found = self._control.unannounced(connection, shard=shard, after=after, limit=limit).all()
            return self._catalogue.task_rows(connection, found)

    def gates(self, shard: int) -> list[Gate]:
        with self._database.reading() as connection:
            return [Gate(*row) for row in self._control.gates(connection, shard=shard)]

    def expire(self, shard: int, epoch: int, now_ms: int, answers_before_ms: int, audits_before_ms: int = 0) -> None:
        control = self._control
        with self._database.writing(durable=False) as connection:
            fence(connection, self._statements, shard, epoch)
            control.forget_answers(connection, at_shard=shard, before_ms=answers_before_ms)
            control.forget_tombstones(connection, at_shard=shard, now_ms=now_ms)
            self._statements.of(GroupStatements).forget_rates(connection, at_shard=shard, now_ms=now_ms)
            record_ends(connection, self._statements, shard)
            self._statements.of(LoadStatements).expire(connection, now_ms)
            if shard == 0:
                self._statements.of(BulkStatements).expire(connection, now_ms)
            audit.forget(connection, self._statements, shard, audits_before_ms, now_ms)
        if shard == 0:
            self._catalogue.routes.forget(self.shards, now_ms)


def write_control(connection: Connection, statements: Statements, shard: int, change: Change) -> None:
    """Write the part of a change that concerns control, behind the fence."""
    control = statements.of(ControlStatements)
    answers = [
        {"id": digits(one.id), "shard": shard, "at_ms": one.at_ms, "results": json.dumps(one.results)}
        for one in change.answers
    ]
    control.add_answer.many_named(connection, answers)
    control.add_tombstone.many(connection, change.tombstones, shard)
    control.complete.many(connection, [(one,) for one in change.completed])
    control.unwatch.many(connection, [(one,) for one in change.unwatched])
    control.add_watch.many(connection, change.watches, shard)
    opened = [{"at_shard": shard, "at_scope": scope, "at_name": name} for scope, name in change.opened]
    control.remove_gate.many_named(connection, opened)
    control.set_gate.many(connection, change.gates, shard)
    if change.loaded:
        record_ends(connection, statements, shard)
    audit.append(connection, statements, shard, change.audits)
