"""The definitions of all metrics, and their samples: of a scheduler process, or of a store as another process sees it.

A name has no prefix here, and ends in its base unit. Counters get Prometheus's suffix ``_total``. The labels ``name``
and ``queue_name`` are those of celery-exporter: the name of the task, and its queue. A server that may hang is read by
``PatientCall``: a probe and a scrape wait for it for two seconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Generic, TypeVar

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.stats import OTHER, Histogram, LatenessByTask, Stats
from celery_wheel.errors import WheelError
from celery_wheel.overview import Overview, group_totals, in_thread
from celery_wheel.store.model import DAY_MS, HOUR_MS, PAUSED, Message
from celery_wheel.store.ports.pages import PAIRS, StoreSize
from celery_wheel.store.schedule_model import ScheduleCounts
from celery_wheel.store.store_model import ServerState
from celery_wheel.values.log import get_logger

#: Queues with a sample of their own: those with the most pending messages. All others are added up as OTHER.
MAX_QUEUES = 200

#: Groups with a sample of their own, and the label of tasks without a group.
MAX_GROUPS, NO_GROUP = 20, "-"


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return f"celery_wheel_{self.name}"


#: A sample: the values of the labels, in the order of the definition, and a number or a histogram.
Sample = tuple[tuple[str, ...], float | Histogram]


def _of(kind: Kind, *first: str) -> Callable[..., Metric]:
    return lambda name, text, *labels: Metric(kind, name, text, (*first, *labels))


_counter, _gauge, _histogram = _of(Kind.COUNTER, "shard"), _of(Kind.GAUGE), _of(Kind.HISTOGRAM)
_ALL = (
    # Counts of an engine since its process began; in Django's view, since its holder's.
    _counter("accepted", "Messages that the store accepted."),
    _counter("dispatched", "Messages that were published to their own queue."),
    _counter(
        "rejected",
        "Messages that were rejected: unreadable, by a unique key, unsigned, by the list of destinations, or by the "
        "broker.",
        "reason",
    ),
    _counter("unsigned", "Messages of the wheel queue without a signature, where wheel_signing_keys is set."),
    _counter("expired", "Messages that were later than their misfire option allows."),
    _counter("cancelled", "Messages that were cancelled."),
    _counter("moved", "Messages that a command gave another time or another try."),
    _counter("completed", "Messages whose key was completed."),
    _counter("redelivered", "Messages that were published with the mark that they may be second copies."),
    _counter("takeovers", "Adoptions of a shard, the first one included."),
    _counter("broker_rollbacks", "Lanes on which the broker was found to have lost writes."),
    _counter("broker_emptied", "Times the broker was found to have lost everything that it had of the shard."),
    _counter("store_lost", "Messages that the store had accepted and lacks, since it was rolled back."),
    _counter("guard_trips", "Chunks that were not published because they differed from the store; each is a defect."),
    _counter("errors", "Calls that the store or the broker did not answer.", "side"),
    _counter("slot_ends", "Ends of slots of groups: a worker reported the end, or max_runtime was over.", "by"),
    _counter("schedule_skipped", "Instants of recurring schedules that were skipped.", "reason"),
    _counter("schedule_errors", "Tries to make a message of a schedule that failed in code of the project."),
    _counter("process_ends", "Unexpected ends of the scheduler's other processes."),
    # Histograms of this process.
    _histogram("lateness_seconds", "Time from a message's eta to its publish.", "name", "queue_name"),
    _histogram("publish_duration_seconds", "Time of one publish of up to wheel_chunk messages."),
    _histogram("commit_duration_seconds", "Time of one commit: accept, settle or change.", "op"),
    # The shards of this process.
    _gauge("holder", "1 where this process holds the shard, else 0.", "shard"),
    _gauge("epoch", "Epoch of the shard, which each takeover raises.", "shard"),
    _gauge("lease_remaining_seconds", "Time until the lease of the shard ends, if it is not renewed.", "shard"),
    _gauge("window_messages", "Messages that the wheel holds in memory.", "shard"),
    _gauge("window_bytes", "Bytes of the messages that the wheel holds in memory.", "shard"),
    _gauge("clock_skew_seconds", "Due time less the clock of the broker or the store.", "shard"),
    _gauge("clock_halted", "1 where the process holds no shard because its clock is too far off, else 0.", "shard"),
    _gauge(
        "clock_disputed_seconds", "The host's wall clock less due time, while no second clock confirms it.", "shard"
    ),
    _gauge("wheel_queue_depth", "Messages in the wheel queue, which are not accepted yet.", "shard"),
    _gauge("wheel_queue_age_seconds", "Age of the oldest message in the wheel queue.", "shard"),
    _gauge("inbox_depth", "Requests and messages that wait in the store: those of the first thousand items.", "shard"),
    _gauge("reachable", "1 where the store and the broker answered while the metrics were read, else 0.", "side"),
    # The totals of the store.
    _gauge("pending", "Messages that are accepted and not yet dispatched.", "queue_name"),
    _gauge("overdue", "Messages whose time has passed, and which no pause, limit or group holds back."),
    _gauge("oldest_overdue_seconds", "Lateness, so far, of the oldest overdue message."),
    _gauge("due", "Pending messages that are due within a period: whole hours, beyond two days whole days.", "within"),
    _gauge("due_peak", "Pending messages of the fullest second of the next hour."),
    _gauge("due_peak_timestamp_seconds", "The fullest second of the next hour."),
    _gauge("paused", "Pauses in force: of a queue, a task, a group, or of everything (all).", "kind"),
    _gauge("paused_since_timestamp_seconds", "The time at which the oldest pause in force was set.", "kind"),
    _gauge(
        "group_waiting",
        "Messages that wait for their group or for room in their queue: the twenty groups with the most, and _other.",
        "group",
    ),
    _gauge("schedules", "Recurring schedules: active, paused, broken, failing, or run by Beat.", "state"),
    _gauge("schedule_next_timestamp_seconds", "The next instant of any recurring schedule."),
    _gauge("store_bytes", "Size of the store's file and its log, or of the database on PostgreSQL."),
    _gauge("store_disk_bytes", "Size of the file system that has the store's file; none on PostgreSQL."),
    _gauge("store_disk_free_bytes", "Free space for the store on that file system; none on PostgreSQL."),
    _gauge(
        "store_oldest_transaction_seconds",
        "Age of the oldest transaction for which PostgreSQL keeps replaced rows; 0 without one, none on SQLite.",
    ),
    _gauge("objective_seconds", "The setting wheel_objective: the lateness up to which a scheduler is ready."),
    _gauge("schedule_last_timestamp_seconds", "The last instant of a recurring schedule that this process accepted."),
)

METRICS = {metric.name: metric for metric in _ALL}

#: A probe or a scrape waits no longer for the store, nor for the broker.
ANSWER_S = 2.0

T = TypeVar("T")


class NotAnswered(WheelError):
    """A server has not answered in time, or with an error."""


class PatientCall(Generic[T]):
    """A call of which at most one is under way; further askers wait for the same one."""

    def __init__(self, server: str, call: Callable[[], T]) -> None:
        self._server = server
        self._call = call
        self._lock = threading.Lock()
        self._asked: Future[T] | None = None

    def begin(self) -> None:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = in_thread(self._call, "wheel-patient")

    def result(self) -> T:
        """Return the result of the call that was begun. Raises NotAnswered, and the error of a defect."""
        asked = self._asked
        if asked is None or not wait([asked], ANSWER_S).done:
            raise NotAnswered(f"{self._server} has not answered for {ANSWER_S:g} s")
        try:
            return asked.result()
        except WheelError as error:
            raise NotAnswered(f"{self._server} does not answer: {error}") from error


Samples = tuple[str, list[Sample]]

#: Counters whose count of ``Stats`` has another name.
_COUNT_OF = {"takeovers": "adoptions", "broker_rollbacks": "rollbacks", "broker_emptied": "emptied"}


#: Causes of a rejection that are counted apart; all others are the broker's.
_CAUSES = ("unreadable", "unique", "signature", "destination")


def counters(by_shard: Mapping[int, Mapping[str, Any]]) -> Iterator[Samples]:
    """Yield the samples of the counts of several shards: those of ``Stats``, or of a snapshot in the store."""
    shown = {str(shard): counts for shard, counts in by_shard.items()}
    for name in [one.name for one in _ALL if one.kind is Kind.COUNTER and one.labels == ("shard",)]:
        yield name, [((shard,), counts.get(_COUNT_OF.get(name, name), 0)) for shard, counts in shown.items()]
    rejected, errors, ends = list[Sample](), list[Sample](), list[Sample]()
    for shard, counts in shown.items():
        of = {cause: counts.get(f"rejected_{cause}", 0) for cause in _CAUSES}
        of["broker"] = counts.get("rejected", 0) - sum(of.values())
        rejected += [((shard, cause), count) for cause, count in of.items()]
        errors += [((shard, side), counts.get(f"{side}_errors", 0)) for side in ("store", "broker")]
        ends += [
            ((shard, "report"), counts.get("slots_reported", 0)),
            ((shard, "max_runtime"), counts.get("slots_timed_out", 0)),
        ]
    yield "slot_ends", ends
    yield "rejected", rejected
    yield "errors", errors


def samples_of(engines: Sequence[Engine]) -> Iterator[Samples]:
    """Yield the samples that need neither the store nor the broker."""
    names = [field.name for field in fields(Stats)]
    yield from counters({engine.shard: {name: getattr(engine.stats, name) for name in names} for engine in engines})
    skips = [(engine.shard, list(engine.stats.skipped.items())) for engine in engines]
    yield "schedule_skipped", [((str(shard), reason), count) for shard, found in skips for reason, count in found]
    last_ms = max((engine.stats.schedule_last_ms for engine in engines), default=0)
    yield "schedule_last_timestamp_seconds", [((), last_ms / 1_000)] if last_ms else []
    lateness, publishes, commits = LatenessByTask(), Histogram(), dict[str, Histogram]()
    for engine in engines:
        lateness.merge(engine.stats.lateness)
        publishes.merge(engine.stats.publishes)
        for op, histogram in list(engine.stats.commits.items()):
            commits.setdefault(op, Histogram()).merge(histogram)
    yield "lateness_seconds", list(lateness.by_names.items())
    yield "publish_duration_seconds", [((), publishes)]
    yield "commit_duration_seconds", [((op,), histogram) for op, histogram in commits.items()]
    yield "holder", [((str(engine.shard),), int(engine.held)) for engine in engines]
    yield from _memory(engines)


def _memory(engines: Sequence[Engine]) -> Iterator[Samples]:
    """Yield the samples of the shards' memory and clocks."""
    states = [(str(engine.shard), engine, engine.state) for engine in engines]
    held = [(shard, engine, state) for shard, engine, state in states if state is not None]
    yield (
        "lease_remaining_seconds",
        [
            ((shard,), max(0, state.lease_until_ms - engine.clock.monotonic_ms()) / 1_000)
            for shard, engine, state in held
        ],
    )
    yield "epoch", [((shard,), state.epoch) for shard, _, state in held]
    yield "window_messages", [((shard,), len(state.window.rows)) for shard, _, state in held]
    yield "window_bytes", [((shard,), state.window.bytes) for shard, _, state in held]
    clocks = [(shard, engine.clock) for shard, engine, _ in states]
    skews = [(shard, clock.skew_ms) for shard, clock in clocks]
    yield "clock_skew_seconds", [((shard,), skew_ms / 1_000) for shard, skew_ms in skews if skew_ms is not None]
    yield "clock_halted", [((shard,), int(clock.halted)) for shard, clock in clocks]
    yield "clock_disputed_seconds", [((shard,), clock.disputed_ms / 1_000) for shard, clock in clocks]


