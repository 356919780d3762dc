"""After kill -9, every change that ``apply`` returned for is stored, every other change is stored as a whole or not at
all, and the shard is free at once, or, where the lease runs by the database's clock, after the lease."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import SqlBackend
from tests.contract.stores.killed import GROUP, KEY
from tests.kit.holder import EVERYTHING, LEASE, NOW, Holder, acquire
from tests.kit.patience import wait_until
from tests.kit.processes import Process, python
from tests.kit.warm import CELERY


@pytest.fixture
def start(sql_backend: SqlBackend, tmp_path: Path) -> Callable[[str], Process]:
    program = ["-m", "tests.contract.stores.killed", sql_backend.url, sql_backend.durability]
    return lambda where: python(tmp_path / "killed.log", *program, where, kind=CELERY)


def test_committed_changes_survive(start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]) -> None:
    with start("anywhere") as process:
        wait_until(lambda: len(process.lines()) > 5, "five groups are committed")
    returned = int(process.lines()[-1])
    assert returned >= 5 * GROUP
    store = make_sql_store()
    count = store.count(0, 0, *EVERYTHING)
    assert count >= returned
    assert count % GROUP == 0
    assert len(store.slice(0, 0, *EVERYTHING)) == count
    assert store.pending(0) == {KEY: count}


def test_uncommitted_changes_are_not_stored(
    start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]
) -> None:
    with start("before the commit") as process:
        process.wait_for("stopped")
    store = make_sql_store()
    assert store.count(0, 0, *EVERYTHING) == 2 * GROUP
    assert store.pending(0) == {KEY: 2 * GROUP}
    Holder(store).accept(NOW)


def test_the_shard_is_free_when_its_holder_is_dead(
    start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]
) -> None:
    standby = make_sql_store()
    with start("before the commit") as process:
        process.wait_for("holding")
        assert standby.acquire(0, "host-b", NOW, LEASE) is None
    assert acquire(standby, name="host-b") == 2
