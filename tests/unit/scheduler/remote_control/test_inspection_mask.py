"""``inspect scheduled`` and ``query_task`` show no value that ``wheel_mask`` names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.scheduler.remote_control import inspection
from celery_wheel.scheduler.remote_control.view import SchedulerView
from celery_wheel.store import open_store
from celery_wheel.values.mask import NO_MASK, Mask
from tests.kit.holder import NOW, Holder

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
