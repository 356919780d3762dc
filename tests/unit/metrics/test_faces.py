"""Both faces show the same metrics, by their own rules."""

import re
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_wheel.engine.stats import Histogram
from celery_wheel.errors import PackageMissing
from celery_wheel.metrics import opentelemetry, prometheus
from celery_wheel.metrics.samples import METRICS, Kind, Metric, Sample


def samples() -> Iterator[tuple[Metric, list[Sample]]]:
    histogram = Histogram((1, 10))
    histogram.add(1)
    histogram.add(500)
    yield METRICS["accepted"], [(("0",), 7), (("1",), 8)]
    yield METRICS["pending"], [(('odd "queue"\n',), 3)]
    yield METRICS["commit_duration_seconds"], [(("accept",), histogram)]
    yield METRICS["clock_skew_seconds"], []


def test_a_name_says_its_unit_and_a_help_text_is_a_sentence() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", name), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_ms")), name
        assert metric.help.endswith("."), name
        assert metric.kind is not Kind.HISTOGRAM or name.endswith("_seconds"), name


def test_prometheus_reads_the_page() -> None:
    body, content_type = prometheus.page_of(samples, "")
    assert content_type.startswith("text/plain")
    lines = body.decode().splitlines()
    assert 'celery_wheel_accepted_total{shard="1"} 8.0' in lines
    assert r'celery_wheel_pending{queue_name="odd \"queue\"\n"} 3.0' in lines
    assert 'celery_wheel_commit_duration_seconds_bucket{le="0.01",op="accept"} 1.0' in lines
    assert 'celery_wheel_commit_duration_seconds_bucket{le="+Inf",op="accept"} 2.0' in lines
    assert 'celery_wheel_commit_duration_seconds_count{op="accept"} 2.0' in lines
    assert 'celery_wheel_commit_duration_seconds_sum{op="accept"} 0.501' in lines


def test_a_scraper_may_ask_for_openmetrics() -> None:
    body, content_type = prometheus.page_of(samples, "application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_opentelemetry_gets_the_same_metrics_by_one_reading() -> None:
    readings = []

    def collect() -> Iterator[tuple[Metric, list[Sample]]]:
        readings.append(1)
        return samples()

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    opentelemetry.instrument(collect, provider)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, *sorted(point.attributes.items())): point.value
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    units = {one.name: one.unit for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics}
    provider.shutdown()
    assert found["celery_wheel_accepted", ("shard", "1")] == 8
    assert found["celery_wheel_pending", ("queue_name", 'odd "queue"\n')] == 3
    name, op = "celery_wheel_commit_duration_seconds", ("op", "accept")
    assert [found[f"{name}_bucket", ("le", end), op] for end in ("0.001", "0.01", "+Inf")] == [1, 1, 2]
    assert (found[f"{name}_count", op], found[f"{name}_sum", op]) == (2, 0.501)
    assert (units[f"{name}_count"], units[f"{name}_sum"], units["celery_wheel_accepted"]) == ("", "s", "")
    assert readings == [1]


@pytest.mark.parametrize(
    ("check", "package", "module"),
    [
        (prometheus.check_installed, "celery-wheel[metrics]", "prometheus_client"),
        (opentelemetry.check_installed, "celery-wheel[opentelemetry]", "opentelemetry.metrics"),
    ],
)
def test_a_missing_package_is_named(check: object, package: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageMissing, match=re.escape(package)):
        check()  # type: ignore[operator]
