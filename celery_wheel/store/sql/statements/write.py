"""The statements of ``apply``, for the parts of a change; and those that fill the inbox."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import BigInteger, and_, bindparam, delete, false, func, insert, true, update

from celery_wheel.store.model import NewRow
from celery_wheel.store.sql.fields import ObjectInsert
from celery_wheel.store.sql.schema import batch, inbox, lane, outcome, payload, tally, timer
from celery_wheel.store.sql.statements.clauses import StatementFactory

#: Prefixes of a batch's columns, with the attributes that they are of.
ENDS = (("from", "from_"), ("to", "to"))


class WriteStatements(StatementFactory):
    """A part of ``Statements``."""

    def _prepare_write(self) -> None:
        new = {one.name for one in fields(NewRow)}
        inner = {name: f"message.{name}" for name in (*timer.c.keys(), *payload.c.keys()) if name not in new}
        self.add_timer = ObjectInsert(self._bulk(timer), "shard", "envelope_id", **inner)
        self.add_payload = ObjectInsert(self._bulk(payload), **inner)
        self.add_outcome = ObjectInsert(self._bulk(outcome), "shard")
        ends = {f"{end}_{half}": f"{attribute}.{half}" for end, attribute in ENDS for half in ("due_ms", "seq")}
        self.add_batch = ObjectInsert(self._bulk(batch), "shard", "epoch", **ends)
        move = (
            update(timer)
            .where(timer.c.id == bindparam("moved"), timer.c.shard == bindparam("at_shard"))
            .values(
                lane=bindparam("lane"),
                due_ms=bindparam("due_ms"),
                seq=bindparam("seq"),
                eta_ms=func.coalesce(bindparam("eta_ms", type_=BigInteger), timer.c.eta_ms),
            )
        )
        self.move = ObjectInsert(self._prepare(move), "at_shard", moved="id")
        columns = [
            "shard",
            "lane",
            "offset_due_ms",
            "offset_seq",
            "watermark_due_ms",
            "watermark_seq",
            "target",
            "redelivered",
            "scope",
        ]
        new = self._insert_or(lane).inline().values(closed=false(), **{name: bindparam(name) for name in columns})
        places = {name: new.excluded[name] for name in (*columns[2:], "closed")}
        set_lane = self._prepare(new.on_conflict_do_update(index_elements=columns[:2], set_=places))
        halves = {f"{end}_{half}": f"{end}.{half}" for end in ("offset", "watermark") for half in ("due_ms", "seq")}
        self.set_lane = ObjectInsert(set_lane, "shard", **halves)
        closed = and_(lane.c.shard == bindparam("at_shard"), lane.c.lane == bindparam("at_lane"))
        self.close_lane = self._prepare(update(lane).where(closed).values(closed=true()))
        columns = ["shard", "hour", "queue", "task", "pending"]
        new = self._insert_or(tally).inline().values({name: bindparam(name) for name in columns})
        total = {"pending": tally.c.pending + new.excluded.pending}
        self.add_tally = self._prepare(new.on_conflict_do_update(index_elements=columns[:4], set_=total))
        self.delete_item = self._prepare(
            delete(inbox).where(inbox.c.id == bindparam("item"), inbox.c.shard == bindparam("at_shard"))
        )
        values: dict[str, Any] = {name: bindparam(name) for name in ("shard", "kind", "payload")}
        self.put_inbox = self._bulk(inbox, insert(inbox).inline().values(values))
