"""Rows of the tables of shards and lanes as values."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import LaneState, Position, ShardRecord
from celery_wheel.store.sql.statements import Statements


def read_lanes(connection: Connection, statements: Statements, shard: int, *, closed: bool = False) -> list[LaneState]:
    """Return the shard's open lanes, in order of their numbers; with ``closed``, the closed lanes too.

    They are read on a connection: as every other statement of its transaction sees them.
    """
    return [lane_state(row) for row in (statements.all_lanes if closed else statements.lanes)(connection, shard=shard)]


def lane_state(row: Any) -> LaneState:
    return LaneState(
        row.lane,
        Position(row.offset_due_ms, row.offset_seq),
        Position(row.watermark_due_ms, row.watermark_seq),
        row.target,
        bool(row.redelivered),
        row.scope,
    )


def shard_record(row: Any) -> ShardRecord:
    """Return the record of a shard's row, with the levels in the snapshot where they were read."""
    snapshot = None if row.snapshot is None else json.loads(row.snapshot)
    if snapshot is not None and row.levels is not None:
        snapshot["levels"] = json.loads(row.levels)
    return ShardRecord(row.shard, row.epoch, row.holder, row.lease_until_ms, row.seq, snapshot, row.snapshot_at_ms)
