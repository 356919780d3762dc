"""The marks of a shard's archive: how far history is archived and forgotten, and which history may be forgotten.

::

    number   ──────────────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                  forgotten         archived                    seq
                  │                 └ an archive has all events up to it: raised by ``Maintenance.note_archived``
                  └ the highest number of an event that was forgotten, wholly or in part: raised by ``forget``

With ``wheel_history_archive`` a row is forgotten only when every event of it is archived:

    its settlement        has a number up to the mark
    a later settlement    of the same positions, after a rollback of the broker: ``ArchiveFloors`` has, for each lane,
                          the lowest position of a settlement beyond the mark
    its outcomes          have numbers up to the mark of their shard, which is not the row's where the store was
                          resharded in between

``forgotten`` tells an archive of a loss, exactly: an archive that has all events up to n lacks events that were
forgotten where ``forgotten`` is beyond n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

from celery_wheel.store.model import Position
from celery_wheel.store.sql.statements.archive import ArchiveStatements


@dataclass(slots=True)
class _ArchiveMark:
    mark: int
    upto: int
    lowest: dict[int, Position] = field(default_factory=dict)


class ArchiveFloors:
    """For each lane, the lowest position of a settlement that is not archived.

    Every transaction of ``forget`` needs the floors, and a million settlements may follow the archive's mark, so each
    settlement is read once. One reading is enough, since numbers are in the order of commits.
    """

    def __init__(self) -> None:
        self._marks: dict[int, _ArchiveMark] = {}

    def of(
        self, connection: Connection, statements: ArchiveStatements, shard: int, mark: int, last: int
    ) -> dict[int, Position]:
        """Return lane → floor. ``last`` is the highest number, read under the shard's lock."""
        known = self._marks.get(shard)
        if known is None or known.mark != mark:
            known = _ArchiveMark(mark, mark)
        lowest = dict(known.lowest)
        for lane, *place in statements.floors(connection, shard=shard, after=known.upto):
            lowest[lane] = min(Position(*place), lowest.get(lane, Position(*place)))
        self._marks[shard] = _ArchiveMark(mark, last, lowest)
        return lowest
