"""``Overview``: the typed picture of a store, made from one reading of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from celery_wheel.overview.shards import SILENT_MS, ShardStatus, status_of
from celery_wheel.store.model import DAY_MS, HOUR_MS, Gate
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.overview import OverviewRows

#: Hours that are counted one by one, from the present hour; later ones are counted by the day.
HOURS = 48


@dataclass(frozen=True)
class DueLoad:
    """Pending tasks by the begin of the second, hour or day in which they are due; spans without any are left out."""

    seconds: dict[int, int]  #: of the hour from ``seconds_ms`` on
    seconds_ms: int  #: when the seconds were counted; 0: they were not
    hours: dict[int, int]  #: all that are due before ``days_from_ms``, also in hours that are over
    days: dict[int, int]  #: from ``days_from_ms`` on; the first is the rest of a day of UTC
    days_from_ms: int

    @cached_property
    def minutes(self) -> dict[int, int]:
        found = Counter[int]()
        for begin_ms, pending in self.seconds.items():
            found[begin_ms - begin_ms % 60_000] += pending
        return found


@dataclass(frozen=True)
class Overview:
    read_ms: int
    shards: list[ShardStatus]
    gates: list[Gate]  #: those in force, each once: what is paused, or resumed over a time, and since when
    due: DueLoad
    queues: dict[str, int]  #: pending tasks, the queue with the most first
    tasks: dict[str, int]  #: the same by the name of the task
    schedulers: dict[str, int]  #: of the last day, each with the instant of its last sign of life

    @property
    def pending(self) -> int:
        return sum(one.pending for one in self.shards)

    @property
    def overdue(self) -> int:
        return sum(one.overdue for one in self.shards)

    @property
    def behind_ms(self) -> int:
        """The time by which the first due task that no gate holds back is overdue."""
        return max((one.behind_ms for one in self.shards), default=0)

    @property
    def standby(self) -> list[str]:
        """The schedulers that run and hold no shard."""
        holders = {one.holder for one in self.shards}
        seen = self.schedulers.items()
        return [name for name, seen_ms in seen if self.read_ms - seen_ms < SILENT_MS and name not in holders]


def read_overview(
    store: FullStore,
    now_ms: int,
    *,
    with_levels: bool = False,
    with_seconds: bool = False,
    last: Overview | None = None,
) -> Overview:
    """Read the store.

    Args:
        with_levels: include the levels of each holder's wheel in its snapshot.
        with_seconds: count the seconds of the next hour; else they are those of ``last``, if any.
    """
    rows = store.browse.overview(now_ms, _days_from(now_ms), with_seconds=with_seconds, with_levels=with_levels)
    queues, tasks = Counter[str](), Counter[str]()
    for (queue, task), pending in rows.names.items():
        queues[queue] += pending
        tasks[task] += pending
    gates = {(gate.scope, gate.name): gate for _, gate in rows.gates if gate.in_force(now_ms)}
    return Overview(
        read_ms=now_ms,
        shards=status_of(rows, now_ms),
        gates=list(gates.values()),
        due=due_load(rows, now_ms, last),
        queues=dict(queues.most_common()),
        tasks=dict(tasks.most_common()),
        schedulers=rows.schedulers,
    )


def _days_from(now_ms: int) -> int:
    return now_ms - now_ms % HOUR_MS + HOURS * HOUR_MS


def due_load(rows: OverviewRows, now_ms: int, last: Overview | None) -> DueLoad:
    days_from_ms = _days_from(now_ms)
    hours = {hour * HOUR_MS: pending for hour, pending in rows.hours.items()}
    days = Counter({day * DAY_MS: pending for day, pending in rows.days.items()})
    for begin_ms, pending in hours.items():
        days[begin_ms - begin_ms % DAY_MS] -= pending
    if rows.seconds is not None:
        seconds, seconds_ms = {second * 1_000: pending for second, pending in rows.seconds.items()}, now_ms
    else:
        seconds, seconds_ms = ({}, 0) if last is None else (last.due.seconds, last.due.seconds_ms)
    return DueLoad(
        seconds=seconds,
        seconds_ms=seconds_ms,
        hours=hours,
        days={max(day_ms, days_from_ms): pending for day_ms, pending in sorted(days.items()) if pending},
        days_from_ms=days_from_ms,
    )
