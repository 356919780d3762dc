"""Rejected messages in the log: a line for a kind, with the number and the first of them, however many come.

Durations are counted by bucket, and the number of histograms is bounded.
"""

import logging
from dataclasses import replace

import pytest

from celery_wheel.engine.stats import LATENESS_MS, LOG_EVERY_MS, MAX_NAMES, OTHER, Histogram, LatenessByTask
from celery_wheel.store.model import Row, Unreadable
from tests.kit.holder import message
from tests.unit.engine.conftest import Rig


def push_unreadable(rig: Rig, count: int) -> None:
    for n in range(count):
        id_ = f"00000000-0000-5000-8000-{len(rig.data.rows):06d}{n:06d}"
        rig.server.keys.wheel.append(Unreadable(id_, "too large", b"?", ("shop.mail", f"mail-{n}")))


def logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        rig.engine.stats.rejections.log(0, rig.clock.monotonic_ms())
    return caplog.records


def test_a_flood_of_rejections_is_one_line_in_ten_seconds(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        push_unreadable(rig, 20)
        rig.run(rounds=2)
    (line,) = logged(rig, caplog)
    assert line.getMessage() == (
        "shard 0: rejected messages (unreadable): 100; the first is of task shop.mail mail-0: too large; celery -A "
        "proj wheel rejected lists them"
    )
    assert (line.levelname, vars(line)["action"], vars(line)["kind"], vars(line)["count"]) == (
        "WARNING",
        "rejected",
        "unreadable",
        100,
    )
    assert (vars(line)["task"], vars(line)["task_id"], vars(line)["reason"]) == ("shop.mail", "mail-0", "too large")
    push_unreadable(rig, 3)
    rig.run(rounds=2)
    assert logged(rig, caplog) == []
    rig.pass_time(LOG_EVERY_MS)
    assert [vars(line)["count"] for line in logged(rig, caplog)] == [3]
    assert logged(rig, caplog) == []


def test_each_kind_has_a_line_with_its_first_task(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.server.keys.wheel.append(Unreadable("00000000-0000-5000-8000-000000000001", "not JSON", b"?"))
    rig.send_all(["a", "b", "c"], 1_000, unique="key", on_conflict="reject")
    rig.server.wrong_types.add("nowhere")
    rig.send("lost", 0, routing_key="nowhere", queue="nowhere")
    rig.run(rounds=2)
    rig.run(rounds=2, after_ms=5)
    lines = {vars(line)["kind"]: line for line in logged(rig, caplog)}
    assert {kind: (vars(line)["count"], vars(line)["task"]) for kind, line in lines.items()} == {
        "unreadable": (1, ""),
        "unique": (2, "tasks.add"),
        "broker": (1, "tasks.add"),
    }
    assert vars(lines["unique"])["task_id"] == "b"
    assert lines["unique"].levelname == "INFO"  # as the call has asked
    assert "; the first: not JSON; " in lines["unreadable"].getMessage()


NOW = 1_800_000_000_000


def row(late_ms: int, task: str = "tasks.add", queue: str = "celery") -> Row:
    return Row.of(message(task=task, queue=queue, routing_key=queue, eta_ms=NOW - late_ms), 1, 0, NOW, 1)


def test_a_duration_is_counted_in_the_bucket_that_ends_at_it() -> None:
    histogram = Histogram((1, 10))
    for duration_ms in (0, 1, 2, 10, 11, 500):
        histogram.add(duration_ms)
    assert list(histogram.cumulative()) == [(0.001, 2), (0.01, 4), (None, 6)]
    assert histogram.sum_ms == 524
    other = Histogram((1, 10))
    other.add(5)
    histogram.merge(other)
    assert (histogram.counts, histogram.sum_ms) == ([2, 3, 2], 529)


def test_lateness_is_kept_by_task_and_queue() -> None:
    lateness = LatenessByTask()
    assert lateness.add([row(-5)], NOW) == 0, "a message that is sent ahead of its time is not late"
    assert lateness.add([row(3), row(40), row(70_000, "tasks.mail", "mail")], NOW) == 70_000
    assert lateness.add([], NOW) == 0
    by_names = lateness.by_names
    assert {names: sum(found.counts) for names, found in by_names.items()} == {
        ("tasks.add", "celery"): 3,
        ("tasks.mail", "mail"): 1,
    }
    assert by_names["tasks.add", "celery"].sum_ms == 43
    assert by_names["tasks.mail", "mail"].counts[LATENESS_MS.index(300_000)] == 1


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
