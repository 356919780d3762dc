"""kill -9: what ``apply`` returned for is there, the rest is there in whole changes or not at all, and the shard is
free at once, or where the lease runs by the database's clock, after it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_wheel.store.sql import SqlStore
from tests.stores.backends import SqlBackend
from tests.stores.killed import GROUP, KEY
from tests.stores.samples import EVERYTHING, LEASE, NOW, Holder, acquire

ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(sql_backend: SqlBackend) -> Callable[[str], subprocess.Popen[str]]:
    def start_one(where: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "tests.stores.killed"]
        command = [*program, sql_backend.url, sql_backend.durability, where]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    return start_one


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[Iterator[str]]:
    """Its lines, until the block ends by killing it."""
    assert process.stdout is not None
    with process:
        try:
            yield (line.strip() for line in process.stdout)
        finally:
            process.kill()


def test_what_was_committed_is_there(
    start: Callable[[str], subprocess.Popen[str]], make_sql_store: Callable[[], SqlStore]
) -> None:
    with killed(start("anywhere")) as lines:
        returned = next(int(line) for line in lines if line.isdigit() and int(line) >= 5 * GROUP)
    store = make_sql_store()
    count = store.count(0, 0, *EVERYTHING)
    assert count >= returned
    assert count % GROUP == 0
    assert len(store.slice(0, 0, *EVERYTHING)) == count
    assert store.pending(0) == {KEY: count}


def test_what_was_written_but_not_committed_is_not_there(
    start: Callable[[str], subprocess.Popen[str]], make_sql_store: Callable[[], SqlStore]
) -> None:
    with killed(start("before the commit")) as lines:
        assert "written" in lines
    store = make_sql_store()
    assert store.count(0, 0, *EVERYTHING) == 2 * GROUP
    assert store.pending(0) == {KEY: 2 * GROUP}
    Holder(store).accept(NOW)


def test_the_shard_is_free_when_its_holder_is_dead(
    start: Callable[[str], subprocess.Popen[str]], make_sql_store: Callable[[], SqlStore]
) -> None:
    standby = make_sql_store()
    with killed(start("before the commit")) as lines:
        assert "holding" in lines
        assert standby.acquire(0, "host-b", NOW, LEASE) is None
    assert acquire(standby, name="host-b") == 2
