"""Rejected messages in the log: a line for a kind, with the number and the first of them, however many come."""

from __future__ import annotations

import logging

import pytest

from celery_wheel.engine.stats import LOG_EVERY_MS
from celery_wheel.store.model import Unreadable
from tests.unit.engine.conftest import Rig


def push_unreadable(rig: Rig, count: int) -> None:
    for n in range(count):
        id_ = f"00000000-0000-5000-8000-{len(rig.disk.shard(0).rows):06d}{n:06d}"
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
    for task_id in ("a", "b", "c"):
        rig.send(task_id, 1_000, unique="key", on_conflict="reject")
    rig.server.wrong_types.add("nowhere")
    rig.send("lost", 0, routing_key="nowhere", queue="nowhere")
    rig.run(rounds=2)
    rig.pass_time(5)
    rig.run(rounds=2)
    lines = {vars(line)["kind"]: line for line in logged(rig, caplog)}
    assert {kind: (vars(line)["count"], vars(line)["task"]) for kind, line in lines.items()} == {
        "unreadable": (1, ""),
        "unique": (2, "tasks.add"),
        "broker": (1, "tasks.add"),
    }
    assert vars(lines["unique"])["task_id"] == "b"
    assert lines["unique"].levelname == "INFO"  # as the call has asked
    assert "; the first: not JSON; " in lines["unreadable"].getMessage()
