"""A real Prometheus scrapes real schedulers."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_wheel.metrics.definitions import METRICS
from tests.kit.patience import wait_until
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.prometheus import PrometheusServer, check_metrics
from tests.kit.stack import Stack


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found: str = answer.read().decode()
    return found


@pytest.fixture
def ports() -> list[int]:
    """Return the ports of two processes, the second next to the first."""
    first = free_port()
    return [first, first + 1]


@pytest.fixture
def prometheus(tmp_path: Path, ports: list[int]) -> Iterator[PrometheusServer]:
    with PrometheusServer(tmp_path / "prometheus", {"wheel": [f"127.0.0.1:{port}" for port in ports]}) as server:
        yield server


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

    def sees(query: str) -> dict[tuple[str, ...], float]:
        return prometheus.query(query)

    total = "sum(celery_wheel_{}_total)"
    wait_until(lambda: sees(total.format("dispatched")) == {(): 20}, "Prometheus has the count")
    assert sees("count(up == 1)") == {(): 2}
    assert sees(total.format("accepted")) == {(): 25}
    assert sees("sum by (shard) (celery_wheel_holder)") == {("0",): 1, ("1",): 1}
    wait_until(lambda: sees("sum(celery_wheel_pending)") == {(): 5}, "Prometheus has the pending tasks")
    assert sees("celery_wheel_lateness_seconds_count > 0").keys() == {("note", "celery")}
    late_s = sees("histogram_quantile(1, sum by (le) (celery_wheel_lateness_seconds_bucket))")[()]
    assert 0 < late_s < 1_800
    pages = [page(port) for port in ports]
    assert [check_metrics(one) for one in pages] == ["", ""]
    assert [name for name in METRICS if f"celery_wheel_{name}" not in pages[0]] == []
