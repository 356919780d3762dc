"""The statements of ``forget``: the oldest history, and its removal."""

from __future__ import annotations

from sqlalchemy import BindParameter, and_, bindparam, delete, exists, or_, select

from celery_wheel.store.sql.schema import batch, lane, outcome, payload, tally, timer
from celery_wheel.store.sql.statements.archive import ArchiveStatements
from celery_wheel.store.sql.statements.clauses import BATCH_RANGE, IN_PLACES, StatementFactory, held, in_range


class ForgetStatements(StatementFactory):
    """A part of ``Statements``."""

    def _prepare_forget(self) -> None:
        gone: list[BindParameter[int]] = [bindparam(f"gone_{n}") for n in range(IN_PLACES)]
        self.archive = ArchiveStatements(self._prepare, held(), in_range(), gone)
        oldest = select(*BATCH_RANGE).where(batch.c.shard == bindparam("shard")).order_by(batch.c.id)
        self.oldest_batches = self._prepare(oldest.limit(bindparam("limit")))
        ids = select(timer.c.id).where(in_range()).order_by(timer.c.due_ms, timer.c.seq)
        self.ids_in_range = self._prepare(ids.limit(bindparam("limit")))
        self.forget_timer = self._prepare(delete(timer).where(timer.c.id == bindparam("gone")))
        self.forget_payload = self._prepare(delete(payload).where(payload.c.id == bindparam("gone")))
        self.forget_outcome = self._prepare(delete(outcome).where(outcome.c.timer_id == bindparam("gone")))
        self.forget_batch = self._prepare(delete(batch).where(batch.c.id == bindparam("gone")))
        self.forget_tally = self._prepare(
            delete(tally).where(tally.c.shard == bindparam("shard"), tally.c.pending == 0)
        )
        left = [exists().where(one.c.shard == lane.c.shard, one.c.lane == lane.c.lane) for one in (timer, batch)]
        empty = and_(lane.c.shard == bindparam("shard"), lane.c.closed, ~or_(*left))
        self.forget_lanes = self._prepare(delete(lane).where(empty))
