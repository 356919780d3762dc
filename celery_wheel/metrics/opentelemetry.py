"""The face for OpenTelemetry: an observable instrument for each metric, on the project's own meter provider.

OpenTelemetry has no observable histogram. A histogram is shown by three instruments with Prometheus's own names,
``…_bucket`` with the label ``le``, ``…_sum`` and ``…_count``, so that ``histogram_quantile`` works on them.

The SDK calls each instrument by itself. Instruments that it calls within a second share one reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from celery_wheel.engine.histogram import Histogram
from celery_wheel.errors import PackageMissing
from celery_wheel.metrics.definitions import METRICS, Kind, Metric, Sample
from celery_wheel.metrics.metrics import Collect
from celery_wheel.overview import Shared
from celery_wheel.values.version import __version__

UNITS = {"seconds": "s", "bytes": "By"}

Values = Iterator[tuple[dict[str, str], float]]


def check_installed() -> None:
    """Raise PackageMissing where OpenTelemetry's API is not installed."""
    try:
        import opentelemetry.metrics  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise PackageMissing(
            "wheel_opentelemetry needs the package opentelemetry-api; install it by: pip install "
            "'celery-wheel[opentelemetry]'"
        ) from error


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
        for suffix, values in _parts(metric.kind).items():
            callback = partial(_observe, reading, metric, values)
            measured = "" if suffix in ("_bucket", "_count") else unit
            make(metric.full_name + suffix, callbacks=[callback], unit=measured, description=metric.help)


def _parts(kind: Kind) -> dict[str, Callable[[Metric, list[Sample]], Values]]:
    if kind is Kind.HISTOGRAM:
        return {"_bucket": _buckets, "_sum": _sums, "_count": _counts}
    return {"": _numbers}


def _observe(
    reading: Shared[dict[str, list[Sample]]],
    metric: Metric,
    values: Callable[[Metric, list[Sample]], Values],
    options: Any,
) -> Iterable[Any]:
    from opentelemetry.metrics import Observation

    return [Observation(value, labels) for labels, value in values(metric, reading.get().get(metric.name, []))]


def _numbers(metric: Metric, samples: list[Sample]) -> Values:
    for labels, value in samples:
        if isinstance(value, int | float):
            yield _labels(metric, labels), value


def _histograms(metric: Metric, samples: list[Sample]) -> Iterator[tuple[dict[str, str], Histogram]]:
    for labels, value in samples:
        if isinstance(value, Histogram):
            yield _labels(metric, labels), value


def _buckets(metric: Metric, samples: list[Sample]) -> Values:
    for labels, histogram in _histograms(metric, samples):
        for end_s, count in histogram.cumulative():
            yield {**labels, "le": "+Inf" if end_s is None else str(end_s)}, count


def _sums(metric: Metric, samples: list[Sample]) -> Values:
    for labels, histogram in _histograms(metric, samples):
        yield labels, histogram.sum_ms / 1_000


def _counts(metric: Metric, samples: list[Sample]) -> Values:
    for labels, histogram in _histograms(metric, samples):
        yield labels, sum(histogram.counts)


def _labels(metric: Metric, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, values, strict=True))
