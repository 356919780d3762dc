"""The one picture of a store that ``wheel status``, the admin, metrics and health checks show.

::

    OverviewCache.get ── fresh ────────────────────────────────────────────────► the last reading
      └─── older than FRESH_S ─┬─ no other thread reads: read ─────────────────► the new reading
                               └─ another reads ─┬─ last is older than STALE_S, or there is none: wait for it
                                                 └─ otherwise ─────────────────► the last reading, at once

A reading is four statements on one snapshot, whatever the number of shards: sums that the commits keep, and figures
counted from rows, which are bounded. Promises: all figures of an Overview are of one moment, ``read_ms``; only the
seconds, the names and the holder's snapshot are older. A figure of the cache is at most a second old, or the time that
a reading takes. An error is a reading, too: a store that does not answer is asked once a second. Nobody waits longer
than they want for a call ``in_thread``, be it a reading, a probe or a result backend.
Non-promises: ``pending`` counts a message until its settlement is stored, up to a twentieth of a second later.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from celery_wheel.errors import StoreError
from celery_wheel.store.model import DAY_MS, HOUR_MS, PAUSED, Gate
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import COUNTED, LARGEST, LaneHead, LargeGroup, OverviewRows, ShardHead
from celery_wheel.values.format import format_duration, printable

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
    next_free_ms: int | None  #: the same of the tasks that no gate holds back
    behind_ms: int
    overdue: int  #: due tasks that no gate holds back; at most a thousand of a lane are counted
    held: int  #: due tasks that a gate holds back, counted in the same way
    inbox: int  #: messages and requests in the first thousand items of its inbox
    lanes: list[dict[str, Any]]
    gates: list[Gate]  #: those in force
    snapshot: dict[str, Any] | None

    @property
    def starving(self) -> list[dict[str, Any]]:
        """Groups that wait for a queue while others are served, since all their slots are taken: at most five, the one
        that waits for the longest time first, as name, queue, waiting, for_ms and slots; none without a live holder."""
        return list(self._of_groups("starving", []))

    @property
    def unreported(self) -> dict[str, int]:
        """Groups whose last slots ended by max_runtime, without a report: at most five, with the number of such ends;
        none without a live holder."""
        return dict(self._of_groups("unreported", []))

    @property
    def group_problems(self) -> list[str]:
        """The groups that starve, and those without reports, each with the remedy."""
        found = [
            f"the group {printable(one['name'])} starves: {one['waiting']:,} tasks wait for queue "
            f"{printable(one['queue'])}, and none was dispatched for {format_duration(one['for_ms'])}, while tasks of "
            f"other groups were: its {one['slots']:,} slots are taken; find the runs that hang: celery inspect active"
            for one in self.starving
        ]
        if (more := self._of_groups("starving_count", 0) - len(found)) > 0:
            found.append(f"{more:,} more groups starve; find the runs that hang: celery inspect active")
        return found + [
            f"the last {ends:,} slots of the group {printable(name)} ended by max_runtime, and no worker has reported "
            "an end since; make the app of each worker with celery_wheel.Celery, or call celery_wheel.install(app)"
            for name, ends in self.unreported.items()
        ]

    def _of_groups(self, name: str, default: Any) -> Any:
        figures = (self.snapshot or {}).get("groups") if self.live else None
        return default if figures is None else figures[name]

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

    def pause_of(self, lane: dict[str, Any]) -> Gate | None:
        """Return the pause that holds a lane."""
        place = lane["scope"], lane["target"]
        pauses = (gate for gate in self.gates if gate.state == PAUSED)
        return next((gate for gate in pauses if gate.for_all or (gate.scope, gate.name) == place), None)

    @property
    def held_lanes(self) -> list[dict[str, Any]]:
        """The lanes with due tasks that a pause, a limit or a group holds back."""
        return [one for one in self.lanes if one["due"] and (one["scope"] is not None or self.pause_of(one))]

    def ready(self, lane: dict[str, Any]) -> int:
        """Return how many due rows of a lane the holder has in memory."""
        known = {one["lane"]: one.get("ready") for one in (self.snapshot or {}).get("lanes", ())}
        return known.get(lane["lane"]) or 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "starving": self.starving, "unreported": self.unreported}


def status_of(rows: OverviewRows, now_ms: int) -> list[ShardStatus]:
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
    next_free_ms = min(_dues(free), default=None)
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
        next_free_ms=next_free_ms,
        behind_ms=0 if next_free_ms is None else max(0, now_ms - next_free_ms),
        overdue=due,
        held=overdue - due,
        inbox=head.inbox,
        lanes=[_lane(one) for one in lanes],
        gates=gates,
        snapshot=record.snapshot,
    )


def _dues(lanes: Iterable[LaneHead]) -> Iterator[int]:
    return (one.next_due_ms for one in lanes if one.next_due_ms is not None)


def _lane(head: LaneHead) -> dict[str, Any]:
    one = head.state
    return {
        "lane": one.lane,
        "offset": list(one.offset),
        "watermark": list(one.watermark),
        "target": one.target,
        "scope": one.scope,
        "next_due_ms": head.next_due_ms,
        "due": head.overdue,
    }


#: Hours that are counted one by one, from the present hour; later ones are counted by the day.
HOURS = 48


@dataclass(frozen=True)
class DueLoad:
    """Pending tasks by the begin of the second, hour or day in which they are due; spans without any are left out."""

    seconds: dict[int, int]  #: of 61 minutes, from the minute of ``seconds_ms`` on
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


#: Up to so many groups, a page reads them all from the store, within ten milliseconds.
FEW = 2_000


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The groups with waiting rows or rows in flight, as the holders have them in their snapshots.

    They cost no statement, whatever the number of groups: a scrape and the first page of very many groups read no line.
    """

    count: int
    waiting: int  #: rows of all groups
    largest: list[LargeGroup]  #: the group with the most waiting rows first


