"""Limits of an engine, made from the settings: integer milliseconds, counts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_wheel.engine.state.gates import Rate


@dataclass(frozen=True, slots=True)
class Limits:
    tick_ms: int = 1
    wheel_size: int = 512
    window_ms: int = 300_000
    window_count: int = 100_000
    window_bytes: int = 64 * 2**20
    chunk_count: int = 1_000
    chunk_bytes: int = 4 * 2**20  #: of one call to the broker; a single larger message is still published
    load_count: int = 25_000  #: rows of one prefetched slice; of a cold disk, many are read faster than few
    load_bytes: int = 32 * 2**20
    intake_count: int = 5_000  #: messages of the wheel queue in one group commit
    intake_bytes: int = 16 * 2**20
    inbox_count: int = 1_000  #: items of the inbox beside them: a full inbox must not delay the wheel queue for long
    bulk_count: int = 2_500  #: messages of bulk loads, and packed ones of the inbox, beside them: some 50 ms of work
    occurrence_count: int = 1_000  #: occurrences of schedules beside them, and schedules read for them
    look_ahead_ms: int = 2_000  #: occurrences are accepted this long before their instants
    herd_count: int = 1_000  #: the fewest schedules, due within a short time, that are a herd (see ``recurring.herd``)
    herd_ms: int = 300_000  #: occurrences of a herd are accepted at most this long before their instants
    herd_per_s: int = 1_000  #: the pace at which they are accepted
    late_ms: int = 10_000  #: an instant that is not accepted this long after its time was missed: catch-up decides
    ahead_ms: int = 0  #: rows are published this long before they are due; above 0 only for a drain
    lease_ms: int = 2_000
    retention_ms: int = 7 * 86_400_000
    history_bytes: int = 10 * 2**30
    archived_only: bool = False  #: remove only history that was archived
    forget_count: int = 2_000  #: rows of history removed in one round
    audit_ms: int = 90 * 86_400_000  #: the audit log keeps a request for this time
    max_clock_skew_ms: int = 5_000
    replay_on_rollback: bool = True
    rollback_window_ms: int = 300_000
    lane_idle_ms: int = 300_000  #: an idle lane is closed after this time; not below the rollback window
    rates: Mapping[str, Rate] = field(default_factory=dict)  #: this shard's part, by the name of a queue or a task
