"""The prepared statements of control: commands and their answers, tombstones, watches, gates, stopped rows.

::

    wheel_inbox      put, read, withdraw         every process
    wheel_answer     add, read, forget           the holder; every process; the holder
    wheel_audit      add, forget                 the holder; every process reads
    wheel_tombstone  add, read, forget           the holder
    wheel_watch      add, remove, watchers,      the holder
                     unannounced
    wheel_gate       set, remove, read           the holder; every process reads
    wheel_timer      stopped rows, rows by id    the holder, for requeue and replay
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Subquery, and_, bindparam, delete, insert, literal_column, select

from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.store.model import STOPPED, UNANNOUNCED, WATCH, Gate, Tombstone
from celery_wheel.store.sql.fields import ObjectInsert, columns_of, names_of
from celery_wheel.store.sql.schema import answer, audit, gate, inbox, outcome, timer, tombstone, watch
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.statements.clauses import KEY_PLACES, ROW

#: Names of the bound keys.
KEYS = tuple(f"key_{n}" for n in range(KEY_PLACES))

#: The watches of the bound ``shard`` and ``kind`` on these keys.
ClaimsOn = Callable[[list[BindParameter[str]]], Subquery]


class ControlStatements:
    """``prepare`` compiles for the dialect; ``insert_or`` is its ``insert``; ``claims_on`` finds watches by keys."""

    def __init__(
        self, prepare: Callable[[Any], Prepared], insert_or: Callable[[Any], Any], claims_on: ClaimsOn
    ) -> None:
        self._prepare = prepare
        self._insert_or = insert_or
        self._prepare_commands()
        self._prepare_audit()
        self._prepare_tombstones()
        self._prepare_gates()
        self._prepare_watches(claims_on)
        self._prepare_rows()

    def _prepare_commands(self) -> None:
        new = insert(inbox).values(_places("shard", "kind", "payload"))
        self.put_command = self._prepare(new.returning(inbox.c.id))
        self.command_payload = self._prepare(select(inbox.c.payload).where(inbox.c.id == bindparam("item")))
        again = self._insert_or(inbox).inline().values(id=bindparam("item"), **_places("shard", "kind", "payload"))
        self.put_again = self._prepare(again.on_conflict_do_nothing(index_elements=["id"]))
        same = inbox.c.payload == bindparam("payload")
        self.withdraw = self._prepare(delete(inbox).where(inbox.c.id == bindparam("item"), same))
        self.add_answer = self._prepare(insert(answer).values(_places("id", "shard", "at_ms", "results")))
        ids: list[BindParameter[str]] = [bindparam(name) for name in KEYS]
        self.answers = self._prepare(select(answer.c.id, answer.c.results).where(answer.c.id.in_(ids)))
        old = and_(answer.c.shard == bindparam("at_shard"), answer.c.at_ms < bindparam("before_ms"))
        self.forget_answers = self._prepare(delete(answer).where(old))

    def _prepare_audit(self) -> None:
        new = insert(audit).inline().values(_places("shard", *names_of(AuditEntry)))
        self.add_audit = ObjectInsert(self._prepare(new), "shard")
        old = and_(audit.c.at_ms < bindparam("before_ms"), audit.c.shard == bindparam("at_shard"))
        self.forget_audit = self._prepare(delete(audit).where(old))

    def _prepare_tombstones(self) -> None:
        new = self._set(tombstone, ["shard", "task_id"], ["until_ms", "reason", "actor"])
        self.add_tombstone = ObjectInsert(new, "shard")
        named = columns_of(Tombstone, tombstone)
        of_shard = tombstone.c.shard == bindparam("shard")
        ids: list[BindParameter[str]] = [bindparam(f"task_{n}") for n in range(KEY_PLACES)]
        self.tombstones = self._prepare(select(*named).where(of_shard, tombstone.c.task_id.in_(ids)))
        page = select(tombstone.c.task_id).where(of_shard, tombstone.c.task_id > bindparam("after"))
        self.tombstone_ids = self._prepare(page.order_by(tombstone.c.task_id).limit(bindparam("limit")))
        over = and_(tombstone.c.shard == bindparam("at_shard"), tombstone.c.until_ms < bindparam("now_ms"))
        self.forget_tombstones = self._prepare(delete(tombstone).where(over))

    def _prepare_watches(self, claims_on: ClaimsOn) -> None:
        new = insert(watch).inline().values(_places("shard", "kind", "key", "timer_id"))
        self.add_watch = ObjectInsert(self._prepare(new), "shard")
        # By the timer alone, whose id implies the shard: with the shard as a condition, SQLite uses the index of the
        # keys and reads every watch of the shard for each timer.
        of_timer = watch.c.timer_id == bindparam("gone")
        self.unwatch = self._prepare(delete(watch).where(of_timer))
        self.complete = self._prepare(delete(watch).where(of_timer, watch.c.kind == literal_column(f"'{WATCH}'")))
        claim = claims_on([bindparam(name) for name in KEYS])
        joined = claim.join(timer, timer.c.id == claim.c.timer_id)
        stopped: ColumnElement[int] = literal_column(str(STOPPED))
        found = select(claim.c.key, timer.c.task_id, *ROW).select_from(joined).where(timer.c.lane != stopped)
        self.watchers = self._prepare(found.order_by(timer.c.due_ms, timer.c.seq))
        kind: ColumnElement[str] = literal_column(f"'{UNANNOUNCED}'")
        unannounced = and_(
            watch.c.shard == bindparam("shard"), watch.c.kind == kind, watch.c.key == literal_column("''")
        )
        after = and_(unannounced, watch.c.timer_id > bindparam("after"))
        joined = watch.join(timer, timer.c.id == watch.c.timer_id)
        rows = select(timer.c.task_id, *ROW).select_from(joined).where(after).order_by(watch.c.timer_id)
        self.unannounced = self._prepare(rows.limit(bindparam("limit")))

    def _prepare_rows(self) -> None:
        names: list[BindParameter[str]] = [bindparam(f"task_{n}") for n in range(KEY_PLACES)]
        stopped: ColumnElement[int] = literal_column(str(STOPPED))
        here = and_(timer.c.shard == bindparam("shard"), timer.c.task_id.in_(names), timer.c.lane == stopped)
        source = timer.join(outcome, outcome.c.timer_id == timer.c.id)
        found = select(timer.c.task_id, outcome.c.kind, *ROW).select_from(source).where(here)
        self.stopped_rows = self._prepare(found.order_by(outcome.c.at_ms, outcome.c.id))
        ids: list[BindParameter[int]] = [bindparam(f"row_{n}") for n in range(KEY_PLACES)]
        numbered = and_(timer.c.shard == bindparam("shard"), timer.c.id.in_(ids))
        self.rows = self._prepare(select(*ROW).where(numbered))

    def _prepare_gates(self) -> None:
        new = self._set(gate, ["shard", "scope", "name"], ["state", "per_ms", "reason", "actor", "at_ms"])
        self.set_gate = ObjectInsert(new, "shard")
        place = [gate.c[name] == bindparam(f"at_{name}") for name in ("shard", "scope", "name")]
        self.remove_gate = self._prepare(delete(gate).where(*place))
        gates = select(*columns_of(Gate, gate)).where(gate.c.shard == bindparam("shard"))
        self.gates = self._prepare(gates.order_by(gate.c.id))

    def _set(self, table: Any, place: list[str], values: list[str]) -> Prepared:
        """Insert a row, or replace the values of the row with the same place."""
        new = self._insert_or(table).inline().values(_places(*place, *values))
        taken = {name: new.excluded[name] for name in values}
        return self._prepare(new.on_conflict_do_update(index_elements=place, set_=taken))


def _places(*names: str) -> dict[str, BindParameter[Any]]:
    return {name: bindparam(name) for name in names}
