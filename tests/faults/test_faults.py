"""kill -9 of scheduler, broker and database, at random moments under load, for every pair of store and broker.

The judge compares scheduled tasks with executions. Redis keeps acknowledged writes (appendfsync always).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults import aof
from tests.faults.load import StackUnderLoad
from tests.kit.servers import Server
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer

SEED = int(os.environ.get("WHEEL_FAULT_SEED", "7"))
FAULTS = 6


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, PostgresServer | None]]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/wheel.sqlite3", None
        return
    with PostgresServer(fsync="on") as server:
        yield server.url(), server


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with ExitStack() as servers:
        if request.param == "redis":
            yield servers.enter_context(RedisServer(tmp_path / "redis", **aof.OPTIONS))
        else:
            yield servers.enter_context(RabbitServer(tmp_path / "rabbitmq"))


def test_no_task_is_lost_or_early_and_second_copies_are_marked(
    tmp_path: Path, store: tuple[str, PostgresServer | None], broker: Server
) -> None:
    rng = random.Random(SEED)
    store_url, database = store
    with StackUnderLoad(tmp_path, broker, store_url, rng) as stack:
        stack.wait_for_runs(20)
        faults: list[Callable[[], None]] = [
            lambda: stack.kill_scheduler("scheduler-a"),
            lambda: stack.kill_scheduler("scheduler-b"),
            stack.restart_broker,
        ]
        if database is not None:
            faults.append(database.restart)
        order = [*faults, *rng.choices(faults, k=FAULTS - len(faults))]
        rng.shuffle(order)
        for fault in order:
            fault()
            ran = len(stack.runs())
            more = rng.randrange(20, 150)
            stack.wait_for_runs(ran + more)
        log = (lambda: aof.published(tmp_path / "redis", "celery")) if isinstance(broker, RedisServer) else None
        verdict = stack.settle(30, log)
        print(f"seed {SEED}: {verdict}")
        assert not verdict.lost, f"{verdict}"
        assert not verdict.early, str(verdict)
        assert not verdict.strange, str(verdict)
        assert not verdict.twice_unmarked, f"{verdict}: {verdict.twice_unmarked[:3]}"
        assert not verdict.published_twice, f"{verdict}: {verdict.published_twice[:3]}"