def group_totals(shards: Iterable[ShardStatus]) -> GroupTotals:
    """Add up the groups of all shards, as far as each shard names them.

    A group lives in one shard, but for tasks without a group and occurrences of schedules.
    """
    count, all_waiting, waiting, in_flight = 0, 0, Counter[str](), Counter[str]()
    lines = defaultdict[str, list[tuple[int, int]]](list)
    for one in shards:
        figures = (one.snapshot or {}).get("groups")
        if figures is None:
            continue
        count += figures["count"]
        all_waiting += figures["waiting"]
        for name, its_waiting, its_in_flight, numbers in figures["largest"]:
            waiting[name] += its_waiting
            in_flight[name] += its_in_flight
            lines[name] += [(one.shard, number) for number in numbers]
    names = sorted(waiting, key=lambda name: (-waiting[name], name))
    largest = [LargeGroup(name, waiting[name], in_flight[name], lines[name]) for name in names[:LARGEST]]
    return GroupTotals(count, all_waiting, largest)


class HeldTasks(NamedTuple):
    """Due tasks that are held back. The store counts up to a thousand of a lane, and its holder those in memory."""

    due: int
    is_more: bool  #: there may be more of them
    first_ms: int | None  #: due time of the first of them
    by_pause: bool
    by_limit: bool  #: a limit of a queue or a task, or a group


