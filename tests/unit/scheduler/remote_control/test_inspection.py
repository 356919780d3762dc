"""Pending tasks in the form in which a worker shows its own, without a value that ``wheel_mask`` names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from celery.worker.control import Panel

from celery_wheel.engine.state import tombstones
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.scheduler.remote_control import SchedulerView, inspection, revocation
from celery_wheel.scheduler.remote_control.node import Commands
from celery_wheel.store import open_store
from celery_wheel.store.ports.pages import MessageHead, Task
from celery_wheel.values.mask import NO_MASK, Mask
from tests.kit.holder import NOW, Holder
from tests.kit.manual import page

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


def test_the_last_entry_of_a_cut_list_has_the_form_of_the_others() -> None:
    more, one = (
        inspection.more_item(TASK, 4_711, "n"),
        inspection.scheduled_item(TASK, MessageHead(b"{}", "", "celery"), "n"),
    )
    assert more.keys() == one.keys()
    assert {name: type(value) for name, value in more["request"].items()} == {
        name: type(value) for name, value in one["request"].items()
    }
    assert "4,711 more" in more["request"]["name"]


#: Commands that only workers can carry out; see docs/control-celery.md.
FOR_WORKERS = {
    *("add_consumer", "autoscale", "cancel_consumer", "election", "hello", "pool_grow", "pool_restart", "pool_shrink"),
    *("rate_limit", "shutdown", "time_limit", "memdump", "memsample", "objgraph"),
}


class _App:
    class conf:  # noqa: N801 - as the app has it
        worker_send_task_events = False


def test_every_command_of_celery_is_answered_or_left_to_workers() -> None:
    """A new version of Celery may have new commands."""

    handlers = Commands(_App(), None, None).handlers()  # type: ignore[arg-type]  # no command is called
    assert set(Panel.data) == set(handlers) | FOR_WORKERS
    assert not set(handlers) & FOR_WORKERS


def test_the_manual_names_every_command_and_its_cap() -> None:
    manual = page("control-celery.md")
    handlers = Commands(_App(), None, None).handlers()  # type: ignore[arg-type]  # no command is called
    older = {name for name in handlers if name.startswith("dump_")}
    assert [name for name in sorted(set(handlers) - older) if f"`{name}`" not in manual] == []
    for cap in (inspection.MAX_TASKS, inspection.MAX_IDS, revocation.MAX_SCANNED, tombstones.MOST):
        assert f"{cap:,}" in manual
