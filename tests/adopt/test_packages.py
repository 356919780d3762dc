"""Packages beside which Celery is often run, each with a delayed task, a real worker and Redis.

``make adopt PROJECTS=packages`` installs them; the project is ``tests.adopt.shop``.
"""

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import pytest

pytest.importorskip("celery_once", reason="make adopt PROJECTS=packages installs it")
pytest.importorskip("celery_prometheus_exporter", reason="make adopt PROJECTS=packages installs it")
pytest.importorskip("django_celery_results", reason="make adopt PROJECTS=packages installs it")
pytest.importorskip("django_structlog", reason="make adopt PROJECTS=packages installs it")

import structlog
from celery_once import AlreadyQueued

from tests.kit.patience import patience, wait_until
from tests.kit.processes import ROOT, Process
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer

DELAY_S = 2


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("shop")
    with RedisServer(folder / "redis") as server:
        own = {"SHOP_FOLDER": str(folder), "SHOP_BROKER": server.url, "PYTHONPATH": str(ROOT), "C_FORCE_ROOT": "1"}
        os.environ.update(own)
        from django.core.management import call_command

        import tests.adopt.shop as module  # reads the variables

        call_command("migrate", verbosity=0)
        command = [sys.executable, "-m", "celery", "-A", "tests.adopt.shop"]
        with (
            Process([*command, "worker", "-P", "solo", "-l", "INFO"], folder / "worker.log") as worker,
            Process([*command, "beat", "--pidfile", "", "-l", "INFO"], folder / "beat.log") as beat,
        ):
            worker.wait_for(" ready.")
            beat.wait_for("at epoch")
            yield module
            assert "Traceback" not in beat.said(), beat.said()
        module.app.wheel.close()


def waited(shop: ModuleType, result: Any) -> Any:
    """Return the result of a task after it was pending on the wheel."""
    wheel = shop.app.wheel
    wait_until(lambda: wheel.find(result.id), "the wheel has accepted the task")
    value = result.get(timeout=patience(30), interval=0.1)
    wait_until(lambda: wheel.get(result.id).state == "dispatched", "it is dispatched")
    task = wheel.get(result.id).task
    assert task.late_ms is not None
    assert task.late_ms >= 0
    return value


def test_django_celery_results_has_one_row_of_a_delayed_task(shop: ModuleType) -> None:
    from django_celery_results.models import TaskResult

    result = shop.add.apply_async((2, 3), countdown=DELAY_S)
    assert not TaskResult.objects.filter(task_id=result.id, status="SUCCESS").exists()
    assert waited(shop, result) == 5
    [row] = TaskResult.objects.filter(task_id=result.id)
    assert (row.status, row.task_name, row.task_args) == ("SUCCESS", "tests.adopt.shop.add", '"(2, 3)"')


def test_django_structlog_carries_the_callers_context_through_the_wheel(shop: ModuleType) -> None:
    with structlog.contextvars.bound_contextvars(order=4711):
        result = shop.context.apply_async(countdown=DELAY_S)
    found = waited(shop, result)
    assert found["order"] == "4711"
    assert found["task_id"] == result.id


def test_celery_once_refuses_a_second_call_while_the_first_is_pending_or_retried(shop: ModuleType) -> None:
    first = shop.sync.apply_async((7,), countdown=DELAY_S)
    with pytest.raises(AlreadyQueued):
        shop.sync.apply_async((7,), countdown=DELAY_S)
    assert first.get(timeout=patience(30), interval=0.1) == 7
    assert len(shop.app.wheel.find(first.id)) == 2, "the call and its retry have waited"
    wait_until(lambda: shop.app.wheel.get(first.id).state == "dispatched", "the retry is dispatched")
    again = shop.sync.apply_async((7,), countdown=0)
    assert again.get(timeout=patience(30), interval=0.1) == 7


def test_the_lock_of_celery_once_outlives_a_cancelled_task(shop: ModuleType) -> None:
    first = shop.sync.apply_async((8,), countdown=600)
    assert shop.app.wheel.cancel(first) == "done"
    with pytest.raises(AlreadyQueued):
        shop.sync.apply_async((8,), countdown=DELAY_S)
    shop.sync.once_backend.clear_lock(shop.sync.get_key((8,), {}))
    assert shop.app.wheel.cancel(shop.sync.apply_async((8,), countdown=600)) == "done"


def test_an_exporter_of_celerys_events_counts_a_delayed_task(shop: ModuleType, tmp_path: Path) -> None:
    port = free_port()
    command = ["celery-prometheus-exporter", "--broker", os.environ["SHOP_BROKER"], "--addr", f"127.0.0.1:{port}"]
    exporter = Path(sys.executable).parent / command[0]

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except (URLError, ConnectionError):
            return ""

    with Process([exporter, *command[1:]], tmp_path / "exporter.log") as process:
        wait_until(lambda: "celery_workers 1.0" in page() or not process.is_alive(), "the exporter sees the worker")
        assert process.is_alive(), process.said()
        waited(shop, shop.context.apply_async(countdown=DELAY_S))
        counted = 'celery_tasks_by_name{name="tests.adopt.shop.context",state="SUCCESS"} 1.0'
        wait_until(lambda: counted in page() or not process.is_alive(), "it has counted one success")
        assert process.is_alive(), process.said()
