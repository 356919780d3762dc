"""Beat waits for a store and a broker, refuses a store that it cannot use, and leaves nothing behind when it stops."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from celery_wheel import Celery, beat
from celery_wheel.scheduler import service
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.sqlite import database
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


def test_beat_waits_for_a_server_that_is_down(tmp_path: Path, redis_server: RedisServer) -> None:
    with PostgresServer() as server, Stack(tmp_path, redis_server, server.new_database()) as stack:
        server.stop()
        beat = stack.beat()
        beat.wait_for("beat waits for its store")
        assert "cannot be reached" in beat.said()
        server.restart()
        stack.wait_for_holder(beat)
        assert (beat.terminate(), "Traceback" in beat.said()) == (0, False)


def test_beat_may_be_stopped_while_it_waits(tmp_path: Path, redis_server: RedisServer) -> None:
    with Stack(tmp_path, redis_server, "postgresql://wheel@127.0.0.1:1/wheel") as stack:
        beat = stack.beat()
        beat.wait_for("beat waits for its store")
        assert (beat.terminate(), "Traceback" in beat.said()) == (0, False)


def test_a_signal_during_the_start_ends_beat_although_a_transaction_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery's handler closes the scheduler between any two steps of the thread that starts it, then raises."""
    register, calls = SqlStore.register_scheduler, itertools.count(1)

    def interrupt_second(store: SqlStore, *args: Any) -> list[str]:
        if next(calls) == 1:
            return register(store, *args)
        with store.database.writing():
            scheduler.close()
            raise SystemExit

    monkeypatch.setattr(SqlStore, "register_scheduler", interrupt_second)
    with Celery("proj", broker="memory://", set_as_current=False) as app:
        app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
        scheduler = beat.WheelScheduler(app, schedule_filename=str(tmp_path / "celerybeat-schedule"))
        with pytest.raises(SystemExit):
            scheduler.tick()
        scheduler.close()  # Celery does so as the error leaves the tick
    with closing(sqlite3.connect(tmp_path / "wheel.sqlite3")) as store:
        assert store.execute("SELECT count(*) FROM wheel_scheduler").fetchone() == (0,), "it is given up"


def test_a_signal_within_a_statement_leaves_the_signals_error_and_rolls_back(tmp_path: Path) -> None:
    """SQLAlchemy closes the connection of a statement that SystemExit interrupts."""

    def interrupt(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement in ("COMMIT", "SELECT 2"):
            raise SystemExit

    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")) as store:
        event.listen(Engine, "before_cursor_execute", interrupt)
        try:
            with pytest.raises(SystemExit):
                store.register_scheduler("host/a/1", 0, 1_000)
            with pytest.raises(SystemExit), store.database.snapshot() as connection:
                connection.exec_driver_sql("SELECT 2")
        finally:
            event.remove(Engine, "before_cursor_execute", interrupt)
        assert store.register_scheduler("host/b/2", 0, 1_000) == ["host/b/2"], "the next transaction is well"


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
def test_a_scheduler_waits_while_another_process_locks_the_file(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0)
    monkeypatch.setattr(service, "RETRY_FIRST_S", 0.01)
    if used:
        open_store(stack.store).close()
    with closing(sqlite3.connect(stack.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        unlock = Reaction("store_not_ready", other.rollback)
        service.logger.addHandler(unlock)
        try:
            with stack.service():
                wait_until(stack.holders, "shard 0 has a holder")
        finally:
            service.logger.removeHandler(unlock)
    assert "is locked by another process" in unlock.messages[0]


class Reaction(logging.Handler):
    """Calls a function at each record of an action."""

    def __init__(self, action: str, react: Callable[[], None]) -> None:
        super().__init__()
        self._action, self._react = action, react
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", None) == self._action:
            self.messages.append(record.getMessage())
            self._react()


TIMES = 20


def descriptors() -> int:
    """Count the descriptors, but for kombu's pollers, which the garbage collector closes: each transport makes one."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "eventpoll" not in os.readlink(f"/proc/self/fd/{number}")
    return found


def has_threads() -> bool:
    return any(one.name.startswith("wheel-") for one in threading.enumerate())


@pytest.fixture(params=["redis", "rabbit", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_server").url)
    return str(request.getfixturevalue("rabbit_server").fresh()) if request.param == "rabbit" else "memory://"


@pytest.fixture
def app(tmp_path: Path, url: str) -> Any:
    with Celery("stopped", broker=url, set_as_current=False) as app:
        app.conf.update(wheel_store=f"sqlite:///{tmp_path}/wheel.sqlite3", wheel_shards=2)
        yield app


def started(app: Any) -> WheelService:
    running = WheelService(app)
    running.start()
    wait_until(lambda: running.holds(0) and running.holds(1), "the service holds its shards")
    return running


def test_descriptors_and_threads_do_not_grow_with_starts_and_stops(app: Any) -> None:
    gc.disable()  # the stop closes, and no collection afterwards
    try:
        for _ in range(2):
            started(app).stop()
        wait_until(lambda: not has_threads(), "the threads of a stopped service have ended")
        before = descriptors()
        for _ in range(TIMES):
            started(app).stop()
        wait_until(lambda: not has_threads(), "the threads of all services have ended")
        assert descriptors() <= before
    finally:
        gc.enable()


def test_a_connection_that_hangs_delays_a_stop_for_a_bounded_time(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "CLOSE_S", 0.1)
    go_on, stopped = threading.Event(), threading.Event()
    running = started(app)
    close = running._brokers[0].close

    def hang() -> None:
        go_on.wait(patience())
        close()

    monkeypatch.setattr(running._brokers[0], "close", hang)
    thread = threading.Thread(target=lambda: (running.stop(), stopped.set()))
    thread.start()
    try:
        assert stopped.wait(patience(15)), "the stop waits for the connection"
        with caplog.at_level(logging.WARNING):
            assert "1 of 2 connections to the broker are not closed after 0.1 s" in caplog.text
    finally:
        go_on.set()
        thread.join(patience())


def test_a_connection_that_cannot_be_closed_does_not_keep_the_others_open(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, closed = started(app), list[int]()
    first, second = (one.close for one in running._brokers)

    def fail() -> None:
        first()
        raise RuntimeError("no answer")

    monkeypatch.setattr(running._brokers[0], "close", fail)
    monkeypatch.setattr(running._brokers[1], "close", lambda: (second(), closed.append(1)))
    running.stop()
    assert closed == [1]
    assert "a connection to the broker ended with RuntimeError('no answer')" in caplog.text
