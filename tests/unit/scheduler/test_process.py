"""The processes of a scheduler: memory, messages to systemd, by a socket like systemd's own, and the supervisor."""

import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from celery import _state

from celery_wheel import Celery
from celery_wheel.engine.pool import Pool
from celery_wheel.errors import SettingError
from celery_wheel.scheduler import supervisor
from celery_wheel.scheduler.monitoring import ARENAS, GARBAGE_EVERY, Watchdog, notify, watchdog_s
from celery_wheel.scheduler.supervisor import Supervisor, changes_of, path_of
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


class FakeProcess:
    """A process that ends when a test says so; ``stubborn``: it ends by a kill only."""

    stubborn = False

    def __init__(self, **_: Any) -> None:
        self.pid: int | None = None
        self.exitcode: int | None = None

    def start(self) -> None:
        self.pid = 4711

    def terminate(self) -> None:
        if not self.stubborn:
            self.exitcode = 0

    def kill(self) -> None:
        self.exitcode = -9

    def join(self, timeout: float | None = None) -> None: ...


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Any) -> None:
        self.now_s, self.ends = 100.0, 0
        self.started: list[FakeProcess] = []
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.supervisor = Supervisor(app, lambda app: app, self._count, self._make)

    def _make(self, **options: Any) -> FakeProcess:
        self.started.append(FakeProcess(**options))
        return self.started[-1]

    def _count(self) -> None:
        self.ends += 1

    def restart_s(self) -> float:
        """End the child that was started last; return the time until the next is started."""
        count, began_s = len(self.started), self.now_s
        self.started[-1].exitcode = 1
        while len(self.started) == count:
            self.supervisor.tend()
            self.now_s += 0.5
        return self.now_s - 0.5 - began_s


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Celery("shop", set_as_current=False)
    found.conf.update(wheel_processes=2, wheel_shards=2)
    module = ModuleType("shop_of_this_test")
    module.celery_app = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_of_this_test", module)
    return found


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, app: Any) -> Rig:
    found = Rig(monkeypatch, app)
    found.supervisor.tend()
    return found


def test_a_child_that_ends_is_started_again_after_longer_and_longer_waits(rig: Rig) -> None:
    assert [rig.restart_s() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert rig.ends == 7
    rig.now_s += supervisor.STEADY_S + 1
    assert rig.restart_s() == 1


def test_a_child_that_ends_again_and_again_is_logged_once_a_minute(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "celery_wheel")
    for _ in range(5):  # after 1, 2, 4, 8 and 16 s
        rig.restart_s()
    assert len(caplog.messages) == 1
    for _ in range(2):
        rig.restart_s()
    assert caplog.messages[1:] == [
        "process 2 of the scheduler (pid 4711) ended with exit code 1; the other processes take its shards, and it is "
        "started again in 30 s (5 more times since it was last logged)"
    ]


def test_a_child_that_the_system_does_not_start_is_tried_again(rig: Rig) -> None:
    with mock.patch.object(FakeProcess, "start", side_effect=BlockingIOError(11, "Resource temporarily unavailable")):
        rig.restart_s()
    assert rig.ends == 2
    count = len(rig.started)
    rig.now_s += 2
    rig.supervisor.tend()
    assert rig.started[count].pid is not None


def test_a_stop_kills_a_child_that_does_not_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProcess, "stubborn", True)
    [process] = rig.started
    rig.supervisor.terminate()
    rig.supervisor.join()
    assert process.exitcode == -9


def test_a_stop_before_the_first_tick_and_without_children_does_nothing(app: Any) -> None:
    one = Supervisor(app, lambda app: app, lambda: None)
    one.terminate()
    one.join()
    app.conf.wheel_processes = 1
    one.tend()
    one.terminate()
    one.join()


def test_an_app_is_found_by_the_module_that_has_it(app: Any) -> None:
    assert path_of(app) == ("shop_of_this_test", "celery_app")


def test_an_app_that_only_celery_itself_refers_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Celery("local", set_as_current=False)
    monkeypatch.setattr(_state, "default_app", local)
    with pytest.raises(SettingError, match="wheel_processes must be 1 for the app 'local'"):
        path_of(local)


def test_settings_without_a_pickle_are_left_to_the_module(app: Any) -> None:
    app.conf.update(broker_url="redis://elsewhere", task_routes=lambda name: None)
    found = changes_of(app)
    assert found["broker_url"] == pickle.dumps("redis://elsewhere")
    assert "task_routes" not in found
