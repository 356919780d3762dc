"""Processes of schedulers: they start, wait, stop, are killed, and refuse to start where they cannot work."""

import gc
import itertools
import json
import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from celery_wheel import Celery, beat
from celery_wheel.errors import ArgumentError
from celery_wheel.scheduler import service
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.sqlite import database
from tests.integration.scheduler.conftest import TICK
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: tests/contract/stores/test_takeover.py has the promise of three seconds; here a machine may stand still for seconds.
TAKEOVER_S = 10

STANDS_BY = "this scheduler stands by"


@pytest.fixture
def beat_schedule() -> dict[str, dict[str, Any]]:
    return TICK


def test_a_scheduler_dispatches_and_runs_periodic_entries_and_stops_cleanly(stack: Stack) -> None:
    beat = stack.beat()
    ids = stack.send(0.3, count=20)
    wait_until(lambda: len(stack.dispatched()) == 20, "the tasks are dispatched")
    assert stack.dispatched() == ids
    wait_until(lambda: stack.ticks() >= 3, "the periodic entry is sent")
    code, output = beat.terminate(), beat.said()
    assert code == 0, output
    assert "Traceback" not in output
    pending = {task.task for task in stack.app.wheel.pending().items}
    assert (stack.holders(), pending) == ({}, {"tick"}), "stopping settles, and frees the shard; occurrences are ahead"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="these tests run under nohup, as beat then does"
)
def test_a_closed_terminal_ends_beat_as_sigterm_does(stack: Stack, processes: int) -> None:
    stack.change(wheel_shards=processes, wheel_processes=processes)
    beat = stack.beat()
    wait_until(lambda: len(stack.holders()) == processes or not beat.is_alive(), "all shards have a holder")
    os.killpg(beat.pid, signal.SIGHUP)  # to all processes of the terminal at once, as the kernel does
    code, said = beat.end()
    assert stack.holders() == {}, "every shard is given up, so nobody waits for a lease"
    assert (code, "Traceback" in said) == (0, False)


@pytest.mark.slow
def test_the_standby_takes_over_soon_after_a_kill(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    second = stack.beat()
    second.wait_for(STANDS_BY)
    early, late = stack.send(0.2, count=5), stack.send(patience(5), count=5)
    wait_until(lambda: len(stack.dispatched()) >= 5, "the first dispatches")
    wait_until(lambda: not stack.redis.llen("wheel.0"), "all is accepted")
    ticks = stack.ticks()
    wait_until(lambda: stack.ticks() >= ticks + 4, "the periodic entry is sent by the holder alone")
    epoch = stack.redis.hget("wheel.offset.0", "epoch")  # before the kill: the second may adopt while the first ends
    first.kill()
    wait_until(lambda: stack.redis.hget("wheel.offset.0", "epoch") != epoch, "the second adopts", TAKEOVER_S)
    wait_until(lambda: len(stack.dispatched()) == 10, "the second dispatches what the first had accepted")
    assert stack.dispatched() == early + late
    assert second.is_alive()


def test_a_standby_sends_no_periodic_entry(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    stack.beat().wait_for(STANDS_BY)
    first.suspend()  # it still has the kernel's lock, so no standby takes over
    stack.redis.ping()  # what the first has sent is carried out before the answer, or with it
    before = stack.ticks()
    sentinel = stack.redis.time()[0]
    wait_until(lambda: stack.redis.time()[0] >= sentinel + 3, "six intervals of the entry have passed")
    assert stack.ticks() == before
    first.resume()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wheel_tick": -1}, "wheel_tick must be"),
        ({"wheel_lese": 1}, "wheel_lese is an unknown setting"),
        ({"wheel_store": "sqlite:////proc/no/such/wheel.sqlite3"}, "/proc/no/such"),
        ({"broker_url": "filesystem://"}, "broker_url must use a transport that the wheel supports"),
    ],
)
def test_an_impossible_setting_stops_the_start_with_a_reason(
    stack: Stack, settings: dict[str, object], said: str
) -> None:
    code, output = stack.beat(**settings).end()
    assert said in output
    assert "Traceback" not in output
    assert code == 1


def test_a_store_of_a_newer_schema_is_refused(stack: Stack) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.kill()
    with sqlite3.connect(stack.file) as connection:
        connection.execute("UPDATE wheel_meta SET schema_version = 999")
    connection.close()
    code, output = stack.beat().end()
    assert "999" in output
    assert "newer" in output
    assert code == 1


