"""What an engine counts, and the snapshot that it publishes with its lease, at most about a second old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from celery_wheel import __version__
from celery_wheel.engine.clock_watch import ClockWatch
from celery_wheel.engine.term import Term
from celery_wheel.store.model import Row


@dataclass(slots=True)
class Stats:
    """Counts since this engine was made; ``late_ms_max`` is of the time since the last snapshot."""

    accepted: int = 0
    known: int = 0  #: messages that came again and were in the store already
    refused: int = 0  #: by a queue that may take it later
    rejected: int = 0
    cancelled: int = 0
    moved: int = 0
    completed: int = 0  #: by a key, whether cancelled or moved
    dispatched: int = 0
    forgotten: int = 0
    adoptions: int = 0
    rollbacks: int = 0  #: lanes on which the broker was found to have lost writes
    guard_trips: int = 0
    broker_errors: int = 0
    store_errors: int = 0
    late_ms_max: int = 0

    def dispatched_chunk(self, rows: Sequence[Row], failed: int, now_ms: int) -> None:
        self.dispatched += len(rows) - failed
        self.rejected += failed
        if rows:
            self.late_ms_max = max(self.late_ms_max, now_ms - min([row.eta_ms for row in rows]))

    def snapshot(self, term: Term, watch: ClockWatch, now_ms: int) -> dict[str, object]:
        """Plain data for JSON. The caller holds the term's lock."""
        window = term.window
        counts: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        self.late_ms_max = 0
        return {
            **counts,
            "version": __version__,
            "at_ms": now_ms,
            "clock_halted": watch.halted,
            "clock_skew_ms": watch.skew_ms,
            "window_count": len(window.rows),
            "window_bytes": window.bytes,
            "next_due_ms": term.next_due_ms(),
            "lanes": [
                {
                    "lane": lane.number,
                    "offset": lane.offset,
                    "watermark": lane.watermark,
                    "horizon": lane.edge,
                    "ready": len(lane.ready),
                }
                for lane in term.lanes.values()
            ],
            "levels": [
                {
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
                for level in window.wheel.levels()
            ],
        }
