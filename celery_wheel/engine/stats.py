"""Stats: the counts of an engine, and the snapshot that it writes to the store each second.

``celery_wheel.metrics`` shows the counts and the histograms; the snapshot has the counts alone. The clock's
milliseconds are whole: a duration below one counts as 0 or 1 ms, and sums are right on average.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import NamedTuple

from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import Change, Route, Row
from celery_wheel.timing import Level
from celery_wheel.values import __version__
from celery_wheel.values.log import get_logger

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
    rejected_signature: int = 0  #: of these, the tasks whose messages have no signature
    rejected_destination: int = 0  #: of these, the tasks whose destination wheel_destinations does not name
    unsigned: int = 0  #: messages of the wheel queue without a signature, where keys are set
    expired: int = 0  #: later than their misfire option allows
    cancelled: int = 0
    moved: int = 0
    released: int = 0  #: from a line, to be published
    slots_reported: int = 0  #: slots of groups whose end a worker has reported, some after max_runtime
    slots_timed_out: int = 0  #: slots of groups that ended by max_runtime
    completed: int = 0  #: by a key, whether cancelled or run at once
    dispatched: int = 0
    redelivered: int = 0  #: of these, published with the mark that they may be second copies
    forgotten: int = 0
    adoptions: int = 0
    rollbacks: int = 0  #: lanes on which the broker was found to have lost writes
    emptied: int = 0  #: times the broker was found to have lost everything
    store_lost: int = 0  #: messages that the store had accepted and lacks, since it was rolled back
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
        op = "accept" if change.rows or change.blocks else "settle" if change.settlements else "change"
        with self._lock:
            self.commits.setdefault(op, Histogram()).add(took_ms)
            self.schedule_last_ms = max([self.schedule_last_ms, *(run.at_ms for run in change.runs)])
            for skip in change.skips:
                self.skipped[skip.reason] += abs(skip.count)

    def snapshot(
        self, state: ShardState, clock: DueClock, now_ms: int, groups: dict[str, object] | None
    ) -> dict[str, object]:
        """Return plain data for JSON; ``groups`` are the figures of ``state``. The caller holds the state's lock."""
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
            "groups": groups,
            "repacked": state.repacked,
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


#: The upper ends of the buckets.
LATENESS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
DURATION_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)

#: Pairs of task and queue with a histogram of their own; all later pairs share the histogram of OTHER.
MAX_NAMES = 200
OTHER = "_other"

#: Routes that a ``LatenessByTask`` knows by identity; very many differ in their routing keys alone.
MAX_ROUTES = 10_000

Names = tuple[str, str]  #: task and queue


class Histogram:
    """Counts by bucket; ``counts`` has one item more than ``bounds_ms``, for all longer durations."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[int] = DURATION_MS) -> None:
        self.bounds_ms = bounds_ms
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        self.counts[bisect_left(self.bounds_ms, duration_ms)] += 1
        self.sum_ms += duration_ms

    def cumulative(self) -> Iterator[tuple[float | None, int]]:
        """Yield the upper end of each bucket in seconds, with the count up to it; None is the end of the last."""
        ends_s = [bound_ms / 1_000 for bound_ms in self.bounds_ms]
        return zip([*ends_s, None], accumulate(self.counts), strict=True)

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms


class LatenessByTask:
    """The time from a message's eta to its publish, by task and queue."""

    def __init__(self) -> None:
        self.by_names: dict[Names, Histogram] = {}
        self._by_route: dict[Route, Histogram] = {}

    def add(self, rows: Iterable[Row], now_ms: int) -> int:
        """Add the rows of a chunk; returns the highest lateness, never negative: a broker may get them early."""
        by_route, highest_ms = self._by_route, 0
        for row in rows:
            late_ms = now_ms - row.eta_ms if now_ms > row.eta_ms else 0
            highest_ms = late_ms if late_ms > highest_ms else highest_ms
            histogram = by_route.get(row.route) or self._histogram_of(row.route)
            histogram.counts[bisect_left(LATENESS_MS, late_ms)] += 1
            histogram.sum_ms += late_ms
        return highest_ms

    def merge(self, other: LatenessByTask) -> None:
        for names, histogram in list(other.by_names.items()):
            self._named(names).merge(histogram)

    def _histogram_of(self, route: Route) -> Histogram:
        if len(self._by_route) >= MAX_ROUTES:
            self._by_route.clear()
        found = self._by_route[route] = self._named((route.task, route.target))
        return found

    def _named(self, names: Names) -> Histogram:
        if names not in self.by_names and len(self.by_names) >= MAX_NAMES:
            names = OTHER, OTHER
        return self.by_names.setdefault(names, Histogram(LATENESS_MS))


