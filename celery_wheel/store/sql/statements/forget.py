"""The statements of ``forget``: the oldest history, and its removal."""

from __future__ import annotations

from sqlalchemy import BindParameter, ScalarSelect, Table, and_, bindparam, delete, select

from celery_wheel.store.sql.schema import batch, lane, outcome, tally, timer, total
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
        self.forget_outcome = self._prepare(delete(outcome).where(outcome.c.timer_id == bindparam("gone")))
        self.forget_batch = self._prepare(delete(batch).where(batch.c.id == bindparam("gone")))
        self.forget_tally = self._prepare(
            delete(tally).where(tally.c.shard == bindparam("shard"), tally.c.pending == 0)
        )
        place = (total.c.kind == bindparam("kind"), total.c.number < bindparam("before"))
        self.forget_total = self._prepare(
            delete(total).where(*place, total.c.shard == bindparam("shard"), total.c.pending == 0)
        )
        empty = [_first(timer, "due_ms", "seq").is_(None), _first(batch, "to_due_ms", "to_seq").is_(None)]
        self.forget_lanes = self._prepare(delete(lane).where(lane.c.shard == bindparam("shard"), lane.c.closed, *empty))


def _first(table: Table, *position: str) -> ScalarSelect[int]:
    """Return the first row's position in the lane of the outer statement.

    An ``EXISTS`` may read any index: once PostgreSQL knows that all rows are in another lane of the shard, it looks for
    the rows of an empty lane by the shard alone, among two million. The order leaves it the index of positions.
    """
    of_lane = and_(table.c.shard == lane.c.shard, table.c.lane == lane.c.lane)
    order = [table.c[name] for name in position]
    return select(order[0]).where(of_lane).order_by(*order).limit(1).scalar_subquery()
