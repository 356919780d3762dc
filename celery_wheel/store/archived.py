"""How far a shard's history is in an archive, how far it was forgotten, and what may go once it is archived.

::

    number   ──────────────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                  forgotten         archived                    seq
                  │                 └ all up to it is in an archive: raised by ``Maintenance.note_archived``
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

from dataclasses import dataclass, field

from sqlalchemy import Connection

from celery_wheel.store.model import Position
from celery_wheel.store.statements.archiving import Archived


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