def wheel_queues(engines: Sequence[Engine]) -> Iterator[Samples]:
    """Yield the samples of the wheel queues of the shards that this process holds. Raises BrokerError.

    A standby asks for the depth of one queue, and shows none: so it knows whether the broker answers.
    """
    depths, ages = list[Sample](), list[Sample]()
    for engine in [one for one in engines if one.held]:
        shard, broker = str(engine.shard), engine.delivery.broker
        depth = broker.depth(engine.shard)
        oldest = broker.oldest(engine.shard) if depth else None
        depths.append(((shard,), depth))
        if isinstance(oldest, Message):
            ages.append(((shard,), max(0, engine.clock.now_ms() - oldest.created_ms) / 1_000))
        elif not depth:
            ages.append(((shard,), 0))
    for engine in [] if depths else engines[:1]:
        engine.delivery.broker.depth(engine.shard)
    yield "wheel_queue_depth", depths
    yield "wheel_queue_age_seconds", ages


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
        found = self.overview
        yield "pending", [((queue,), count) for queue, count in _largest(found).items()]
        yield "overdue", [((), found.overdue)]
        yield "oldest_overdue_seconds", [((), found.behind_ms / 1_000)]
        yield "due", [((within,), self._due(period_ms)) for within, period_ms in WITHIN_MS.items()]
        yield from self._peak()
        pauses = [gate for gate in found.gates if gate.state == PAUSED]
        paused = Counter(gate.scope for gate in pauses)
        yield "paused", [((kind,), paused[kind]) for kind in ("all", "queue", "task", "group")]
        since_ms = {kind: min(gate.at_ms for gate in pauses if gate.scope == kind) for kind in paused}
        yield "paused_since_timestamp_seconds", [((kind,), at_ms / 1_000) for kind, at_ms in since_ms.items()]
        groups = group_totals(found.shards)
        waiting = Counter({one.name or NO_GROUP: one.waiting for one in groups.largest[:MAX_GROUPS]})
        waiting[OTHER] += groups.waiting - waiting.total()
        yield "group_waiting", [((name,), count) for name, count in waiting.items() if count]
        counts = self.schedules
        others = {"paused": counts.paused, "broken": counts.broken, "beat": counts.with_base, "failing": counts.failing}
        states = {"active": counts.total - sum(others.values()), **others}
        yield "schedules", [((state,), count) for state, count in states.items()]
        if counts.next_ms is not None:
            yield "schedule_next_timestamp_seconds", [((), counts.next_ms / 1_000)]

        if self.size is not None:
            yield "store_bytes", [((), self.size.bytes)]
            disks = [] if self.size.disk is None else [self.size.disk]
            yield "store_disk_bytes", [((), disk.total) for disk in disks]
            yield "store_disk_free_bytes", [((), disk.free) for disk in disks]
        if self.server is not None:
            oldest = self.server.oldest
            yield "store_oldest_transaction_seconds", [((), 0 if oldest is None else oldest.age_ms / 1_000)]
        if self.objective_ms is not None:
            yield "objective_seconds", [((), self.objective_ms / 1_000)]

    def _peak(self) -> Iterator[tuple[str, list[Sample]]]:
        due, now_ms = self.overview.due, self.overview.read_ms
        ahead = {one: count for one, count in due.seconds.items() if now_ms <= one < now_ms + HOUR_MS}
        begin_ms = max(ahead, key=lambda one: ahead[one], default=None)
        # The first reading of a process has no seconds.
        yield "due_peak", [((), 0 if begin_ms is None else ahead[begin_ms])] if due.seconds_ms else []
        yield "due_peak_timestamp_seconds", [] if begin_ms is None else [((), begin_ms / 1_000)]

    def _due(self, period_ms: int) -> int:
        until_ms = self.overview.read_ms + period_ms
        spans = (self.overview.due.hours, self.overview.due.days)
        return sum(count for span in spans for begin_ms, count in span.items() if begin_ms < until_ms)


