"""Stats: the counts of an engine, and the snapshot that it writes to the store with each renewal of its lease.

``celery_wheel.metrics`` shows the counts and the histograms; the snapshot has the counts alone.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.histogram import Histogram, LatenessByTask
from celery_wheel.engine.recent import Recent
from celery_wheel.engine.rejections import Rejections
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import Change, Row
from celery_wheel.timing import Level
from celery_wheel.values import __version__

#: Tasks whose lateness a snapshot sums up: those dispatched last.
RECENT = 200


@dataclass
class Stats:
    """Counts since this engine was made; ``late_ms_max`` is of the time since the last snapshot."""

    accepted: int = 0
    known: int = 0  #: arrivals that were in the store already
    refused: int = 0  #: by a queue that may accept the message later
    rejected: int = 0
    rejected_unreadable: int = 0  #: of these, the messages that cannot be read
    rejected_unique: int = 0  #: of these, the tasks whose unique key another pending task has
    expired: int = 0  #: later than their misfire option allows
    cancelled: int = 0
    moved: int = 0
    completed: int = 0  #: by a key, whether cancelled or run at once
    dispatched: int = 0
    redelivered: int = 0  #: of these, published with the mark that they may be second copies
    forgotten: int = 0
    adoptions: int = 0
    rollbacks: int = 0  #: lanes on which the broker was found to have lost writes
    emptied: int = 0  #: times the broker was found to have lost everything
    guard_trips: int = 0
    schedule_errors: int = 0  #: tries to make a message of a schedule that failed in code of the project
    process_ends: int = 0  #: of the scheduler's other processes, unexpectedly; in the counts of shard 0
    broker_errors: int = 0
    store_errors: int = 0
    late_ms_max: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._late_ms = deque[int](maxlen=RECENT)
        self.stuck_jobs: Callable[[], list[str]] = list  #: of the process, as its pool sees them
        self.sources: dict[str, object] = {}  #: of schedules, as the scheduler reports them
        self.lateness = LatenessByTask()
        self.rejections = Rejections()
        self.publishes = Histogram()
        self.commits: dict[str, Histogram] = {}  #: by what was committed: ``accept``, ``settle`` or ``change``
        self.schedule_last_ms = 0  #: latest instant of a schedule that became a row
        self.skipped = Counter[str]()  #: instants of schedules that were skipped, by reason
        self._began_ms: int | None = None  #: the first snapshot, by which the holder of the counts has just begun
        self._recent = Recent()

    def add(self, **counts: int) -> None:
        """Add to counts by name, under a lock: several threads count, and ``+=`` alone loses increments."""
        with self._lock:
            for name, n in counts.items():
                setattr(self, name, getattr(self, name) + n)

    def dispatched_chunk(self, rows: Sequence[Row], failed: int, redelivered: bool, now_ms: int) -> None:
        dispatched = len(rows) - failed
        self.add(dispatched=dispatched, rejected=failed, redelivered=dispatched * redelivered)
        with self._lock:
            self._late_ms.extend([max(0, now_ms - row.eta_ms) for row in rows[-RECENT:]])
            self.late_ms_max = max(self.late_ms_max, self.lateness.add(rows, now_ms))

    def committed(self, change: Change, took_ms: int) -> None:
        op = "accept" if change.rows or change.blocks else "settle" if change.batches else "change"
        with self._lock:
            self.commits.setdefault(op, Histogram()).add(took_ms)
            self.schedule_last_ms = max([self.schedule_last_ms, *(run.instant_ms for run in change.runs)])
            for skip in change.skips:
                self.skipped[skip.reason] += abs(skip.count)

    def snapshot(self, state: ShardState, clock: DueClock, now_ms: int) -> dict[str, object]:
        """Return plain data for JSON. The caller holds the state's lock."""
        window = state.window
        with self._lock:
            counts: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
            self.late_ms_max = 0
            late = _lateness(sorted(self._late_ms))
            if self._began_ms is None:
                self._began_ms = now_ms
            recent = self._recent.add(now_ms, self.accepted, self.dispatched, late)
        return {
            **counts,
            "began_ms": self._began_ms,
            "recent": recent,
            "version": __version__,
            "sources": self.sources,
            "stuck_jobs": self.stuck_jobs(),
            "at_ms": now_ms,
            "late": late,
            "clock_disputed_ms": clock.disputed_ms,
            "clock_skew_ms": clock.skew_ms,
            "window_count": len(window.rows),
            "window_bytes": window.bytes,
            "next_due_ms": state.next_due_ms(),
            "lanes_asleep": len(state.lanes.all) - len(state.lanes.awake),
            "lanes": [_lane(lane) for lane in state.lanes],
            "levels": [_level(level) for level in window.wheel.levels()],
        }


def _lateness(late_ms: Sequence[int]) -> dict[str, int] | None:
    """Return count, median, 99th percentile (nearest rank) and maximum of sorted figures; None without any."""
    if not late_ms:
        return None
    count = len(late_ms)
    ranks = {f"p{percent}_ms": late_ms[-(-count * percent // 100) - 1] for percent in (50, 99)}
    return {"count": count, **ranks, "max_ms": late_ms[-1]}


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
