"""The statements of control: commands and their answers, tombstones, watches, gates. Compiled once, as the others are.

::

    wheel_inbox      ask, withdraw               anybody
    wheel_answer     add, read, forget           the holder; anybody; the holder
    wheel_tombstone  add, read, forget           the holder
    wheel_watch      add, remove, watchers,      the holder
                     unannounced
    wheel_gate       set, open, read             the holder; anybody reads
    wheel_timer      what rests, rows by number  the holder, who lets them leave once more
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Subquery, and_, bindparam, delete, insert, literal_column, select

from celery_wheel.store.fields import Filling, columns_of
from celery_wheel.store.model import REST, UNANNOUNCED, WATCH, Gate, Tombstone
from celery_wheel.store.prepared import Prepared
from celery_wheel.store.schema import answer, gate, inbox, outcome, payload, timer, tombstone, watch

#: Keys, task ids or numbers of one look; see ``lookups.FIND_PLACES``.
KEY_PLACES = 50

#: Names of their values.
KEYS = tuple(f"key_{n}" for n in range(KEY_PLACES))

#: The watches of ``shard`` and ``kind`` on some keys.
ClaimsOn = Callable[[list[BindParameter[str]]], Subquery]


class Commanding:
    """``prepare`` compiles for the dialect; ``insert_or`` is its own ``insert``."""

    def __init__(self, prepare: Callable[[Any], Prepared], insert_or: Callable[[Any], Any]) -> None:
        self._prepare = prepare
        self._insert_or = insert_or
        self._asking()
        self._tombstones()
        self._gates()

    def _asking(self) -> None:
        asked = insert(inbox).values(_places("shard", "kind", "payload"))
        self.ask = self._prepare(asked.returning(inbox.c.id))
        self.asked = self._prepare(select(inbox.c.payload).where(inbox.c.id == bindparam("item")))
        self.withdraw = self._prepare(delete(inbox).where(inbox.c.id == bindparam("item")))
        self.add_answer = self._prepare(insert(answer).values(_places("id", "shard", "at_ms", "verdicts")))
        asked_for: list[BindParameter[str]] = [bindparam(name) for name in KEYS]
        self.answers = self._prepare(select(answer.c.id, answer.c.verdicts).where(answer.c.id.in_(asked_for)))
        old = and_(answer.c.shard == bindparam("at_shard"), answer.c.at_ms < bindparam("before_ms"))
        self.forget_answers = self._prepare(delete(answer).where(old))

    def _tombstones(self) -> None:
        new = self._set(tombstone, ["shard", "task_id"], ["until_ms", "reason", "actor"])
        self.add_tombstone = Filling(new, "shard")
        named = columns_of(Tombstone, tombstone)
        of_shard = tombstone.c.shard == bindparam("shard")
        ids: list[BindParameter[str]] = [bindparam(f"task_{n}") for n in range(KEY_PLACES)]
        self.tombstones = self._prepare(select(*named).where(of_shard, tombstone.c.task_id.in_(ids)))
        page = select(tombstone.c.task_id).where(of_shard, tombstone.c.task_id > bindparam("after"))
        self.tombstone_ids = self._prepare(page.order_by(tombstone.c.task_id).limit(bindparam("limit")))
        over = and_(tombstone.c.shard == bindparam("at_shard"), tombstone.c.until_ms < bindparam("now_ms"))
        self.forget_tombstones = self._prepare(delete(tombstone).where(over))

    def watches(self, row: Sequence[ColumnElement[Any]], claims_on: ClaimsOn) -> None:
        """``row``: the columns of a ``Row``."""
        new = insert(watch).inline().values(_places("shard", "kind", "key", "timer_id"))
        self.add_watch = Filling(self._prepare(new), "shard")
        # By the timer alone, whose id says the shard: asked for the shard too, SQLite took the index of the keys, and
        # read every watch of the shard for each.
        of_timer = watch.c.timer_id == bindparam("gone")
        self.unwatch = self._prepare(delete(watch).where(of_timer))
        self.complete = self._prepare(delete(watch).where(of_timer, watch.c.kind == literal_column(f"'{WATCH}'")))
        claim = claims_on([bindparam(name) for name in KEYS])
        joined = claim.join(timer, timer.c.id == claim.c.timer_id).join(payload, payload.c.id == timer.c.id)
        rest: ColumnElement[int] = literal_column(str(REST))
        found = select(claim.c.key, timer.c.task_id, *row).select_from(joined).where(timer.c.lane != rest)
        self.watchers = self._prepare(found.order_by(timer.c.due_ms, timer.c.seq))
        kind: ColumnElement[str] = literal_column(f"'{UNANNOUNCED}'")
        untold = and_(watch.c.shard == bindparam("shard"), watch.c.kind == kind, watch.c.key == literal_column("''"))
        behind = and_(untold, watch.c.timer_id > bindparam("after"))
        joined = watch.join(timer, timer.c.id == watch.c.timer_id).join(payload, payload.c.id == timer.c.id)
        told = select(timer.c.task_id, *row).select_from(joined).where(behind).order_by(watch.c.timer_id)
        self.unannounced = self._prepare(told.limit(bindparam("limit")))

    def recalling(self, row: Sequence[ColumnElement[Any]]) -> None:
        """``row``: the columns of a ``Row``."""
        joined = timer.join(payload, payload.c.id == timer.c.id)
        names: list[BindParameter[str]] = [bindparam(f"task_{n}") for n in range(KEY_PLACES)]
        rest: ColumnElement[int] = literal_column(str(REST))
        here = and_(timer.c.shard == bindparam("shard"), timer.c.task_id.in_(names), timer.c.lane == rest)
        stopped = joined.join(outcome, outcome.c.timer_id == timer.c.id)
        found = select(timer.c.task_id, outcome.c.kind, *row).select_from(stopped).where(here)
        self.set_aside = self._prepare(found.order_by(outcome.c.at_ms, outcome.c.id))
        ids: list[BindParameter[int]] = [bindparam(f"row_{n}") for n in range(KEY_PLACES)]
        numbered = and_(timer.c.shard == bindparam("shard"), timer.c.id.in_(ids))
        self.rows = self._prepare(select(*row).select_from(joined).where(numbered))

    def _gates(self) -> None:
        new = self._set(gate, ["shard", "scope", "name"], ["state", "per_ms", "reason", "actor", "at_ms"])
        self.set_gate = Filling(new, "shard")
        place = [gate.c[name] == bindparam(f"at_{name}") for name in ("shard", "scope", "name")]
        self.open_gate = self._prepare(delete(gate).where(*place))
        gates = select(*columns_of(Gate, gate)).where(gate.c.shard == bindparam("shard"))
        self.gates = self._prepare(gates.order_by(gate.c.id))

    def _set(self, table: Any, place: list[str], values: list[str]) -> Prepared:
        """A row for a place, which takes over the place of one that is there."""
        new = self._insert_or(table).inline().values(_places(*place, *values))
        taken = {name: new.excluded[name] for name in values}
        return self._prepare(new.on_conflict_do_update(index_elements=place, set_=taken))


def _places(*names: str) -> dict[str, BindParameter[Any]]:
    return {name: bindparam(name) for name in names}
