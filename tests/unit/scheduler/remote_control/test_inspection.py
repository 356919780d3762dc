"""The node: pending tasks in the form in which a worker shows its own, the commands, and a broker that is away."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.worker.control import Panel

from celery_wheel import Celery
from celery_wheel.engine.state import tombstones
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.scheduler.remote_control import SchedulerView, inspection, node, revocation
from celery_wheel.scheduler.remote_control.node import Commands
from celery_wheel.store import open_store
from celery_wheel.store.ports.pages import MessageHead, Task
from celery_wheel.values.mask import NO_MASK, Mask
from tests.kit.holder import NOW, Holder
from tests.kit.manual import page
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

HEADERS = {"argsrepr": "(1,)", "kwargsrepr": "{'user': 7, 'password': 'hunter2'}"}


@pytest.mark.parametrize(("mask", "shown"), [(NO_MASK, "hunter2"), (Mask(["password"]), "********")])
def test_arguments_are_masked(tmp_path: Path, mask: Mask, shown: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=1)
    Holder(store).accept(NOW, task_id="a", headers=json.dumps(HEADERS).encode())
    view = SchedulerView("wheel@h", store, lambda: [0], RevokedStamps(), mask)
    [scheduled] = inspection.scheduled(view)
    [_, request] = inspection.query(view, ["a"])["a"]
    for one in (scheduled["request"], request):
        assert one["kwargs"] == f"{{'user': 7, 'password': '{shown}'}}"
        assert one["args"] == "(1,)"
    store.close()


TASK = Task(1, 0, 0, 1_700_000_000_123, 256, 1_700_000_000_000, "id", "t", "celery", 5, None, None, 0, 0, 10)


def test_a_task_is_shown_by_its_headers_alone() -> None:
    head = MessageHead(json.dumps({"argsrepr": "(1,)", "kwargsrepr": "{}", "shadow": None}).encode(), "ex", "key")
    assert inspection.scheduled_item(TASK, head, "wheel@h") == {
        "eta": "2023-11-14T22:13:20.123000+00:00",
        "priority": 6,
        "request": {
            "id": "id",
            "name": "t",
            "args": "(1,)",
            "kwargs": "{}",
            "type": "t",
            "hostname": "wheel@h",
            "time_start": None,
            "acknowledged": True,
            "delivery_info": {"exchange": "ex", "routing_key": "key", "priority": 5, "redelivered": False},
            "worker_pid": None,
        },
    }


def test_protocol_1_has_no_headers_to_show() -> None:
    assert inspection.request_item(TASK, MessageHead(b"{}", "", "celery"), "n")["args"] == ""


#: Commands that only workers can carry out; see docs/control-celery.md.
FOR_WORKERS = {
    *("add_consumer", "autoscale", "cancel_consumer", "election", "hello", "pool_grow", "pool_restart", "pool_shrink"),
    *("rate_limit", "shutdown", "time_limit", "memdump", "memsample", "objgraph"),
}


def handlers() -> dict[str, Any]:
    app: Any = Celery("proj", set_as_current=False)
    return Commands(app, None, None).handlers()  # type: ignore[arg-type]  # no command is called


def test_every_command_of_celery_is_answered_or_left_to_workers() -> None:
    """A new version of Celery may have new commands."""
    assert set(Panel.data) == set(handlers()) | FOR_WORKERS
    assert not set(handlers()) & FOR_WORKERS


def test_the_manual_names_every_command_and_its_cap() -> None:
    manual = page("control-celery.md")
    assert [name for name in handlers() if not name.startswith("dump_") and f"`{name}`" not in manual] == []
    for cap in (inspection.MAX_TASKS, inspection.MAX_IDS, revocation.MAX_SCANNED, tombstones.MOST):
        assert f"{cap:,}" in manual


# -- a node whose broker is away -------------------------------------------------------------------------

TRIES = 12


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No garbage is collected unless it is asked for, as in a scheduler that has little to do."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_collector")
def test_a_node_without_its_broker_holds_no_more_descriptors_with_each_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    class Counted(node.Node):
        def _serve(self) -> None:
            tries.append(len(os.listdir("/proc/self/fd")))
            super()._serve()

    monkeypatch.setattr(node, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(node, "RETRY_MOST_S", 0.001)
    app: Any = Celery("proj", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.broker_connection_retry_on_startup = False
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    one = Counted(app, SchedulerView("wheel@h", store, list, RevokedStamps(), NO_MASK))
    one.start()
    wait_until(lambda: len(tries) > TRIES, "the node has tried often")
    one.stop()
    one.join()
    store.close()
    assert max(tries) - tries[0] <= 2, tries


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_collector")
def test_a_node_whose_redis_is_killed_keeps_no_descriptor_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node, "RETRY_MOST_S", node.RETRY_FIRST_S)
    caplog.set_level("INFO", "celery_wheel")

    def listens(times: int) -> bool:
        return sum("listens" in line for line in caplog.messages) >= times

    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    with RedisServer(tmp_path / "redis") as server:
        app: Any = Celery("proj", broker=server.url, set_as_current=False)
        one = node.Node(app, SchedulerView("wheel@h", store, list, RevokedStamps(), NO_MASK))
        one.start()
        counts: list[int] = []
        for kills in range(4):
            wait_until(lambda times=kills + 1: listens(times), "the node listens")
            counts.append(len(os.listdir("/proc/self/fd")))
            server.kill()
            server.start()
        one.stop()
        one.join()
    store.close()
    assert counts[-1] <= counts[1], counts  # the connection that was lost last may be left
