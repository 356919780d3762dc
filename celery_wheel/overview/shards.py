"""The state of each shard: its holder, its pending tasks, and the time by which it is behind.

Values that only the holder has (levels, horizon) come from its last snapshot, with the snapshot's age; all others are
read from the store. Plain data, as ``celery wheel status --json`` prints it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from celery_wheel.store.model import Gate, LaneState
from celery_wheel.store.ports.overview import LaneHead, OverviewRows, ShardHead
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
    overdue: int  #: due tasks that no gate holds back; at most a thousand of a lane are counted
    held: int  #: due tasks that a gate holds back, counted in the same way
    inbox: int  #: messages and requests in the first thousand items of its inbox
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
                "tasks are dispatched at due time; if the wall clock is right: celery -A proj wheel clock accept"
            )
        return (
            f"the wall clock of its host is {where}, and the clock of the broker or the store does not agree with it; "
            "tasks are dispatched at due time; check the time service of that host"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def status_of(rows: OverviewRows, now_ms: int) -> list[ShardStatus]:
    """Return the status of all shards of a store, in order."""
    lanes, gates = defaultdict[int, list[LaneHead]](list), defaultdict[int, list[Gate]](list)
    for one in rows.lanes:
        lanes[one.shard].append(one)
    for shard, gate in rows.gates:
        if gate.in_force(now_ms):
            gates[shard].append(gate)
    return [
        _status(head, rows.pending.get(number, 0), lanes[number], gates[number], now_ms)
        for head in rows.shards
        for number in (head.record.shard,)
    ]


def _status(head: ShardHead, pending: int, lanes: list[LaneHead], gates: list[Gate], now_ms: int) -> ShardStatus:
    record = head.record
    age_ms = None if record.snapshot_at_ms is None else max(0, now_ms - record.snapshot_at_ms)
    # A task behind a gate is to wait, so the shard is not behind with it.
    stopped = any(gate.for_all for gate in gates)
    free = [one for one in lanes if one.state.scope is None and not stopped]
    overdue, due = sum(one.overdue for one in lanes), sum(one.overdue for one in free)
    return ShardStatus(
        shard=record.shard,
        holder=record.holder,
        epoch=record.epoch,
        lease_until_ms=record.lease_until_ms,
        live=record.holder is not None and age_ms is not None and age_ms < SILENT_MS,
        snapshot_age_ms=age_ms,
        pending=pending,
        next_due_ms=min(_dues(lanes), default=None),
        behind_ms=max(0, now_ms - min(_dues(free), default=now_ms)),
        overdue=due,
        held=overdue - due,
        inbox=head.inbox,
        lanes=[_lane(one.state) for one in lanes],
        gates=gates,
        snapshot=record.snapshot,
    )


def _dues(lanes: Iterable[LaneHead]) -> Iterator[int]:
    return (one.next_due_ms for one in lanes if one.next_due_ms is not None)


def _lane(one: LaneState) -> dict[str, Any]:
    return {
        "lane": one.lane,
        "offset": list(one.offset),
        "watermark": list(one.watermark),
        "target": one.target,
        "scope": one.scope,
    }
