"""Each shard as anybody may see it: who holds it, what waits, and how far behind it is.

What only the holder knows (levels, edge) is in its last snapshot, with the snapshot's age; everything else is read from
the store. Plain data, as ``celery wheel status --json`` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celery_wheel.present import duration
from celery_wheel.store.model import Gate, LaneState
from celery_wheel.store.ports import FullStore

#: A holder renews twice a second; one that was not heard of for this long is gone or stuck.
SILENT_MS = 5_000


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """``behind_ms``: for how long the first task that is free to leave and did not is overdue; 0 when nothing is."""

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
    gates: list[Gate]  #: what is paused, or leaves slowly
    snapshot: dict[str, Any] | None

    @property
    def clock_dispute(self) -> str:
        """What the holder says of a wall clock that it does not follow, and what to do; empty where it follows it."""
        disputed_ms = (self.snapshot or {}).get("clock_disputed_ms")
        if not disputed_ms or not self.live:
            return ""
        where = f"{duration(abs(disputed_ms))} {'ahead of' if disputed_ms > 0 else 'behind'} due time"
        if (self.snapshot or {}).get("clock_skew_ms") is None:
            return (
                f"the wall clock of its host is {where}, and neither broker nor store has a clock that could decide; "
                "tasks leave at due time; if the wall clock is right: celery -A <project> wheel clock accept"
            )
        return (
            f"the wall clock of its host is {where}, and the clock of the broker or the store does not agree with it; "
            "tasks leave at due time; check the time service of that host"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def status_of(store: FullStore, now_ms: int, pending: Mapping[int, int] | None = None) -> list[ShardStatus]:
    """All shards of a store, in order. ``pending``: how much is, by shard, where the caller has counted already."""
    return [
        shard_status(store, shard, now_ms, None if pending is None else pending.get(shard, 0))
        for shard in range(store.shards)
    ]


def shard_status(store: FullStore, shard: int, now_ms: int, pending: int | None = None) -> ShardStatus:
    state = store.state(shard)
    age_ms = None if state.snapshot_at_ms is None else max(0, now_ms - state.snapshot_at_ms)
    lanes, due_ms = store.browse.standing(shard)
    gates = [gate for gate in store.gates(shard) if gate.in_force(now_ms)]
    # What stands behind a gate is to wait; nobody is behind with it.
    gated = {one.lane for one in lanes if one.scope is not None}
    free = set() if any(gate.for_all for gate in gates) else due_ms.keys() - gated
    return ShardStatus(
        shard=shard,
        holder=state.holder,
        epoch=state.epoch,
        lease_until_ms=state.lease_until_ms,
        live=state.holder is not None and age_ms is not None and age_ms < SILENT_MS,
        snapshot_age_ms=age_ms,
        pending=store.browse.waiting(shard) if pending is None else pending,
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
