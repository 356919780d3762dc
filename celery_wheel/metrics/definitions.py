"""The definitions of all metrics: names, kinds, labels and help texts.

A name has no prefix here, and ends in its base unit. Counters get Prometheus's suffix ``_total``. The labels ``name``
and ``queue_name`` are those of celery-exporter: the name of the task, and its queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from celery_wheel.engine.stats import Histogram

PREFIX = "celery_wheel_"

#: Queues with a sample of their own: those with the most pending messages. All others are added up as OTHER.
MAX_QUEUES = 200


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
        return PREFIX + self.name


#: A sample: the values of the labels, in the order of the definition, and a number or a histogram.
Sample = tuple[tuple[str, ...], float | Histogram]


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(Kind.COUNTER, name, text, ("shard", *labels))


def _of_shard(name: str, text: str) -> Metric:
    return Metric(Kind.GAUGE, name, text, ("shard",))


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, name, text, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(Kind.HISTOGRAM, name, text, labels)


_ALL = (
    # Counts of an engine since its process began; in Django's view, since its holder's.
    _counter("accepted", "Messages that the store accepted."),
    _counter("dispatched", "Messages that were published to their own queue."),
    _counter("rejected", "Messages that were rejected: unreadable, by a unique key, or by the broker.", "reason"),
    _counter("expired", "Messages that were later than their misfire option allows."),
    _counter("cancelled", "Messages that were cancelled."),
    _counter("moved", "Messages that a command gave another time or another try."),
    _counter("completed", "Messages whose key was completed."),
    _counter("redelivered", "Messages that were published with the mark that they may be second copies."),
    _counter("takeovers", "Adoptions of a shard, the first one included."),
    _counter("broker_rollbacks", "Lanes on which the broker was found to have lost writes."),
    _counter("broker_emptied", "Times the broker was found to have lost everything that it had of the shard."),
    _counter("guard_trips", "Chunks that were not published because they differed from the store; each is a defect."),
    _counter("errors", "Calls that the store or the broker did not answer.", "side"),
    _counter("schedule_skipped", "Instants of recurring schedules that were skipped.", "reason"),
    _counter("schedule_errors", "Tries to make a message of a schedule that failed in code of the project."),
    _counter("process_ends", "Unexpected ends of the scheduler's other processes."),
    # Histograms of this process.
    _histogram("lateness_seconds", "Time from a message's eta to its publish.", "name", "queue_name"),
    _histogram("publish_duration_seconds", "Time of one publish of up to wheel_chunk messages."),
    _histogram("commit_duration_seconds", "Time of one commit: accept, settle or change.", "op"),
    # The shards of this process.
    _of_shard("holder", "1 where this process holds the shard, else 0."),
    _of_shard("epoch", "Epoch of the shard, which each takeover raises."),
    _of_shard("lease_remaining_seconds", "Time until the lease of the shard ends, if it is not renewed."),
    _of_shard("window_messages", "Messages that the wheel holds in memory."),
    _of_shard("window_bytes", "Bytes of the messages that the wheel holds in memory."),
    _of_shard("clock_skew_seconds", "Due time less the clock of the broker or the store."),
    _of_shard("clock_halted", "1 where the process holds no shard because its clock is too far off, else 0."),
    _of_shard("clock_disputed_seconds", "The host's wall clock less due time, while no second clock confirms it."),
    _of_shard("wheel_queue_depth", "Messages in the wheel queue, which are not accepted yet."),
    _of_shard("wheel_queue_age_seconds", "Age of the oldest message in the wheel queue."),
    _of_shard("inbox_depth", "Requests and messages that wait in the store: those of the first thousand items."),
    _gauge("reachable", "1 where the store and the broker answered while the metrics were read, else 0.", "side"),
    # The totals of the store.
    _gauge("pending", "Messages that are accepted and not yet dispatched.", "queue_name"),
    _gauge("overdue", "Messages whose time has passed, and which no pause or rate limit holds back."),
    _gauge("oldest_overdue_seconds", "Lateness, so far, of the oldest overdue message."),
    _gauge("due", "Pending messages that are due within a period: whole hours, beyond two days whole days.", "within"),
    _gauge("due_peak", "Pending messages of the fullest second of the next hour."),
    _gauge("due_peak_timestamp_seconds", "The fullest second of the next hour."),
    _gauge("paused", "Pauses in force: of a queue, of a task, or of everything (all).", "kind"),
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
