"""The supervisor's back-off, its stop, and the way in which children find the app."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import _state

from celery_wheel import Celery
from celery_wheel.errors import SettingError
from celery_wheel.scheduler import supervisor
from celery_wheel.scheduler.supervisor import Supervisor, changes_of, path_of


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


def test_a_child_that_the_system_does_not_start_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FakeProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(FakeProcess, "start", refuse)
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