def _largest(found: Overview) -> dict[str, int]:
    """Return at most MAX_QUEUES queues, and the sum of the others, and of the pairs beyond PAIRS, as OTHER."""
    largest = dict(Counter(found.queues).most_common(MAX_QUEUES))
    rest = max(found.pending, sum(found.queues.values())) - sum(largest.values())
    return {**largest, OTHER: rest} if len(found.queues) > MAX_QUEUES or len(found.names) >= PAIRS else largest


logger = get_logger(__name__)

#: Reads all samples.
Collect = Callable[[], Iterator[tuple[Metric, list[Sample]]]]


class ProcessMetrics:
    """The metrics of a scheduler process: of its engines, by shard, and of the store. Any thread may call it."""

    def __init__(self, engines: Callable[[], Sequence[Engine]], totals: Callable[[], Totals]) -> None:
        self._engines = engines
        self._totals = totals
        self._sides = {
            "broker": PatientCall("the broker", lambda: list(wheel_queues(self._engines()))),
            "store": PatientCall("the store", lambda: list(self._of_store(self._engines()))),
        }

    def collect(self) -> Iterator[tuple[Metric, list[Sample]]]:
        for call in self._sides.values():
            call.begin()
        yield from defined(samples_of(self._engines()))
        reachable: list[Sample] = []
        for side, call in self._sides.items():
            try:
                found = call.result()
            except NotAnswered as error:  # ``reachable`` tells it, and the engine logs it
                logger.debug("%s", error, extra={"action": "metrics"})
                found = []
                reachable.append(((side,), 0))
            else:
                reachable.append(((side,), 1))
            yield from defined(found)
        yield METRICS["reachable"], reachable

    def _of_store(self, engines: Sequence[Engine]) -> Iterator[Samples]:
        totals = self._totals()  # of a standby too: so it knows whether the store answers
        held = {engine.shard for engine in engines if engine.held}
        if held:
            yield inboxes(totals, held)
        if 0 in held:
            yield from totals.samples()


