"""All samples of a scheduler process, or of a store as another process sees it, by their definitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from celery_wheel.engine.engine import Engine
from celery_wheel.metrics.definitions import METRICS, Metric, Sample
from celery_wheel.metrics.patient import NotAnswered, PatientCall
from celery_wheel.metrics.process import Samples, counters, samples_of, wheel_queues
from celery_wheel.metrics.totals import Totals

logger = logging.getLogger(__name__)

#: Reads all samples.
Collect = Callable[[], Iterator[tuple[Metric, list[Sample]]]]


class ProcessMetrics:
    """The metrics of a scheduler process. Any thread may call it.

    Args:
        engines: returns the process's engines, by shard.
        totals: reads the totals of the store.
    """

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
    """Yield the metrics of a store, as a process without engines sees them: totals, and the holders' last snapshots."""
    yield from defined(_of_snapshots(totals))


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
    """Yield samples with their definitions."""
    for name, found in samples:
        yield METRICS[name], found
