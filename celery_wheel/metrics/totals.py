"""The totals of a store, for its gauges: its ``Overview``, the counts of its schedules, and its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from celery_wheel.engine.stats import OTHER
from celery_wheel.metrics.definitions import MAX_QUEUES, Sample
from celery_wheel.overview import Overview
from celery_wheel.store.model import DAY_MS, HOUR_MS, PAUSED
from celery_wheel.store.ports import StoreSize
from celery_wheel.store.ports.schedules import ScheduleCounts
from celery_wheel.store.ports.server import ServerState

#: The periods of ``due``.
WITHIN_MS = {"1h": HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS}


@dataclass(frozen=True, slots=True)
class Totals:
    """``size``, ``server`` and ``objective_ms`` are known to a scheduler alone."""

    overview: Overview
    schedules: ScheduleCounts
    size: StoreSize | None = None
    server: ServerState | None = None
    objective_ms: int | None = None

    def samples(self) -> Iterator[tuple[str, list[Sample]]]:
        """Yield the samples of the whole store, by the name of their metric."""
        found = self.overview
        yield "pending", [((queue,), count) for queue, count in _largest(found.queues).items()]
        yield "overdue", [((), found.overdue)]
        yield "oldest_overdue_seconds", [((), found.behind_ms / 1_000)]
        yield "due", [((within,), self._due(period_ms)) for within, period_ms in WITHIN_MS.items()]
        yield from self._peak()
        paused = Counter(gate.scope for gate in found.gates if gate.state == PAUSED)
        yield "paused", [((kind,), paused[kind]) for kind in ("all", "queue", "task")]
        counts = self.schedules
        others = {"paused": counts.paused, "broken": counts.broken, "beat": counts.with_base, "failing": counts.failing}
        states = {"active": counts.total - sum(others.values()), **others}
        yield "schedules", [((state,), count) for state, count in states.items()]
        if counts.next_ms is not None:
            yield "schedule_next_timestamp_seconds", [((), counts.next_ms / 1_000)]

        yield from self._size()
        if self.server is not None:
            oldest = self.server.oldest
            yield "store_oldest_transaction_seconds", [((), 0 if oldest is None else oldest.age_ms / 1_000)]
        if self.objective_ms is not None:
            yield "objective_seconds", [((), self.objective_ms / 1_000)]

    def _peak(self) -> Iterator[tuple[str, list[Sample]]]:
        due, now_ms = self.overview.due, self.overview.read_ms
        ahead = {begin_ms: count for begin_ms, count in due.seconds.items() if begin_ms >= now_ms}
        begin_ms = max(ahead, key=lambda one: ahead[one], default=None)
        # The first reading of a process has no seconds.
        yield "due_peak", [((), 0 if begin_ms is None else ahead[begin_ms])] if due.seconds_ms else []
        yield "due_peak_timestamp_seconds", [] if begin_ms is None else [((), begin_ms / 1_000)]

    def _size(self) -> Iterator[tuple[str, list[Sample]]]:
        if self.size is None:
            return
        yield "store_bytes", [((), self.size.bytes)]
        disks = [] if self.size.disk is None else [self.size.disk]
        yield "store_disk_bytes", [((), disk.total) for disk in disks]
        yield "store_disk_free_bytes", [((), disk.free) for disk in disks]

    def _due(self, period_ms: int) -> int:
        until_ms = self.overview.read_ms + period_ms
        spans = (self.overview.due.hours, self.overview.due.days)
        return sum(count for span in spans for begin_ms, count in span.items() if begin_ms < until_ms)


def _largest(by_queue: dict[str, int]) -> dict[str, int]:
    """Return at most MAX_QUEUES queues, and the sum of the others as OTHER."""
    largest = dict(Counter(by_queue).most_common(MAX_QUEUES))
    rest = sum(by_queue.values()) - sum(largest.values())
    return {**largest, OTHER: rest} if len(by_queue) > MAX_QUEUES else largest
