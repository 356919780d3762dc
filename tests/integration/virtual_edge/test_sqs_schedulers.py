"""Real schedulers and a real worker on kombu's SQS transport: moto's server in the place of Amazon's."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.faults.load import SCHEDULERS, StackUnderLoad
from tests.kit.patience import wait_until
from tests.kit.servers.sqs import SqsServer


@contextmanager
def stalled(store: Path) -> Iterator[sqlite3.Connection]:
    """Lock the store, so that no other process can commit."""
    with closing(sqlite3.connect(store, timeout=10, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


@pytest.mark.timeout(120)
def test_schedulers_that_are_killed_with_unacknowledged_messages_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wheel.sqlite3"
    with SqsServer(tmp_path / "sqs") as server:
        wheel, client = server.make_queue("wheel-0", VisibilityTimeout="3"), server.client
        server.make_queue("celery", VisibilityTimeout="60")
        options = {**server.options, "polling_interval": 0.05}  # the pause of a worker that has found an empty queue
        stack = StackUnderLoad(
            tmp_path, server, f"sqlite:///{path}", random.Random(5), every_s=0.02, broker_transport_options=options
        )

        def waiting(which: str = "") -> int:
            name = f"ApproximateNumberOfMessages{which}"
            found = client.get_queue_attributes(QueueUrl=wheel, AttributeNames=[name])
            return int(found["Attributes"][name])

        with stack:
            stack.wait_for_runs(20)
            with stalled(path) as store:
                (stored,) = store.execute("SELECT count(*) FROM wheel_timer").fetchone()

                def held() -> int:
                    """Return the number of messages that were read and are in no store, or fewer."""
                    return len(stack.scheduled) - stored - waiting()

                # Messages go on at their pace: a holder reads only until its lease is over, which it cannot renew now.
                wait_until(lambda: held() > 0, "messages are read that cannot be committed")
                stack.every_s = 1
                for name in SCHEDULERS:
                    stack[name].kill()
                wait_until(lambda: held() > 0, "the messages are hidden, and no process has them", 2)
            stack.every_s = 0.02
            for name in SCHEDULERS:
                stack.beat(name)
            stack.wait_for_runs(len(stack.runs()) + 30)
            verdict = stack.settle(30)
            print(verdict)
            wait_until(lambda: waiting() == waiting("NotVisible") == 0, "the wheel queue is empty")
    assert not verdict.lost, f"{verdict}"
    assert not verdict.early, str(verdict)
    assert not verdict.strange, str(verdict)
    assert not verdict.twice_unmarked, f"{verdict}: {verdict.twice_unmarked[:3]}"
