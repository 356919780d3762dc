"""The samples of one process: the counts, histograms and memory of its engines, and the wheel queues of its shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.stats import Histogram, LatenessByTask, Stats
from celery_wheel.metrics.definitions import Sample
from celery_wheel.store.model import Message

Samples = tuple[str, list[Sample]]

#: Counters without another label than the shard, each with its count of ``Stats``.
_PLAIN = {
    "accepted": "accepted",
    "dispatched": "dispatched",
    "expired": "expired",
    "cancelled": "cancelled",
    "moved": "moved",
    "completed": "completed",
    "redelivered": "redelivered",
    "takeovers": "adoptions",
    "broker_rollbacks": "rollbacks",
    "broker_emptied": "emptied",
    "guard_trips": "guard_trips",
    "schedule_errors": "schedule_errors",
    "process_ends": "process_ends",
}


def counters(by_shard: Mapping[int, Mapping[str, Any]]) -> Iterator[Samples]:
    """Yield the samples of the counts of several shards: those of ``Stats``, or of a snapshot in the store."""
    shown = {str(shard): counts for shard, counts in by_shard.items()}
    for name, count in _PLAIN.items():
        yield name, [((shard,), counts.get(count, 0)) for shard, counts in shown.items()]
    rejected, errors = list[Sample](), list[Sample]()
    for shard, counts in shown.items():
        unreadable, unique = counts.get("rejected_unreadable", 0), counts.get("rejected_unique", 0)
        rejected += [
            ((shard, "unreadable"), unreadable),
            ((shard, "unique"), unique),
            ((shard, "broker"), counts.get("rejected", 0) - unreadable - unique),
        ]
        errors += [((shard, side), counts.get(f"{side}_errors", 0)) for side in ("store", "broker")]
    yield "rejected", rejected
    yield "errors", errors


def counts_of(stats: Stats) -> dict[str, int]:
    return {field.name: getattr(stats, field.name) for field in fields(stats)}


def samples_of(engines: Sequence[Engine]) -> Iterator[Samples]:
    """Yield the samples that need neither the store nor the broker."""
    yield from counters({engine.shard: counts_of(engine.stats) for engine in engines})
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