def test_unreadable_messages_are_rejected_and_the_loop_goes_on(stack: Stack) -> None:
    good = stack.send(0)  # countdown 0 goes native; the next message shows the form
    stack.send(60)
    (sample,) = stack.redis.lrange("wheel.0", 0, -1)
    message = json.loads(sample)

    envelopes = [{**message["headers"]["wheel"], **change} for change in ({"v": 99}, {"eta_ms": -1}, {"task": 7})]
    changes = [{"headers": {}}, {"body": "A" * (10 * 2**20)}, *({"headers": {"wheel": one}} for one in envelopes)]
    bad = [b"", b"\xff\xfe", sample[: len(sample) // 2]]
    bad += [json.dumps({**message, **change}).encode() for change in changes]
    stack.redis.lpush("wheel.0", *bad)
    beat = stack.beat()
    ids = stack.send(0.2)
    wait_until(lambda: stack.dispatched() == good + ids, "later messages are dispatched")
    wait_until(lambda: not stack.redis.llen("wheel.0"), "the wheel queue is empty")
    with closing(open_store(stack.store, create=False)) as store:
        kept = list(store.handover.stopped(0, ["rejected"]))
    assert sorted(one.message.body for one in kept) == sorted(bad)
    assert all(one.reason for one in kept)
    wait_until(lambda: beat.said().count("rejected messages (unreadable): ") > 0, "the log says so")
    assert beat.said().count("rejected messages (unreadable): ") < len(bad) / 2


def test_a_message_over_the_limit_is_refused_or_rejected_with_its_name_and_id(stack: Stack) -> None:
    stack.change(wheel_max_message_bytes=100_000)
    stack.app.conf.wheel_max_message_bytes = 100_000
    with pytest.raises(ArgumentError, match=r"at most 100,000 bytes \(wheel_max_message_bytes\), got 1"):
        stack.app.send_task("t", ("x" * 80_000,), countdown=60)
    assert stack.redis.llen("wheel.0") == 0
    stack.app.send_task("t", ("x" * 70_000,), countdown=60, task_id="small")
    stack.app.conf.wheel_max_message_bytes = 10**6  # a producer with other settings than the scheduler
    stack.app.send_task("t", ("x" * 80_000,), countdown=60, task_id="large")
    stack.beat()
    wait_until(lambda: stack.redis.llen("wheel.0") == 0 and stack.holders(), "the messages are accepted")
    found = {name: stack.app.wheel.get(name) for name in ("small", "large")}
    assert {name: one.state for name, one in found.items()} == {"small": "pending", "large": "rejected"}
    assert found["large"].task.task == "t"
    assert "at most 100,000 bytes" in found["large"].outcomes[0].reason
    assert stack.app.wheel.requeue("large") == stack.app.wheel.cancel("large") == "too_late"


def test_redis_away_and_back_loses_nothing(stack: Stack) -> None:
    stack.server.stop()
    stack.server.options["appendonly"] = "yes"
    stack.server.start()
    stack.beat()
    ids = stack.send(2, count=50)
    wait_until(lambda: not stack.redis.llen("wheel.0"), "all is accepted")
    stack.server.stop()
    time_away_until = time.monotonic() + 3
    wait_until(lambda: time.monotonic() > time_away_until, "the tasks have become due meanwhile")
    stack.server.start()
    wait_until(lambda: len(stack.dispatched()) >= 50, "the tasks are dispatched when the broker is back")
    assert stack.dispatched() == ids


@pytest.mark.slow
def test_the_worker_can_embed_the_scheduler(stack: Stack) -> None:
    stack.celery("worker", "-B", "-P", "threads", "-c", "1", "-l", "INFO", "-Q", "nothing")
    ids = stack.send(0.2, count=3)
    wait_until(lambda: stack.dispatched() == ids, "the embedded scheduler dispatches")


@pytest.mark.slow
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


def test_a_signal_during_the_start_ends_beat_in_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_scheduler_waits_while_the_file_is_locked(stack: Stack, monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
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


@pytest.fixture(params=["redis", pytest.param("rabbit", marks=ON_RABBITMQ), "memory"])
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


@pytest.mark.slow
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
