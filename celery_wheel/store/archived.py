"""How far a shard's history is in an archive, how far it was forgotten, and what may go once it is archived.

::

    number   ──────────────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                  forgotten         archived                    seq
                  │                 └ all up to it is in an archive: raised by whoever archives: ``archive_marks``
                  └ the highest of those of which something is no more: raised by ``history``

With ``wheel_history_archive`` a row goes only when every event of it is archived:

    its settlement        its number is not beyond the mark
    a later settlement    of the same positions, as after a rollback of the broker: ``Floors``, the lowest position of
                          each lane from which something left whose number is beyond the mark
    its outcomes          none has a number beyond the mark of its shard, which is another than the row's where the
                          store was resharded in between

``forgotten`` is what an archive, or whoever else reads on from where it was, knows a loss by, exactly: it had all up to
n, and what was beyond n is no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, bindparam, case, exists, func, select, update

from celery_wheel.store.model import Position
from celery_wheel.store.prepared import Prepared
from celery_wheel.store.schema import batch, outcome, shard, timer


class Archived:
    """The statements. ``held``: the shard's row, at the holder's epoch; ``in_range``: rows of a range of positions."""

    def __init__(
        self,
        prepare: Callable[[Any], Prepared],
        held: ColumnElement[bool],
        in_range: ColumnElement[bool],
        timers: Sequence[Any],
    ) -> None:
        self.marks = prepare(select(shard.c.history_bytes, shard.c.archived, shard.c.seq).where(held))
        beyond = outcome.join(shard, and_(shard.c.shard == outcome.c.shard, outcome.c.id > shard.c.archived))
        waits = exists().select_from(beyond).where(outcome.c.timer_id == timer.c.id)
        ids = select(timer.c.id, waits.label("waits")).where(in_range).order_by(timer.c.due_ms, timer.c.seq)
        self.ids_in_range = prepare(ids.limit(bindparam("limit")))
        of_shard = batch.c.shard == bindparam("shard")
        order = (batch.c.from_due_ms, batch.c.from_seq)
        nth = func.row_number().over(partition_by=batch.c.lane, order_by=order).label("nth")
        beyond_mark = select(batch.c.lane, *order, nth).where(of_shard, batch.c.id > bindparam("after")).subquery()
        columns = (beyond_mark.c.lane, beyond_mark.c.from_due_ms, beyond_mark.c.from_seq)
        self.floors = prepare(select(*columns).where(beyond_mark.c.nth == 1))
        self.last_outcome = prepare(select(func.max(outcome.c.id)).where(of_outcome(timers)))
        number: Any = bindparam("number", type_=BigInteger)
        higher = case((shard.c.forgotten < number, number), else_=shard.c.forgotten)
        self.forgotten = prepare(update(shard).where(held).values(forgotten=higher))


def of_outcome(timers: Sequence[Any]) -> ColumnElement[bool]:
    return and_(outcome.c.shard == bindparam("shard"), outcome.c.timer_id.in_(timers))


@dataclass(slots=True)
class _Seen:
    mark: int
    upto: int
    lowest: dict[int, Position] = field(default_factory=dict)


class Floors:
    """Of each lane the lowest position from which something left that is not archived.

    Asked in every transaction that forgets, and there may be a million settlements since the archive was last written:
    so they are looked at once. That is right since numbers are in the order of commits.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def of(self, connection: Connection, statements: Archived, shard: int, mark: int, last: int) -> dict[int, Position]:
        """``last``: the highest number there is, under the shard's lock."""
        seen = self._seen.get(shard)
        if seen is None or seen.mark != mark:
            seen = _Seen(mark, mark)
        lowest = dict(seen.lowest)
        for lane, *place in statements.floors(connection, shard=shard, after=seen.upto):
            lowest[lane] = min(Position(*place), lowest.get(lane, Position(*place)))
        self._seen[shard] = _Seen(mark, last, lowest)
        return lowest
