"""A service that was started and stopped leaves neither connections nor threads behind."""

from __future__ import annotations

import gc
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.scheduler import service
from celery_wheel.scheduler.service import WheelService
from tests.kit.patience import patience, wait_until

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
        found: str = request.getfixturevalue("redis_server").url
    elif request.param == "rabbit":
        found = request.getfixturevalue("rabbit_server").fresh()
    else:
        found = "memory://"
    return found


@pytest.fixture
def app(tmp_path: Path, url: str) -> Any:
    with Celery("stopped", broker=url, set_as_current=False) as app:
        app.conf.update(wheel_store=f"sqlite:///{tmp_path}/wheel.sqlite3", wheel_shards=2)
        yield app


def run_once(app: Any) -> None:
    running = WheelService(app)
    running.start()
    wait_until(lambda: running.holds(0) and running.holds(1), "the service holds its shards")
    running.stop()


def test_descriptors_and_threads_do_not_grow_with_starts_and_stops(app: Any) -> None:
    gc.disable()  # the stop closes, and no collection afterwards
    try:
        for _ in range(2):
            run_once(app)
        wait_until(lambda: not has_threads(), "the threads of a stopped service have ended")
        before = descriptors()
        for _ in range(TIMES):
            run_once(app)
        wait_until(lambda: not has_threads(), "the threads of all services have ended")
        assert descriptors() <= before
    finally:
        gc.enable()


def test_a_connection_that_hangs_delays_a_stop_for_a_bounded_time(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "CLOSE_S", 0.1)
    go_on, stopped = threading.Event(), threading.Event()
    running = WheelService(app)
    running.start()
    wait_until(lambda: running.holds(0), "the service holds its shard")
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
    running, closed = WheelService(app), []
    running.start()
    wait_until(lambda: running.holds(0), "the service holds its shard")
    first, second = (one.close for one in running._brokers)

    def fail() -> None:
        first()
        raise RuntimeError("no answer")

    monkeypatch.setattr(running._brokers[0], "close", fail)
    monkeypatch.setattr(running._brokers[1], "close", lambda: (second(), closed.append(1)))
    running.stop()
    assert closed == [1]
    assert "a connection to the broker ended with RuntimeError('no answer')" in caplog.text
