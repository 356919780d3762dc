"""Real schedulers and a real worker on kombu's transports for SQL tables and for SQS, with the server of moto."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.load import SCHEDULERS, StackUnderLoad
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.sqs import SqsServer

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # kombu's own
def test_delayed_tasks_go_through_the_wheel_and_run_once(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.new_database().replace("postgresql://", "sqla+postgresql+psycopg://")
        broker: Any = SimpleNamespace(url=url, restart=server.restart)
        # A worker takes about 15 a second from such a broker.
        stack = StackUnderLoad(tmp_path, broker, f"sqlite:///{tmp_path}/wheel.sqlite3", random.Random(3), every_s=0.2)
        with stack.app.connection_for_write() as connection:
            # It makes the tables: kombu cannot make them from several processes at once.
            connection.default_channel.queue_declare("celery")
        with stack:
            stack.wait_for_runs(40)
            verdict = stack.settle(40)
    assert verdict.ran == verdict.scheduled >= 40, str(verdict)
    assert verdict.broken() == {}, str(verdict)


#: A holder that cannot renew its lease reads messages until it is over, and a message that was read is hidden as long:
#: time enough for a machine under load.
LEASE_S = 15


@contextmanager
def stalled(store: Path) -> Iterator[None]:
    with closing(sqlite3.connect(store, timeout=patience(), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_schedulers_that_are_killed_with_unacknowledged_messages_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wheel.sqlite3"
    with SqsServer(tmp_path / "sqs") as server:
        wheel, client = server.make_queue("wheel-0", VisibilityTimeout=str(LEASE_S)), server.client
        server.make_queue("celery", VisibilityTimeout="60")
        options = {**server.options, "polling_interval": 0.05}  # the pause of a worker that has found an empty queue
        settings = {"broker_transport_options": options, "wheel_lease": LEASE_S}
        stack = StackUnderLoad(tmp_path, server, f"sqlite:///{path}", random.Random(5), every_s=0.02, **settings)

        def waiting(which: str = "") -> int:
            name = f"ApproximateNumberOfMessages{which}"
            found = client.get_queue_attributes(QueueUrl=wheel, AttributeNames=[name])
            return int(found["Attributes"][name])

        with stack:
            stack.wait_for_runs(20)
            stack.pauses = True
            # A holder that waits for the store with a dispatch, or to settle, reads no message.
            wait_until(lambda: stack.is_done() and stack.pending() == [0], "all tasks are dispatched and settled")
            wait_until(lambda: waiting() == waiting("NotVisible") == 0, "all messages are acknowledged")
            with stalled(path):
                for _ in range(10):
                    stack.schedule(5)
                wait_until(lambda: waiting("NotVisible") > 0, "messages are read that cannot be committed")
                for name in SCHEDULERS:
                    stack[name].kill()
                assert waiting("NotVisible") > 0, "the messages are hidden, and no process has them"
            stack.pauses = False
            for name in SCHEDULERS:
                stack.beat(name)
            stack.wait_for_runs(len(stack.runs()) + 30)
            verdict = stack.settle(30)
            print(verdict)
            wait_until(lambda: waiting() == waiting("NotVisible") == 0, "the wheel queue is empty")
    assert verdict.broken() == {}, str(verdict)
