"""The statements of ``apply``, for the parts of a change; and those that fill the inbox."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Table,
    and_,
    bindparam,
    delete,
    false,
    func,
    insert,
    select,
    true,
    update,
)

from celery_wheel.store.route import Route
from celery_wheel.store.sql.fields import ObjectInsert
from celery_wheel.store.sql.schema import batch, dictionary, inbox, lane, outcome, route, tally, timer, total
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.statements.clauses import StatementFactory

#: Routes of one statement; most commits have a few.
ROUTE_PLACES = 50

#: Prefixes of a batch's columns, with the attributes that they are of.
ENDS = (("from", "from_"), ("to", "to"))


class WriteStatements(StatementFactory):
    """A part of ``Statements``."""

    def _prepare_write(self) -> None:
        self.add_timer = self._bulk(timer)
        self._prepare_catalogue()
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
        self.add_tally = self._add_to(tally, "shard", "hour", "route")
        self.add_total = self._add_to(total, "kind", "number", "shard")
        self.delete_item = self._prepare(
            delete(inbox).where(inbox.c.id == bindparam("item"), inbox.c.shard == bindparam("at_shard"))
        )
        values: dict[str, Any] = {name: bindparam(name) for name in ("shard", "kind", "payload", "rows")}
        self.put_inbox = self._bulk(inbox, insert(inbox).inline().values(values))

    def _add_to(self, counts: Table, *place: str) -> Prepared:
        new = self._insert_or(counts).inline().values({name: bindparam(name) for name in (*place, "pending")})
        added = {"pending": counts.c.pending + new.excluded.pending}
        return self._prepare(new.on_conflict_do_update(index_elements=place, set_=added))

    def _prepare_catalogue(self) -> None:
        digests: list[BindParameter[bytes]] = [bindparam(f"digest_{n}") for n in range(ROUTE_PLACES)]
        self.routes = self._prepare(select(route.c.digest, route.c.id).where(route.c.digest.in_(digests)))
        columns = ["digest", *Route.__slots__, "target"]
        new = self._insert_or(route).inline().values({name: bindparam(name) for name in columns})
        self.add_route = self._prepare(new.on_conflict_do_nothing(index_elements=["digest"]))
        values: dict[str, Any] = {name: bindparam(name) for name in ("made_ms", "content")}
        self.add_dictionary = self._prepare(insert(dictionary).values(values).returning(dictionary.c.id))
