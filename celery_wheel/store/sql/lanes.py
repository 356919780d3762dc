"""The lanes of a shard, read on a connection: as every other statement of its transaction sees them."""

from __future__ import annotations

from sqlalchemy import Connection

from celery_wheel.store.model import LaneState, Position
from celery_wheel.store.sql.statements import Statements


def read_lanes(connection: Connection, statements: Statements, shard: int, *, closed: bool = False) -> list[LaneState]:
    """Return the shard's open lanes, in order of their numbers; with ``closed``, the closed lanes too."""
    rows = (statements.all_lanes if closed else statements.lanes)(connection, shard=shard).all()
    return [
        LaneState(
            row.lane,
            Position(row.offset_due_ms, row.offset_seq),
            Position(row.watermark_due_ms, row.watermark_seq),
            row.target,
            bool(row.redelivered),
            row.scope,
        )
        for row in rows
    ]
