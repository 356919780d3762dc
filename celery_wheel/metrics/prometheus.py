"""The face for Prometheus: a registry of ``prometheus_client``, whose one collector reads all samples at each scrape.

Histograms are made of the engine's counts, and nothing is observed by ``prometheus_client`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_wheel.errors import import_extra
from celery_wheel.metrics.samples import Collect, Kind, Metric, Sample


def check_installed() -> None:
    """Raise PackageMissing where prometheus_client is not installed."""
    import_extra("prometheus_client", "metrics", "metrics for Prometheus need")


class WheelCollector:
    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        for metric, samples in self._collect():
            yield _family(metric, samples)

    def describe(self) -> list[Any]:
        """Describe nothing: registering reads no sample."""
        return []


def page_of(collect: Collect, accept: str) -> tuple[bytes, str]:
    """Return all metrics in the format that a scraper accepts, and its content type. Raises PackageMissing."""
    check_installed()
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(WheelCollector(collect))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(metric: Metric, samples: list[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kind: Any = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }[metric.kind]
    family = kind(metric.full_name, metric.help, labels=metric.labels)
    for labels, value in samples:
        if isinstance(value, int | float):
            family.add_metric(labels, value)
            continue
        buckets = [("+Inf" if end_s is None else str(end_s), count) for end_s, count in value.cumulative()]
        family.add_metric(labels, buckets=buckets, sum_value=value.sum_ms / 1_000)
    return family
