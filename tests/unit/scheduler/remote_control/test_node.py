"""A node whose broker is away leaves nothing behind at each try."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.scheduler.remote_control import SchedulerView, node
from celery_wheel.store import open_store
from celery_wheel.values.mask import NO_MASK
from tests.kit.patience import wait_until

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
