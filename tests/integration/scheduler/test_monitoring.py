"""The health of real schedulers: pages, probe, systemd and Prometheus; each job that ends or hangs is seen."""

import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from unittest.mock import Mock

import pytest

from celery_wheel.engine.pool import Job, Wait
from celery_wheel.errors import WheelError
from celery_wheel.metrics.samples import METRICS
from celery_wheel.scheduler import service as services
from celery_wheel.scheduler.service import WheelService
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.prometheus import PrometheusServer, check_metrics
from tests.kit.stack import Stack

ACTIVITIES = ("tend", "listen", "ingest", "prefetch", "dispatch", "release", "settle", "announce", "keep_house")
JOBS = {f"{one} of shard 0" for one in ACTIVITIES} | {"renew", "inboxes", "broker reach", "balance", "watchdog"}

#: A fault is seen within so many seconds by a probe that asks every second.
RED_S = 15.0


def status(port: int, page: str) -> int:
    """Return the status of a page; 0 where nobody answers."""
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=patience(10))) as connection:
            connection.request("GET", page)
            return connection.getresponse().status
    except (OSError, HTTPException):
        return 0


def test_a_scheduler_is_ready_while_its_broker_answers_and_live_all_the_time(stack: Stack) -> None:
    ports = [free_port(), free_port()]
    holder, standby = [stack.beat(wheel_metrics=f"127.0.0.1:{port}") for port in ports]
    for port in ports:
        wait_until(lambda port=port: status(port, "/readyz") == 200, "it is ready")
    assert [status(port, "/livez") for port in ports] == [200, 200]
    stack.server.client().save()
    stack.server.kill()
    for port in ports:
        wait_until(lambda port=port: status(port, "/readyz") == 503, "it is not ready")
        assert status(port, "/livez") == 200
    stack.server.start()
    for port in ports:
        wait_until(lambda port=port: status(port, "/readyz") == 200, "it is ready again")
    assert holder.is_alive()
    assert standby.is_alive()


def test_the_probe_takes_little_cpu_and_exits_with_the_answer(stack: Stack) -> None:
    beat = start(stack, port := free_port())
    program = Path(sys.executable).with_name("celery-wheel-probe")
    took_s: list[float] = []

    def answers_ok() -> bool:
        """Ask once; on a machine under load, a scheduler that is ready may be not ready for a moment."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = subprocess.run([program, f"127.0.0.1:{port}"], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (found.returncode, found.stdout == "ok\n") in ((0, True), (3, False))
        return found.returncode == 0

    wait_until(answers_ok, "the probe is told that the scheduler is ready")
    assert min(took_s) < patience(0.3)

    def command_is_told_so() -> bool:
        code, said = stack.celery("wheel", "status", "--probe", f"127.0.0.1:{port}").end()
        assert code in (0, 3), said
        return code == 0 and "ok" in said

    wait_until(command_is_told_so, "the command is told so, too")
    beat.terminate()
    assert subprocess.run([program, f"127.0.0.1:{port}"], capture_output=True, check=False).returncode == 4


def test_systemd_learns_that_it_runs_and_stops(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(patience())
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        beat = stack.beat()

        def next_state() -> str:
            return manager.recv(1_000).decode()

        states = [next_state(), next_state()]
        assert {state.partition("\n")[0] for state in states} <= {"READY=1", "WATCHDOG=1"}
        wait_until(lambda: next_state() == "WATCHDOG=1\nSTATUS=holds 1 of 1 shards", "it holds its shard")
        beat.signal(signal.SIGTERM)
        wait_until(lambda: next_state() == "STOPPING=1", "it stops")  # nobody else reads, and a full socket blocks it
        assert beat.end()[0] == 0


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience()) as answer:
        found: str = answer.read().decode()
    return found


@pytest.fixture
def ports() -> list[int]:
    first = free_port(2)
    return [first, first + 1]


@pytest.fixture
def prometheus(tmp_path: Path, ports: list[int]) -> Iterator[PrometheusServer]:
    with PrometheusServer(tmp_path / "prometheus", {"wheel": [f"127.0.0.1:{port}" for port in ports]}) as server:
        yield server


@pytest.mark.slow
def test_prometheus_sees_every_process_each_shard_once_and_every_metric(
    stack: Stack, postgres: PostgresServer, prometheus: PrometheusServer, ports: list[int]
) -> None:
    stack.change(wheel_store=postgres.new_database(), wheel_shards=2, wheel_processes=2)
    stack.change(wheel_metrics=f"127.0.0.1:{ports[0]}", beat_schedule={"tick": {"task": "tick", "schedule": 3600.0}})
    stack.beat()
    wait_until(lambda: len(set(stack.holders().values())) == 2, "each process holds a shard")
    stack.send(0.5, 20)
    stack.send(3_000, 5)
    wait_until(lambda: len(stack.dispatched()) == 20, "the tasks are dispatched")

    def shows(query: str, expected: dict[tuple[str, ...], float]) -> None:
        """Wait for a value: a scrape may come before a commit, and a late one leaves the series out."""
        wait_until(lambda: prometheus.query(query) == expected, f"Prometheus finds {expected} for {query}")

    shows("sum(celery_wheel_dispatched_total)", {(): 20})
    shows("sum(celery_wheel_accepted_total)", {(): 25})
    shows("sum(celery_wheel_pending)", {(): 5})
    shows("count(up == 1)", {(): 2})
    shows("sum by (shard) (celery_wheel_holder)", {("0",): 1, ("1",): 1})
    late = "celery_wheel_lateness_seconds"
    wait_until(lambda: prometheus.query(f"{late}_count > 0").keys() == {("note", "celery")}, "it has the lateness")
    greatest = f"histogram_quantile(1, sum by (le) ({late}_bucket))"
    wait_until(lambda: prometheus.query(f"{greatest} > 0 < 1800"), "the greatest lateness is a time")
    for port in ports:
        assert check_metrics(page(port)) == ""

    def missing() -> list[str]:
        shown = page(ports[0])
        return [name for name in METRICS if f"celery_wheel_{name}" not in shown]

    wait_until(lambda: missing() == [], "the page of the first process has every metric")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_that_raises_ends_the_scheduler_and_the_next_one_takes_over(memory: Stack, name: str) -> None:
    with running(memory) as service:
        [job] = [one for one in service._pool._jobs if one.name == name]
        job.run = Mock(side_effect=RuntimeError("a defect"))
        job.wake()
        wait_until(lambda: not_live(service), "it is not live")
        with pytest.raises(WheelError, match=f"the job {name} ended: .*a defect.*nothing was lost"):
            service.raise_failure()
    with running(memory) as service:
        assert not_live(service) == []


@pytest.mark.slow
def test_each_job_that_hangs_is_seen_and_ends_the_scheduler(memory: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    with running(memory) as service:
        jobs = [one for one in service._pool._jobs if not one.name.endswith(" of shard 1")]
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


@pytest.mark.slow
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
