"""The health of a scheduler process: live, ready, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Stuck
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.overview import read_overview
from celery_wheel.scheduler import monitoring
from celery_wheel.scheduler.monitoring import Health
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder
from tests.unit.engine.conftest import Rig

OBJECTIVE_MS = 5_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """Return a store whose shard has a holder."""
    found = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    Holder(found)
    yield found
    found.close()


def health_of(store: SqlStore, *engines: Engine, failure: BaseException | None = None) -> Health:
    pool = Pool()
    pool.failure = failure and ("ingest of shard 0", failure)
    return Health(lambda: engines, pool, lambda: read_overview(store, NOW), OBJECTIVE_MS)


def test_a_holder_in_time_is_live_and_ready(rig: Rig, store: SqlStore) -> None:
    rig.run(rounds=1)
    Holder(store).accept(NOW - OBJECTIVE_MS)
    found = health_of(store, rig.engine)
    assert (found.livez(""), found.readyz("")) == ((200, b"ok\n", monitoring.HttpAnswer(1, b"").content_type),) * 2


def test_a_holder_that_is_later_than_the_objective_is_not_ready(rig: Rig, store: SqlStore) -> None:
    Holder(store).accept(NOW - OBJECTIVE_MS - 500)
    found = health_of(store, rig.engine)
    assert found.not_ready() == [], "another process holds the shard"
    rig.run(rounds=1)
    assert found.not_live() == []
    assert found.not_ready() == ["shard 0 is 5.5 s late, and wheel_objective allows 5 s"]


def test_a_standby_is_ready_while_another_holds_the_shard(rig: Rig, store: SqlStore) -> None:
    standby = Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)
    assert health_of(store, standby).not_ready() == []
    store.release(0, store.state(0).epoch)
    assert health_of(store, standby).not_ready() == ["shard 0 has no holder"]


def test_a_store_and_a_broker_that_do_not_answer_are_named(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_store(*_: object, **__: object) -> None:
        raise StoreError("gone")

    def no_broker(shard: int) -> int:
        raise BrokerError("refused")

    monkeypatch.setattr(store.browse, "overview", no_store)
    monkeypatch.setattr(rig.broker, "depth", no_broker)
    found = health_of(store, rig.engine)
    assert found.not_ready() == ["the store does not answer: gone", "the broker does not answer: refused"]
    assert found.livez("").status == 200, "a restart would not help"
    assert found.readyz("").status == 503


def test_a_clock_that_is_too_far_off_is_named(rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.clock, "_fit", False)
    assert "clock" in health_of(store, rig.engine).not_ready()[0]


def test_a_process_whose_engine_failed_is_not_live(rig: Rig, store: SqlStore) -> None:
    found = health_of(store, rig.engine, failure=LookupError("a defect"))
    assert found.livez("").status == 503
    assert b"a defect" in found.livez("").body
    assert found.readyz("").status == 503


@pytest.mark.parametrize(
    ("runs", "answers", "live"), [(True, True, False), (True, False, True), (False, True, False), (False, False, False)]
)
def test_a_stuck_job_is_not_live_unless_it_may_wait_for_a_silent_server(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch, runs: bool, answers: bool, live: bool
) -> None:
    def no_broker(shard: int) -> int:
        raise BrokerError("refused")

    found = health_of(store, rig.engine)
    monkeypatch.setattr(found._pool, "stuck", lambda: [Stuck("settle of shard 0", 14, runs)])
    if not answers:
        monkeypatch.setattr(rig.broker, "depth", no_broker)
    assert (found.not_live() == []) is live
    assert live or "the job settle of shard 0" in found.not_live()[0]


def test_a_process_without_engines_is_starting_or_stopping(store: SqlStore) -> None:
    assert health_of(store).not_ready() == ["the scheduler is starting or stopping"]
