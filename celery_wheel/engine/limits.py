"""The numbers an engine runs by. Integer milliseconds, counts and bytes; the settings give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_wheel.engine.gates import Rate


@dataclass(frozen=True, slots=True)
class Limits:
    tick_ms: int = 1
    wheel_size: int = 512
    window_ms: int = 300_000
    window_count: int = 100_000
    window_bytes: int = 64 * 2**20
    chunk_count: int = 1_000
    chunk_bytes: int = 4 * 2**20  #: one call to the broker; a single larger message still goes
    load_count: int = 5_000  #: rows a slice; bounds how long one read takes
    load_bytes: int = 16 * 2**20
    intake_count: int = 5_000  #: messages a group commit
    intake_bytes: int = 16 * 2**20
    inbox_count: int = 1_000  #: of those from the inbox: a bulk load must not keep the wheel queue waiting for long
    bulk_count: int = 1_000  #: messages of bulk loads beside those, for the same reason
    ahead_ms: int = 0  #: rows leave so long before they are due: only where all of them are handed over
    lease_ms: int = 2_000
    retention_ms: int = 7 * 86_400_000
    history_bytes: int = 10 * 2**30
    archived_only: bool = False  #: history goes only when an archive has it
    forget_count: int = 2_000  #: rows of history removed at a time
    max_clock_skew_ms: int = 5_000
    max_clock_step_ms: int = 60_000
    replay_on_rollback: bool = True
    rollback_window_ms: int = 300_000
    rates: Mapping[str, Rate] = field(default_factory=dict)  #: this shard's part, by the name of a queue or a task
