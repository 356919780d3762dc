"""Stats: the counts of an engine, and the snapshot that it writes to the store with each renewal of its lease."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields

from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import Row
from celery_wheel.timing import Level
from celery_wheel.values.version import __version__


@dataclass
class Stats:
    """Counts since this engine was made; ``late_ms_max`` is of the time since the last snapshot."""

    accepted: int = 0
    known: int = 0  #: arrivals that were in the store already
    refused: int = 0  #: by a queue that may accept the message later
    rejected: int = 0
    cancelled: int = 0
    moved: int = 0
    completed: int = 0  #: by a key, whether cancelled or run at once
    dispatched: int = 0
    forgotten: int = 0
    adoptions: int = 0
    rollbacks: int = 0  #: lanes on which the broker was found to have lost writes
    guard_trips: int = 0
    process_ends: int = 0  #: of the scheduler's other processes, unexpectedly; in the counts of shard 0
    broker_errors: int = 0
    store_errors: int = 0
    late_ms_max: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.sources: dict[str, object] = {}  #: of schedules, as the scheduler reports them

    def add(self, **counts: int) -> None:
        """Add to counts by name, under a lock: several threads count, and ``+=`` alone loses increments."""
        with self._lock:
            for name, n in counts.items():
                setattr(self, name, getattr(self, name) + n)

    def dispatched_chunk(self, rows: Sequence[Row], failed: int, now_ms: int) -> None:
        self.add(dispatched=len(rows) - failed, rejected=failed)
        if rows:
            with self._lock:
                self.late_ms_max = max(self.late_ms_max, now_ms - min([row.eta_ms for row in rows]))

    def snapshot(self, state: ShardState, clock: DueClock, now_ms: int) -> dict[str, object]:
        """Return plain data for JSON. The caller holds the state's lock."""
        window = state.window
        with self._lock:
            counts: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
            self.late_ms_max = 0
        return {
            **counts,
            "version": __version__,
            "sources": self.sources,
            "at_ms": now_ms,
            "clock_disputed_ms": clock.disputed_ms,
            "clock_skew_ms": clock.skew_ms,
            "window_count": len(window.rows),
            "window_bytes": window.bytes,
            "next_due_ms": state.next_due_ms(),
            "lanes_asleep": len(state.lanes.all) - len(state.lanes.awake),
            "lanes": [_lane(lane) for lane in state.lanes],
            "levels": [_level(level) for level in window.wheel.levels()],
        }


def _lane(lane: Lane) -> dict[str, object]:
    return {
        "lane": lane.number,
        "offset": lane.offset,
        "watermark": lane.watermark,
        "horizon": lane.horizon,
        "ready": len(lane.ready),
    }


def _level(level: Level) -> dict[str, object]:
    return {
        "level": level.number,
        "tick_ms": level.tick_ms,
        "interval_ms": level.interval_ms,
        "current_time_ms": level.current_time_ms,
        "pending": level.pending,
        "buckets": [
            {"index": bucket.index, "expiration_ms": bucket.expiration_ms, "pending": bucket.pending}
            for bucket in level.buckets
        ],
    }
