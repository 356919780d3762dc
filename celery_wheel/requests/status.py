"""The state of each shard: its holder, its pending tasks, and the time by which it is behind.

Values that only the holder has (levels, horizon) come from its last snapshot, with the snapshot's age; all others are
read from the store. Plain data, as ``celery wheel status --json`` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celery_wheel.store.model import Gate, LaneState
from celery_wheel.store.ports import FullStore
from celery_wheel.values.format import format_duration

#: A holder renews its lease twice a second; a holder that is silent for this long is gone or stuck.
SILENT_MS = 5_000


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """``behind_ms``: the time by which the first due task that no gate holds back is overdue; 0 when none is."""

    shard: int
    holder: str | None
    epoch: int
    lease_until_ms: int | None
    live: bool
    snapshot_age_ms: int | None
    pending: int
    next_due_ms: int | None
    behind_ms: int
    lanes: list[dict[str, Any]]
    gates: list[Gate]  #: those in force
    snapshot: dict[str, Any] | None

    @property
    def clock_dispute(self) -> str:
        """The holder's dispute of its wall clock, with the remedy; empty where due time follows that clock."""
        snapshot = self.snapshot or {}
        disputed_ms = snapshot.get("clock_disputed_ms")
        if not disputed_ms or not self.live:
            return ""
        where = f"{format_duration(abs(disputed_ms))} {'ahead of' if disputed_ms > 0 else 'behind'} due time"
        if snapshot.get("clock_skew_ms") is None:
            return (
                f"the wall clock of its host is {where}, and neither broker nor store has a clock that could decide; "
                "tasks are dispatched at due time; if the wall clock is right: celery -A <project> wheel clock accept"
            )
        return (
            f"the wall clock of its host is {where}, and the clock of the broker or the store does not agree with it; "
            "tasks are dispatched at due time; check the time service of that host"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def status_of(store: FullStore, now_ms: int, pending: Mapping[int, int] | None = None) -> list[ShardStatus]:
    """Return the status of all shards of a store, in order. ``pending``: counts by shard, where the caller has them."""
    return [
        _status(store, shard, now_ms, store.browse.count_pending(shard) if pending is None else pending.get(shard, 0))
        for shard in range(store.shards)
    ]


def _status(store: FullStore, shard: int, now_ms: int, pending: int) -> ShardStatus:
    state = store.state(shard)
    age_ms = None if state.snapshot_at_ms is None else max(0, now_ms - state.snapshot_at_ms)
    lanes, due_ms = store.browse.lanes(shard)
    gates = [gate for gate in store.gates(shard) if gate.in_force(now_ms)]
    # A task behind a gate is to wait, so the shard is not behind with it.
    gated = {one.lane for one in lanes if one.scope is not None}
    free = set() if any(gate.for_all for gate in gates) else due_ms.keys() - gated
    return ShardStatus(
        shard=shard,
        holder=state.holder,
        epoch=state.epoch,
        lease_until_ms=state.lease_until_ms,
        live=state.holder is not None and age_ms is not None and age_ms < SILENT_MS,
        snapshot_age_ms=age_ms,
        pending=pending,
        next_due_ms=min(due_ms.values(), default=None),
        behind_ms=max(0, now_ms - min((due_ms[lane] for lane in free), default=now_ms)),
        lanes=[_lane(one) for one in lanes],
        gates=gates,
        snapshot=state.snapshot,
    )


def _lane(one: LaneState) -> dict[str, Any]:
    return {
        "lane": one.lane,
        "offset": list(one.offset),
        "watermark": list(one.watermark),
        "target": one.target,
        "scope": one.scope,
    }