@dataclass(frozen=True)
class Overview:
    read_ms: int
    shards: list[ShardStatus]
    gates: list[Gate]  #: those in force, each once: what is paused, or resumed over a time, and since when
    due: DueLoad
    names: dict[tuple[str, str], int]  #: pending tasks by queue and task
    names_ms: int  #: when the names were counted
    schedulers: dict[str, int]  #: of the last day, each with the instant of its last sign of life

    @cached_property
    def queues(self) -> dict[str, int]:
        """Pending tasks, the queue with the most first."""
        return self._by(0)

    @cached_property
    def tasks(self) -> dict[str, int]:
        """Pending tasks by their names, the name with the most first."""
        return self._by(1)

    def _by(self, part: int) -> dict[str, int]:
        found = Counter[str]()
        for name, pending in self.names.items():
            found[name[part]] += pending
        return dict(found.most_common())

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
    def next_free_ms(self) -> int | None:
        """The next due time of the tasks that no gate holds back."""
        return min((one.next_free_ms for one in self.shards if one.next_free_ms is not None), default=None)

    def held_by(self, gate: Gate) -> HeldTasks | None:
        """Return the due tasks that a gate holds back; None for a group that is not among the largest."""
        if gate.scope == "group":
            waiting = {one.name: one.waiting for one in group_totals(self.shards).largest}.get(gate.name)
            return None if waiting is None else HeldTasks(waiting, False, None, by_pause=True, by_limit=False)
        return self._held(lambda lane: gate.for_all or (lane["scope"], lane["target"]) == (gate.scope, gate.name))

    @property
    def held_back(self) -> HeldTasks:
        """The due tasks that a pause, a limit or a group holds back."""
        return self._held(lambda _: True)

    def _held(self, is_wanted: Callable[[dict[str, Any]], bool]) -> HeldTasks:
        lanes = [(shard, lane) for shard in self.shards for lane in shard.held_lanes if is_wanted(lane)]
        counts = [max(lane["due"], shard.ready(lane) if lane["due"] >= COUNTED else 0) for shard, lane in lanes]
        paused = [shard.pause_of(lane) is not None for shard, lane in lanes]
        return HeldTasks(
            due=sum(counts),
            is_more=any(lane["due"] >= COUNTED for _, lane in lanes),
            first_ms=min((lane["next_due_ms"] for _, lane in lanes), default=None),
            by_pause=any(paused),
            by_limit=not all(paused),
        )

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
    with_names: bool = True,
    last: Overview | None = None,
) -> Overview:
    """Read the store: the wheel's levels, the seconds of the next hour, counts by name; else the two of ``last``."""
    options = {"with_seconds": with_seconds, "with_levels": with_levels, "with_names": with_names}
    rows = store.browse.overview(now_ms, _days_from(now_ms), **options)
    if rows.names is not None:
        names, names_ms = rows.names, now_ms
    else:
        names, names_ms = ({}, 0) if last is None else (last.names, last.names_ms)
    gates = {(gate.scope, gate.name): gate for _, gate in rows.gates if gate.in_force(now_ms)}
    return Overview(
        read_ms=now_ms,
        shards=status_of(rows, now_ms),
        gates=list(gates.values()),
        due=due_load(rows, now_ms, last),
        names=names,
        names_ms=names_ms,
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


FRESH_S = 1.0

#: A reading of this age is not shown while a newer one is made, but waited for.
STALE_S = 5.0

#: Rows a second that are read for the seconds of the next hour, and sums for the names, on average.
SECONDS_ROWS, NAMES_ROWS = 20_000, 5_000

#: Paced counts take at most this part of the time: 0.4 s for a million schedules, every 40 seconds.
COUNTING_SHARE = 0.01

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedValue(Generic[T]):
    at_s: float
    value: T | None
    error: StoreError | None = None

    def result(self) -> T:
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.value is not None  # noqa: S101 - for the type checker
        return self.value


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call, for which nobody waits longer than they want; it keeps no process from ending.

    The future has its error, also where there is no thread for it.
    """
    asked = Future[T]()

    def run() -> None:
        try:
            asked.set_result(call())
        except Exception as error:  # for those who wait
            asked.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the system gives no more threads
        asked.set_exception(error)
    return asked


class Shared(Generic[T]):
    """A value that one thread reads at a time, and all threads use; ``read`` gets the value before."""

    def __init__(self, read: Callable[[T | None], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._last: SharedValue[T] | None = None
        self._asked: Future[T] | None = None

    def get(self) -> T:
        last = self._last
        if last is not None and self._age_s(last) < FRESH_S:
            return last.result()
        if not self._lock.acquire(blocking=last is None or self._age_s(last) >= STALE_S):
            assert last is not None  # noqa: S101 - for the type checker
            return last.result()
        try:
            last = self._last
            if last is None or self._age_s(last) >= FRESH_S:  # no other thread has read it meanwhile
                self._last = last = self._new(last)
        finally:
            self._lock.release()
        return last.result()

    def get_within(self, at_most_s: float) -> T | None:
        """Return the last reading, or a new one if it ends by then; it goes on in a thread. None before the first."""
        last, asked = self._last, self._asked
        if last is None or self._age_s(last) >= FRESH_S:
            if asked is None or asked.done():
                self._asked = asked = in_thread(self.get, "wheel-reading")
            if wait([asked], at_most_s).done:
                return asked.result()
        return None if last is None else last.result()

    def expire(self) -> None:
        """Forget the last reading: what this process has changed is shown at once."""
        self._last = None

    def _new(self, last: SharedValue[T] | None) -> SharedValue[T]:
        try:
            value = self._read(None if last is None else last.value)
        except StoreError as error:
            return SharedValue(self._clock(), None, error)
        return SharedValue(self._clock(), value)

    def _age_s(self, reading: SharedValue[T]) -> float:
        return self._clock() - reading.at_s


class OverviewCache(Shared[Overview]):
    def __init__(self, store: FullStore, now_ms: Callable[[], int]):
        super().__init__(self._overview)
        self._store = store
        self._now_ms = now_ms

    def _overview(self, last: Overview | None) -> Overview:
        now_ms = self._now_ms()
        with_seconds = last is not None and _are_to_count(last.due, now_ms)
        with_names = last is None or _is_over(now_ms - last.names_ms, len(last.names) * len(last.shards), NAMES_ROWS)
        return read_overview(self._store, now_ms, with_seconds=with_seconds, with_names=with_names, last=last)


class PacedCounts(Shared[T]):
    """Counts of many rows, such as those of schedules: the longer they take, the more rarely they are made."""

    def __init__(self, count: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda _: count(), clock)
        self._took_s = 0.0

    def _new(self, last: SharedValue[T] | None) -> SharedValue[T]:
        began_s = self._clock()
        found = super()._new(last)
        self._took_s = self._clock() - began_s
        return found

    def _age_s(self, reading: SharedValue[T]) -> float:
        return super()._age_s(reading) / max(1.0, self._took_s / COUNTING_SHARE)


def _are_to_count(last: DueLoad, now_ms: int) -> bool:
    """Whether to count the seconds of the next hour anew: the more rows the hour has, the more rarely."""
    hour_ms = now_ms - now_ms % HOUR_MS
    rows = sum(last.hours.get(begin_ms, 0) for begin_ms in (hour_ms, hour_ms + HOUR_MS))
    return _is_over(now_ms - last.seconds_ms, rows, SECONDS_ROWS)


def _is_over(age_ms: int, rows: int, a_second: int) -> bool:
    """Whether so many rows may be read anew after that time; also where the clock went back."""
    return not 0 <= age_ms < rows * 1_000 // a_second
