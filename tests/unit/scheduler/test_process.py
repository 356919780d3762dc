"""The memory of a scheduler's process, and its messages to systemd, by a socket like systemd's own."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from celery_wheel.engine.pool import Pool
from celery_wheel.scheduler.monitoring import ARENAS, GARBAGE_EVERY, Watchdog, notify, watchdog_s
from tests.kit.patience import patience

#: Eight threads hold memory at the same time, which glibc describes afterwards.
PROGRAM = """
import ctypes, gc, threading
from celery_wheel.scheduler.monitoring import tune_memory
if {tuned}:
    tune_memory()
barrier, held = threading.Barrier(8), []
def work():
    barrier.wait()
    held.append([bytes(2_000) for _ in range(500)])
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(gc.get_threshold()[0], flush=True)
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def _run(*, tuned: bool) -> tuple[int, int]:
    """Return how many objects make a run of the garbage collector due, and the number of arenas."""
    program = PROGRAM.format(tuned=tuned)
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return int(said.split()[0]), said.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_a_scheduler_has_few_arenas_and_collects_garbage_seldom() -> None:
    assert _run(tuned=True) == (GARBAGE_EVERY, ARENAS)
    threshold, arenas = _run(tuned=False)
    assert threshold < GARBAGE_EVERY
    assert arenas > ARENAS


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(patience())
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_a_state_reaches_systemd(manager: socket.socket) -> None:
    notify("READY=1\nSTATUS=holds 1 of 1 shards")
    assert manager.recv(100) == b"READY=1\nSTATUS=holds 1 of 1 shards"


def test_a_name_without_a_file_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"wheel-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(patience())
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_a_systemd_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1\nSTATUS=x")
    assert "systemd is not told READY=1" in caplog.text


def test_nothing_is_sent_outside_a_unit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    caplog.set_level(logging.DEBUG)
    notify("READY=1")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [("", "", 0.0), ("x", "", 0.0), ("3000000", "", 1.5), ("3000000", "own", 1.5), ("3000000", "1", 0.0)],
)
def test_a_sign_of_life_comes_twice_in_the_time_of_the_watchdog(
    microseconds: str, pid: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert watchdog_s() == seconds


def test_the_watchdog_is_fed_while_the_engines_run(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    pool, lives = Pool(), iter([True, True])  # more messages than the socket takes would hold the thread up
    watchdog = Watchdog(pool, lambda: next(lives, False), lambda: "holds 1 of 1 shards")
    watchdog.start()
    for _ in range(2):
        assert manager.recv(100) == b"WATCHDOG=1\nSTATUS=holds 1 of 1 shards"
    watchdog.stop()
    assert watchdog._job.join(time.monotonic() + patience())
    pool.close()
