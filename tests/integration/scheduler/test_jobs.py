"""Each job of a running scheduler is killed in each way: it is seen, and the process is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_wheel.engine.pool import Job, Wait
from celery_wheel.errors import WheelError
from celery_wheel.scheduler import service as services
from celery_wheel.scheduler.service import WheelService
from tests.integration.scheduler.test_monitoring import status
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.kit.stack import Stack

ACTIVITIES = ("tend", "listen", "ingest", "prefetch", "dispatch", "settle", "announce", "keep_house")
JOBS = {f"{one} of shard 0" for one in ACTIVITIES} | {"renew", "inboxes", "balance", "watchdog"}

#: A fault is seen within so many seconds by a probe that asks every second.
RED_S = 15.0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with Stack(tmp_path, "memory://", wheel_shards=2, wheel_control=False) as found:
        yield found


@contextmanager
def running(stack: Stack) -> Iterator[WheelService]:
    service = WheelService(stack.make_app(**stack.settings))
    service.start()
    try:
        wait_until(lambda: service.holds(0) and service.holds(1), "it holds both shards")
        yield service
    finally:
        service.stop()


def not_live(service: WheelService) -> list[str]:
    assert service._monitoring is not None
    return service._monitoring.health.not_live()


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_that_raises_ends_the_scheduler_and_the_next_one_takes_over(memory: Stack, name: str) -> None:
    def fail() -> Wait:
        raise RuntimeError("a defect")

    with running(memory) as service:
        [job] = [one for one in service._pool._jobs if one.name == name]
        job.run = fail
        job.wake()
        wait_until(lambda: not_live(service), "it is not live")
        with pytest.raises(WheelError, match=f"the job {name} ended: .*a defect.*nothing was lost"):
            service.raise_failure()
    with running(memory) as service:
        assert not_live(service) == []


def test_each_job_that_hangs_is_seen_and_ends_the_scheduler_in_the_end(
    memory: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is seen while it hangs, and no more once its call returns."""
    end = threading.Event()
    with running(memory) as service:
        jobs = [one for one in service._pool._jobs if one.name in JOBS]
        runs = {one.name: one.run for one in jobs}
        assert runs.keys() == JOBS

        def hang(job: Job) -> Wait:
            end.wait(patience(120))
            job.run = runs[job.name]
            return Wait(0.0, 0.0)

        for job in jobs:
            job.hangs_s = patience(1)
            job.run = lambda job=job: hang(job)  # type: ignore[misc]
            job.wake()
        for name in sorted(JOBS):
            wait_until(lambda: any(f"the job {name} has hung" in one for one in not_live(service)), "it is seen")  # noqa: B023
        service.raise_failure()
        with monkeypatch.context() as patch:
            patch.setattr(services, "ENDS_S", 0)
            with pytest.raises(WheelError, match=r"the job .* has hung.* nothing was lost"):
                service.raise_failure()
        end.set()
        wait_until(lambda: not_live(service) == [], "it is live again")


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        ({"ingest of shard 0": "raise"}, "the job ingest of shard 0 ended"),
        ({"dispatch of shard 0": "hang"}, "the job dispatch of shard 0 has hung"),
        (
            {"threads": "", "dispatch of shard 0": "hang", "tend of shard 0": "hang", "ingest of shard 0": "hang"},
            "hung",
        ),
    ],
    ids=["raise", "hang", "no thread"],
)
def test_a_supervisor_that_probes_replaces_a_scheduler_with_a_dead_job(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: dict[str, str], text: str
) -> None:
    folder = tmp_path / "sabotage"
    folder.mkdir()
    monkeypatch.setenv("SABOTAGE", str(folder))
    port = free_port()
    beat = start(stack, port)
    for name, order in orders.items():
        (folder / name).write_text(order)
    began_s = time.monotonic()
    # A probe gets no answer where the process ends, or has no thread for it.
    wait_until(lambda: status(port, "/livez") != 200, "the probe is red")
    assert time.monotonic() < began_s + patience(RED_S)
    for name in orders:
        (folder / name).unlink()
    if beat.is_alive() and "raise" not in orders.values():
        beat.kill()
    beat.end()
    assert "raise" not in orders.values() or text in beat.said()
    started = start(stack, port)
    stack.app.send_task("note", ("after",), countdown=0.1)
    wait_until(lambda: stack.dispatched(), "the next scheduler goes on")
    assert started.terminate() == 0


def start(stack: Stack, port: int) -> Process:
    beat = stack.beat(wheel_metrics=f"127.0.0.1:{port}")
    wait_until(lambda: status(port, "/readyz") == 200, "it is ready")
    return beat
