"""A real Prometheus scrapes real schedulers."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_wheel.metrics.samples import METRICS
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.prometheus import PrometheusServer, check_metrics
from tests.kit.stack import Stack


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience()) as answer:
        found: str = answer.read().decode()
    return found


@pytest.fixture
def ports() -> list[int]:
    """Return the ports of two processes, the second next to the first."""
    first = free_port(2)
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
