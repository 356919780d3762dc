"""The values of ``Browse.overview``, of which ``celery_wheel.overview`` makes an ``Overview``, and ``Browse.size``."""

from __future__ import annotations

from typing import NamedTuple

from celery_wheel.store.model import Gate, LaneState, ShardRecord


class ShardHead(NamedTuple):
    record: ShardRecord
    inbox: int  #: messages and requests in the first thousand items of its inbox


class LaneHead(NamedTuple):
    """An open lane."""

    shard: int
    state: LaneState
    next_due_ms: int | None  #: of its first pending row
    overdue: int  #: pending rows that are due; at most a thousand are counted


class Disk(NamedTuple):
    """A file system, in bytes; ``free`` is what this process may still use of it."""

    total: int
    free: int


class StoreSize(NamedTuple):
    """The bytes of a store; ``disk`` is None where the file system is another machine's."""

    bytes: int
    disk: Disk | None


class OverviewRows(NamedTuple):
    """Counts are of pending messages; hours, days and seconds are numbers since 1970."""

    shards: list[ShardHead]
    lanes: list[LaneHead]
    gates: list[tuple[int, Gate]]  #: with their shards
    pending: dict[int, int]  #: by shard
    names: dict[tuple[str, str], int]  #: by queue and task
    hours: dict[int, int]  #: all hours up to the end of the second day from now
    days: dict[int, int]
    seconds: dict[int, int] | None  #: of the next hour; None where they were not asked for
    schedulers: dict[str, int]  #: name → its last sign of life
