"""kombu's SQLAlchemy transport over a real PostgreSQL, a broker that is a table, with real schedulers and a worker."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.load import StackUnderLoad
from tests.kit.servers.postgres import PostgresServer


@dataclass
class TableBroker:
    server: PostgresServer
    url: str

    def restart(self) -> None:
        self.server.restart()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # kombu's own
def test_delayed_tasks_go_through_the_wheel_and_run_once(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.new_database()
        broker = TableBroker(server, url.replace("postgresql://", "sqla+postgresql+psycopg://"))
        # A worker takes about 15 a second from such a broker.
        stack = StackUnderLoad(tmp_path, broker, f"sqlite:///{tmp_path}/wheel.sqlite3", random.Random(3), every_s=0.2)
        with stack.app.connection_for_write() as connection:
            connection.default_channel.queue_declare(
                "celery"
            )  # makes the tables: kombu cannot make them from several processes at once
        with stack:
            stack.wait_for_runs(40)
            verdict = stack.settle(40)
    assert verdict.ran == verdict.scheduled >= 40, str(verdict)
    assert (verdict.lost, verdict.early, verdict.twice_unmarked) == ([], [], []), str(verdict)
