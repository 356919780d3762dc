"""A process's faces for monitoring: an HTTP port, and instruments of OpenTelemetry.

::

    wheel_metrics = "127.0.0.1:9808"     /metrics, /livez and /readyz: beat's own process on port 9808, the second of
                                         wheel_processes on 9809, the third on 9810, …
    wheel_opentelemetry = True           each process by the meter provider that the project sets up in it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool
from celery_wheel.metrics import opentelemetry, prometheus
from celery_wheel.metrics.metrics import ProcessMetrics
from celery_wheel.metrics.server import HttpAnswer, MetricsServer
from celery_wheel.metrics.totals import Totals
from celery_wheel.overview import OverviewCache, PacedCounts
from celery_wheel.scheduler.health import Health
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import SystemClock


def check(conf: Conf) -> None:
    """Raise PackageMissing where a setting needs a package that is not installed."""
    if conf.metrics is not None:
        prometheus.check_installed()
    if conf.opentelemetry:
        opentelemetry.check_installed()


class Monitoring:
    """The faces of one process, from ``start`` to ``stop``.

    Args:
        process: its number among those of ``wheel_processes``, from 1.
        pool: of all jobs of the process.
    """

    def __init__(
        self,
        conf: Conf,
        process: int,
        engines: Callable[[], Sequence[Engine]],
        store: FullStore,
        pool: Pool,
    ) -> None:
        def now_ms() -> int:
            """Return due time: a step of the host's clock makes no task late."""
            return next((engine.clock.now_ms() for engine in engines()), SystemClock().now_ms())

        overview = OverviewCache(store, now_ms)
        self.health = health = Health(engines, pool, overview.get, conf.objective_ms)
        counts, objective_ms = PacedCounts(store.browse.schedule_counts), conf.objective_ms
        self._metrics = ProcessMetrics(
            engines,
            lambda: Totals(overview.get(), counts.get(), store.browse.size(), store.browse.server(), objective_ms),
        )
        self._instruments = conf.opentelemetry
        self._server: MetricsServer | None = None
        if conf.metrics is not None:
            host, port = conf.metrics
            pages = {"/metrics": self._page, "/livez": health.livez, "/readyz": health.readyz}
            self._server = MetricsServer((host, port + process - 1), pages)

    def start(self) -> None:
        if self._instruments:
            opentelemetry.instrument(self._metrics.collect)
        if self._server is not None:
            self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def _page(self, accept: str) -> HttpAnswer:
        body, content_type = prometheus.page_of(self._metrics.collect, accept)
        return HttpAnswer(200, body, content_type)