def store_metrics(totals: Totals) -> Iterator[tuple[Metric, list[Sample]]]:
    """Return the metrics of a store for a process without engines: totals, and the holders' last snapshots."""
    return defined(_of_snapshots(totals))


def _of_snapshots(totals: Totals) -> Iterator[Samples]:
    shards, now_ms = totals.overview.shards, totals.overview.read_ms
    yield from counters({one.shard: one.snapshot for one in shards if one.snapshot is not None})
    yield "holder", [((str(one.shard),), int(one.live)) for one in shards]
    leases = [(one.shard, one.lease_until_ms) for one in shards if one.live]
    yield (
        "lease_remaining_seconds",
        [((str(shard),), max(0, until_ms - now_ms) / 1_000) for shard, until_ms in leases if until_ms is not None],
    )
    live = {str(one.shard): one.snapshot for one in shards if one.live and one.snapshot is not None}
    yield "epoch", [((str(one.shard),), one.epoch) for one in shards if one.live]
    yield "window_messages", [((shard,), one["window_count"]) for shard, one in live.items()]
    yield "window_bytes", [((shard,), one["window_bytes"]) for shard, one in live.items()]
    skews = [(shard, one["clock_skew_ms"]) for shard, one in live.items()]
    yield "clock_skew_seconds", [((shard,), skew_ms / 1_000) for shard, skew_ms in skews if skew_ms is not None]
    yield "clock_disputed_seconds", [((shard,), one["clock_disputed_ms"] / 1_000) for shard, one in live.items()]
    yield inboxes(totals, range(len(shards)))
    yield from totals.samples()


def inboxes(totals: Totals, shards: Iterable[int]) -> Samples:
    return "inbox_depth", [((str(shard),), totals.overview.shards[shard].inbox) for shard in shards]


def defined(samples: Iterable[Samples]) -> Iterator[tuple[Metric, list[Sample]]]:
    for name, found in samples:
        yield METRICS[name], found
