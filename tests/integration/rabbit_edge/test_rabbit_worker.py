"""A real worker and two real schedulers on RabbitMQ, as an operator sets them up."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from kombu import Queue

from tests.faults.load import StackUnderLoad
from tests.integration.rabbit_edge.conftest import Yard
from tests.kit.patience import patience, wait_until


@pytest.mark.parametrize(
    "settings",
    [{}, {"task_default_queue_type": "quorum", "worker_detect_quorum_queues": True}],
    ids=["classic", "quorum, with Celery's own delayed delivery"],
)
def test_delayed_tasks_go_through_the_wheel_and_run_once(tmp_path: Path, yard: Yard, settings: dict[str, Any]) -> None:
    """With a quorum queue Celery delays by exchanges of its own: the wheel has to act before that."""
    store = tmp_path / "wheel.sqlite3"
    settings = {"wheel_lease": 60, **settings}  # a holder that stands still sends nothing again after it
    with StackUnderLoad(tmp_path, yard, f"sqlite:///{store}", random.Random(1), **settings) as stack:
        stack.wait_for_runs(100)
        verdict = stack.settle(40)
    assert verdict.ran == verdict.scheduled >= 100
    assert (verdict.lost, verdict.early, verdict.twice_marked, verdict.twice_unmarked) == ([], [], [], []), str(verdict)
    with sqlite3.connect(store) as database:
        (accepted,) = database.execute("SELECT count(*) FROM wheel_timer").fetchone()
    database.close()
    assert accepted == verdict.scheduled, "every one of them was in the wheel"


def test_tasks_for_a_full_queue_wait_and_delay_no_other_queue(tmp_path: Path, yard: Yard) -> None:
    yard.queue("full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    yard.channel.basic_publish(_message(), routing_key="full")
    store = tmp_path / "wheel.sqlite3"
    with StackUnderLoad(tmp_path, yard, f"sqlite:///{store}", random.Random(2)) as stack:
        waiting = [
            stack.app.send_task(
                "note", ("full", 0), countdown=1 + n / 10, queue=Queue("full", routing_key="full", no_declare=True)
            ).id
            for n in range(5)
        ]
        stack.wait_for_runs(150)
        arrived: list[str] = []

        def all_arrived() -> bool:
            arrived.extend(m.properties["application_headers"].get("id", "") for m in yard.take("full", 1))
            return len([one for one in arrived if one]) >= 5

        wait_until(all_arrived, "the tasks for the full queue")
        assert [one for one in arrived if one] == waiting, "in the order in which they were due"
        assert stack.settle(40).late_ms < patience(5_000)


def _message() -> Any:
    import amqp

    return amqp.Message(b"in the way", application_headers={})
