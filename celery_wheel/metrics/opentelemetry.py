"""The face for OpenTelemetry: an observable instrument for each metric, on the project's own meter provider.

OpenTelemetry has no observable histogram. A histogram is shown by three instruments with Prometheus's own names,
``…_bucket`` with the label ``le``, ``…_sum`` and ``…_count``, so that ``histogram_quantile`` works on them.

The SDK calls each instrument by itself. Instruments that it calls within a second share one reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery_wheel.engine.stats import Histogram
from celery_wheel.errors import import_extra
from celery_wheel.metrics.samples import METRICS, Collect, Kind, Metric, Sample
from celery_wheel.overview import Shared
from celery_wheel.values import __version__

UNITS = {"seconds": "s", "bytes": "By"}


def check_installed() -> None:
    """Raise PackageMissing where OpenTelemetry's API is not installed."""
    import_extra("opentelemetry.metrics", "opentelemetry", "wheel_opentelemetry needs")


def instrument(collect: Collect, provider: Any = None) -> None:
    """Make the instruments, on the global meter provider or on another. They last as long as the process."""
    from opentelemetry.metrics import get_meter

    meter = get_meter("celery_wheel", __version__, provider)
    reading = Shared(lambda _: {one.name: samples for one, samples in collect()})
    for metric in METRICS.values():
        make = {
            Kind.COUNTER: meter.create_observable_counter,
            Kind.GAUGE: meter.create_observable_gauge,
            Kind.HISTOGRAM: meter.create_observable_up_down_counter,
        }[metric.kind]
        unit = UNITS.get(metric.name.rpartition("_")[2], "")
        for suffix in ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",):
            callback = partial(_observe, reading, metric, suffix)
            measured = "" if suffix in ("_bucket", "_count") else unit
            make(metric.full_name + suffix, callbacks=[callback], unit=measured, description=metric.help)


def _observe(reading: Shared[dict[str, list[Sample]]], metric: Metric, suffix: str, options: Any) -> Iterable[Any]:
    from opentelemetry.metrics import Observation

    samples = reading.get().get(metric.name, [])
    return [Observation(value, labels) for labels, value in _values(metric, suffix, samples)]


def _values(metric: Metric, suffix: str, samples: list[Sample]) -> Iterator[tuple[dict[str, str], float]]:
    for names, value in samples:
        labels = dict(zip(metric.labels, names, strict=True))
        if not isinstance(value, Histogram):
            yield labels, value
        elif suffix == "_bucket":
            for end_s, count in value.cumulative():
                yield {**labels, "le": "+Inf" if end_s is None else str(end_s)}, count
        else:
            yield labels, value.sum_ms / 1_000 if suffix == "_sum" else sum(value.counts)
