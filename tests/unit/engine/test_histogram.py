"""Durations are counted by bucket, and the number of histograms is bounded."""

from __future__ import annotations

from dataclasses import replace

from celery_wheel.engine.stats import LATENESS_MS, MAX_NAMES, OTHER, Histogram, LatenessByTask
from celery_wheel.store.model import Row
from tests.kit.holder import message

NOW = 1_800_000_000_000


def row(late_ms: int, task: str = "tasks.add", queue: str = "celery") -> Row:
    return Row.of(message(task=task, queue=queue, routing_key=queue, eta_ms=NOW - late_ms), 1, 0, NOW, 1)


def test_a_duration_is_counted_in_the_bucket_that_ends_at_it() -> None:
    histogram = Histogram((1, 10))
    for duration_ms in (0, 1, 2, 10, 11, 500):
        histogram.add(duration_ms)
    assert list(histogram.cumulative()) == [(0.001, 2), (0.01, 4), (None, 6)]
    assert histogram.sum_ms == 524


def test_merged_histograms_have_the_counts_of_both() -> None:
    one, other = Histogram((1, 10)), Histogram((1, 10))
    one.add(1)
    other.add(5)
    other.add(50)
    one.merge(other)
    assert (one.counts, one.sum_ms) == ([1, 1, 1], 56)


def test_lateness_is_kept_by_task_and_queue() -> None:
    lateness = LatenessByTask()
    assert lateness.add([row(3), row(40), row(70_000, "tasks.mail", "mail")], NOW) == 70_000
    assert lateness.add([], NOW) == 0
    by_names = lateness.by_names
    assert {names: sum(found.counts) for names, found in by_names.items()} == {
        ("tasks.add", "celery"): 2,
        ("tasks.mail", "mail"): 1,
    }
    assert by_names["tasks.add", "celery"].sum_ms == 43
    assert by_names["tasks.mail", "mail"].counts[LATENESS_MS.index(300_000)] == 1


def test_a_message_that_is_sent_ahead_of_its_time_is_not_late() -> None:
    lateness = LatenessByTask()
    assert lateness.add([row(-5)], NOW) == 0
    assert lateness.by_names["tasks.add", "celery"].sum_ms == 0


def test_the_tasks_after_the_first_many_share_a_histogram() -> None:
    lateness, merged = LatenessByTask(), LatenessByTask()
    lateness.add([row(1, f"tasks.t{n}") for n in range(MAX_NAMES + 3)], NOW)
    assert len(lateness.by_names) == MAX_NAMES + 1
    assert sum(lateness.by_names[OTHER, OTHER].counts) == 3
    merged.add([row(1, "tasks.own")], NOW)
    merged.merge(lateness)
    assert len(merged.by_names) == MAX_NAMES + 1
    assert sum(sum(found.counts) for found in merged.by_names.values()) == MAX_NAMES + 4


def test_routes_that_differ_in_other_things_share_the_histogram_of_their_names() -> None:
    lateness, first = LatenessByTask(), row(1)
    second = replace(first)
    second.route = type(first.route)(**{name: getattr(first.route, name) for name in first.route.__slots__})
    lateness.add([first, second], NOW)
    assert [sum(found.counts) for found in lateness.by_names.values()] == [2]
