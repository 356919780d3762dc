"""Decisions about due instants, compared with a walk through all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.engine.recurring.overlap import MAX_COUNTED, Occupied, Times, decide, latest, skip
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Spec
from celery_wheel.recurring.call import ScheduledCall
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.schedule_model import MISSED, Run, Schedule

NOW = 1_700_000_000_000
MINUTE = 60_000

SPECS: list[Callable[[random.Random], Spec]] = [
    lambda rng: Interval(rng.choice((7, 100, 1_000, 90_000, 5_000_000))),
    lambda rng: Crontab(minute=rng.choice(("*", "*/7", "3"))),
    lambda rng: Instants(tuple(sorted({NOW + rng.randrange(-200_000, 200_000) for _ in range(20)} | {NOW + 10**7}))),
]


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_every_due_instant_is_made_or_skipped_once(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        compare_with_a_walk(seed)


def compare_with_a_walk(seed: int) -> None:
    rng = random.Random(seed)
    recurrence = Recurrence(rng.choice(SPECS)(rng))
    catch_up = rng.choice(("latest", "all", "none"))
    overlap = rng.choice(("allow", "allow", "skip", "queue_one", "cancel_running"))
    definition = Definition(
        recurrence, ScheduledCall("app.report"), catch_up, rng.choice((50_000, MINUTE * 60)), overlap
    )
    late_ms, ahead_ms = rng.choice((100, 10_000)), 0 if definition.is_guarded else rng.choice((0, 2_000))
    first = recurrence.next_after(NOW - rng.choice((0, 3, 500, 20_000, 200_000)))
    assert first is not None
    times = Times(NOW, NOW + ahead_ms, late_ms)
    if first > times.upto_ms:
        return
    running = {"task": Run(1, 1, 1)} if rng.random() < 0.3 else {}
    occupied = Occupied(running, rng.choice((-1, NOW - 50_000, NOW - 50)))
    most = rng.choice((1, 3, 10**6))
    decision = decide(Schedule(1, "name", "", "api", 1, first), first, definition, times, most, occupied)
    end = times.upto_ms if decision.next_ms is None else min(times.upto_ms, decision.next_ms - 1)
    due = list(recurrence.between(first - 1, end))
    skipped = [at_ms for one in decision.skips for at_ms in due if one.from_ms <= at_ms <= one.to_ms]
    assert sorted([*decision.make, *skipped]) == due
    for one in decision.skips:
        count = sum(one.from_ms <= at_ms <= one.to_ms for at_ms in due)
        assert one.count == count or (one.count == -MAX_COUNTED and count > MAX_COUNTED)
    assert len(decision.make) <= (1 if definition.is_guarded else most)
    assert all(at_ms <= times.upto_ms for at_ms in decision.make)
    if definition.is_guarded and running and overlap != "cancel_running":
        assert decision.make == []
    if catch_up == "none" and overlap != "queue_one":
        assert all(at_ms >= times.missed_before_ms for at_ms in decision.make)
    if catch_up == "latest" and overlap == "allow" and due[-1] <= NOW:
        assert decision.make, "the latest instant runs"


def test_the_latest_instant_is_found_by_halving() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        recurrence = Recurrence(rng.choice(SPECS)(rng))
        first = recurrence.next_after(NOW - 300_000)
        upto_ms = NOW + rng.randrange(100_000)
        assert first is not None
        if first <= upto_ms:
            assert latest(recurrence, first, upto_ms) == list(recurrence.between(first - 1, upto_ms))[-1], seed


@pytest.mark.parametrize(
    ("spec", "minutes", "count"),
    [
        (Crontab(), 359, 359),
        (Crontab(), 1_000, 1_000),
        (Crontab(), 1_001, -MAX_COUNTED),
        (Interval(1_000), 10_080, 10_079 * 60 + 1),
    ],
)
def test_the_instants_of_a_long_outage_are_counted(spec: Any, minutes: int, count: int) -> None:
    minute_ms = 60_000
    first = NOW - NOW % minute_ms
    last = first + (minutes - 1) * minute_ms
    assert skip(1, Recurrence(spec), first, last, MISSED, NOW).count == count
