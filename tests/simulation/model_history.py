"""A shard's data in a model store, with its history and the rules of ``celery_wheel.store.sql.history``."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from celery_wheel.store.model import (
    ORIGIN,
    SHARD_BITS,
    STOPPED,
    Answer,
    Batch,
    Gate,
    InboxItem,
    LaneState,
    Message,
    Outcome,
    Position,
    Row,
    TallyKey,
    Tombstone,
    Unreadable,
    Watch,
)
from celery_wheel.store.ports import Retention
from celery_wheel.store.schedule_model import Revision, Run, Schedule, Skip


@dataclass
class StoredRow:
    row: Row
    accepted_ms: int
    message: Message | Unreadable


@dataclass
class ShardData:
    epoch: int = 0
    holder: str | None = None
    owner: object = None
    lease_until_ms: int = 0
    seq: int = 0
    snapshot: dict[str, object] | None = None
    snapshot_at_ms: int | None = None
    rows: dict[int, StoredRow] = field(default_factory=dict)
    forgotten: dict[int, StoredRow] = field(
        default_factory=dict
    )  #: for the oracles: a real store has removed these rows
    forgotten_outcomes: list[Outcome] = field(default_factory=list)  #: outcomes of the forgotten rows
    #: lane → sorted positions with their row id
    order: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    envelopes: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, LaneState] = field(default_factory=lambda: {0: LaneState(0, ORIGIN, ORIGIN)})
    closed: set[int] = field(default_factory=set)  #: of the lanes
    batches: list[Batch] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    tally: dict[TallyKey, int] = field(default_factory=dict)
    inbox: dict[int, InboxItem] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    watches: list[Watch] = field(default_factory=list)
    gates: dict[tuple[str, str], Gate] = field(default_factory=dict)
    schedules: dict[int, Schedule] = field(default_factory=dict)
    revisions: list[Revision] = field(default_factory=list)
    runs: dict[int, Run] = field(default_factory=dict)  #: by timer; the oracles read those of forgotten timers, too
    skips: list[Skip] = field(default_factory=list)


def ids_in(data: ShardData, lane: int, after: Position, upto: Position) -> list[int]:
    order = data.order.get(lane, [])
    low = bisect.bisect_right(order, (*after, 2**64))
    high = bisect.bisect_right(order, (*upto, 2**64))
    return [row_id for _, _, row_id in order[low:high]]


def forget(data: ShardData, keep: Retention, limit: int, archives: Mapping[int, int]) -> int:
    """``archives``: shard → number up to which an archive has every change."""
    archived = archives if keep.archived_only else None
    gone = 0
    for batch in sorted(data.batches, key=lambda batch: batch.id):
        over = sum(batch.bytes for batch in data.batches) > keep.max_bytes
        if gone >= limit or not (batch.dispatched_ms < keep.before_ms or over):
            break
        if archived is not None and not _archived(data, batch, archived):
            break
        end = min(batch.to, data.lanes[batch.lane].offset)
        if end > keep.upto.get(batch.lane, end):
            break
        ids = ids_in(data, batch.lane, batch.from_, end)
        free = _free(data, ids, archived)[: limit - gone]
        _remove(data, free)
        gone += len(free)
        if len(free) < len(ids):
            break
        data.batches.remove(batch)
    resting = ids_in(data, STOPPED, ORIGIN, Position(keep.before_ms, 0))
    free = _free(data, resting, archived)[: max(0, limit - gone)]
    _remove(data, free)
    for number in data.closed - {batch.lane for batch in data.batches}:
        if not data.order.get(number):
            data.closed.remove(number)
            del data.lanes[number]
    return gone + len(free)


def _archived(data: ShardData, batch: Batch, archived: Mapping[int, int]) -> bool:
    """Whether an archive has a batch, and every later batch of the same positions."""
    beyond = [one for one in data.batches if one.id > archived.get(one.id & (1 << SHARD_BITS) - 1, 0)]
    return batch not in beyond and all(one.from_ >= batch.to for one in beyond if one.lane == batch.lane)


def _free(data: ShardData, ids: Sequence[int], archived: Mapping[int, int] | None) -> list[int]:
    """Return the rows that may be removed, up to the first that may not."""
    if archived is None:
        return list(ids)
    beyond = {one.timer_id for one in data.outcomes if one.id > archived.get(one.id & (1 << SHARD_BITS) - 1, 0)}
    return list(takewhile(lambda row_id: row_id not in beyond, ids))


def _remove(data: ShardData, ids: Sequence[int]) -> None:
    for row_id in ids:
        stored = data.forgotten[row_id] = data.rows.pop(row_id)
        row = stored.row
        data.watches = [one for one in data.watches if one.timer_id != row_id]
        data.order[row.lane].remove((row.due_ms, row.seq, row.id))
        del data.envelopes[stored.message.envelope_id]
        data.forgotten_outcomes += [outcome for outcome in data.outcomes if outcome.timer_id == row_id]
        data.outcomes = [outcome for outcome in data.outcomes if outcome.timer_id != row_id]
