"""kill -9 of scheduler, broker and database, at random moments under load, for every pair of store and broker.

Judged from outside: what was scheduled against what ran. Redis keeps what it acknowledged (appendfsync always).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults import aof
from tests.faults.site import Server, Site
from tests.postgres import PostgresServer
from tests.rabbit import RabbitServer
from tests.servers import RedisServer

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
    with ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(RedisServer(tmp_path / "redis", **aof.OPTIONS))
        else:
            yield stack.enter_context(RabbitServer(tmp_path / "rabbitmq"))


@pytest.mark.timeout(240)
def test_nothing_is_lost_or_early_and_what_comes_twice_says_so(
    tmp_path: Path, store: tuple[str, PostgresServer | None], broker: Server
) -> None:
    rng = random.Random(SEED)
    store_url, database = store
    with Site(tmp_path, broker, store_url, rng) as site:
        site.wait_for(20, 60)
        faults: list[Callable[[], None]] = [
            lambda: site.kill_scheduler("scheduler-a"),
            lambda: site.kill_scheduler("scheduler-b"),
            site.restart_broker,
        ]
        if database is not None:
            faults.append(database.restart)
        order = [*faults, *rng.choices(faults, k=FAULTS - len(faults))]
        rng.shuffle(order)
        for fault in order:
            fault()
            ran = len(site.notes())
            more = rng.randrange(20, 150)
            site.wait_for(ran + more, 60)
        log = (lambda: aof.published(tmp_path / "redis", "celery")) if isinstance(broker, RedisServer) else None
        verdict = site.settle(30, log)
        print(f"seed {SEED}: {verdict}")
        assert not verdict.lost, f"{verdict}\n{site.said()}"
        assert not verdict.early, str(verdict)
        assert not verdict.strange, str(verdict)
        assert not verdict.twice_unmarked, f"{verdict}: {verdict.twice_unmarked[:3]}\n{site.said()}"
        assert not verdict.published_twice, f"{verdict}: {verdict.published_twice[:3]}"