SPAN_MS = 20_000
#: Spans that are kept: the present one, and those of ten minutes.
SPANS = 31


class RecentSpan(NamedTuple):
    """One span: tasks accepted and dispatched in it, and the lateness of its last dispatched tasks."""

    begins_ms: int
    accepted: int
    dispatched: int
    p50_ms: int | None = None  #: None where no task was dispatched
    p99_ms: int | None = None


class Recent:
    """The last spans. ``begins_ms`` of a span is a multiple of ``SPAN_MS``, so that spans of several holders match."""

    def __init__(self) -> None:
        self._spans = deque[RecentSpan](maxlen=SPANS)
        self._before = (0, 0)  #: tasks accepted and dispatched before the present span
        self._seen = (0, 0)

    def add(self, now_ms: int, accepted: int, dispatched: int, late: dict[str, int] | None) -> list[RecentSpan]:
        """Bring the present span up to date, from the totals so far; return all spans."""
        begins_ms = now_ms - now_ms % SPAN_MS
        if self._spans and self._spans[-1].begins_ms == begins_ms:
            self._spans.pop()
        else:
            self._before = self._seen
        self._seen = accepted, dispatched
        counts = accepted - self._before[0], dispatched - self._before[1]
        lateness = (late["p50_ms"], late["p99_ms"]) if late is not None and counts[1] else ()
        self._spans.append(RecentSpan(begins_ms, *counts, *lateness))
        return list(self._spans)


logger = get_logger(__name__)

LOG_EVERY_MS = 10_000

UNREADABLE, BY_UNIQUE, BY_BROKER, OF_ANOTHER = "unreadable", "unique", "broker", "id"
BY_DESTINATION, BY_SIGNATURE, UNSIGNED = "destination", "signature", "unsigned"

REJECTED = "shard %d: rejected messages (%s): %d; %s: %s; celery -A proj wheel rejected lists them"
RENAMED = (
    "shard %d: messages accepted under other ids (%s): %d; %s: %s; correct the producer, which must give "
    "each message an id of its own"
)
UNSIGNED_ACCEPTED = (
    "shard %d: messages accepted without a signature (%s): %d; %s: %s; once all producers sign, set "
    "wheel_unsigned = 'refuse'"
)

#: Kind → the line about it; of all others, REJECTED.
LINES = {OF_ANOTHER: RENAMED, UNSIGNED: UNSIGNED_ACCEPTED}


@dataclass(slots=True)
class _Unlogged:
    count: int
    reason: str
    task: str
    task_id: str


class Rejections:
    """Rejections of one shard that are not in the log yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unlogged: dict[str, _Unlogged] = {}
        self._quiet_until_ms: dict[str, int] = {}

    def add(self, kind: str, count: int, reason: str, task: str = "", task_id: str = "") -> None:
        """Note some rejections; reason, task and task id are of the first of them."""
        with self._lock:
            self._unlogged.setdefault(kind, _Unlogged(0, reason, task, task_id)).count += count

    def log(self, shard: int, monotonic_ms: int) -> None:
        """Log the kinds whose last line is long ago."""
        with self._lock:
            ready = [kind for kind in self._unlogged if self._quiet_until_ms.get(kind, 0) <= monotonic_ms]
            found = {kind: self._unlogged.pop(kind) for kind in ready}
            self._quiet_until_ms |= dict.fromkeys(ready, monotonic_ms + LOG_EVERY_MS)
        for kind, one in found.items():
            logger.log(
                logging.INFO if kind == BY_UNIQUE else logging.WARNING,
                LINES.get(kind, REJECTED),
                shard,
                kind,
                one.count,
                f"the first is of task {one.task} {one.task_id}".rstrip() if one.task else "the first",
                one.reason,
                extra={"action": "rejected", "shard": shard, "kind": kind, **asdict(one)},
            )
