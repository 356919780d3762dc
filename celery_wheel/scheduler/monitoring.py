"""The health of a scheduler process, and its faces for monitoring: an HTTP port, instruments of OpenTelemetry, systemd.

::

    live     no job has died, and each makes progress, or hangs in a call while the store or the broker does not answer;
             a process that is not live ends by itself, or has to be restarted
    ready    live · store and broker answer · the store's disk is not full · the clock is fit · every shard has a live
             holder · held shards are in time

A healthy standby is ready. A process that is not ready must not be restarted for it: it waits for a store or a broker.
systemd, for a unit with ``Type=notify``, gets READY=1 when the threads run, whether or not broker and shard are there;
STOPPING=1; and WATCHDOG=1 twice in WATCHDOG_USEC, unless a job has failed. Outside such a unit nothing is sent.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.metrics import opentelemetry, prometheus
from celery_wheel.metrics.samples import NotAnswered, PatientCall, ProcessMetrics, Totals
from celery_wheel.metrics.server import HttpAnswer, MetricsServer
from celery_wheel.overview import Overview, OverviewCache, PacedCounts, ShardStatus
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import StoreSize
from celery_wheel.timing import SystemClock
from celery_wheel.values.format import format_duration, printable
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import whole_number

logger = get_logger(__name__)


#: A store of less free space can write nothing: a commit of SQLite appends its pages to the log first.
FULL_BYTES = 2**20


class Health:
    """The checks of one process; any thread may call them. ``overview`` and ``size`` read the state of the store."""

    def __init__(
        self,
        engines: Callable[[], Sequence[Engine]],
        pool: Pool,
        overview: Callable[[], Overview],
        size: Callable[[], StoreSize],
        objective_ms: int,
    ) -> None:
        self._engines = engines
        self._pool = pool
        self._objective_ms = objective_ms
        self._store = PatientCall("the store", lambda: (overview(), size()))
        self._broker = PatientCall("the broker", self._ask_broker)

    def livez(self, accept: str) -> HttpAnswer:
        return _answer(self.not_live())

    def readyz(self, accept: str) -> HttpAnswer:
        return _answer(self.not_ready())

    def not_live(self) -> list[str]:
        if self._pool.failure is not None:
            name, error = self._pool.failure
            return [f"the job {name} ended: {error!r}; restart the scheduler"]
        stuck = self._pool.stuck()
        if stuck and all(one.runs for one in stuck) and any(self._silent()):
            return []  # a restart would wait for the same server
        return [f"{one}; restart the scheduler" for one in stuck]

    def _silent(self) -> Iterator[str]:
        """Yield an error for each server that does not answer."""
        calls: tuple[PatientCall[Any], ...] = (self._store, self._broker)
        for call in calls:
            call.begin()
        for call in calls:
            try:
                call.result()
            except NotAnswered as error:
                yield str(error)

    def not_ready(self) -> list[str]:
        engines = self._engines()
        if not engines:
            return ["the scheduler is starting or stopping"]
        found, shards = self.not_live(), list[ShardStatus]()
        found += self._silent()
        with suppress(NotAnswered):
            overview, size = self._store.result()
            shards = overview.shards
            if size.disk is not None and size.disk.free < FULL_BYTES:
                found.append(
                    f"the disk of the store has {size.disk.free:,} bytes left: nothing is accepted or dispatched, and "
                    "nothing is lost; make room"
                )
        if any(engine.clock.halted for engine in engines):
            found.append("the clock of this host is too far from the second clock; check its time service")
        held = {engine.shard for engine in engines if engine.held}
        for one in shards:
            if one.shard in held and one.behind_ms > self._objective_ms:
                late, allowed = format_duration(one.behind_ms), format_duration(self._objective_ms)
                found.append(f"shard {one.shard} is {late} late, and wheel_objective allows {allowed}")
            elif one.shard not in held and one.holder is None:
                found.append(f"shard {one.shard} has no holder")
            elif one.shard not in held and not one.live and one.snapshot_age_ms is not None:
                seen = format_duration(one.snapshot_age_ms)
                found.append(f"shard {one.shard} has no live holder: {printable(str(one.holder))} was seen {seen} ago")
        return found

    def _ask_broker(self) -> None:
        for engine in self._engines()[:1]:
            engine.delivery.broker.depth(engine.shard)


def _answer(problems: list[str]) -> HttpAnswer:
    text = "".join(f"{problem}\n" for problem in problems) or "ok\n"
    return HttpAnswer(503 if problems else 200, text.encode())


def check(conf: Conf) -> None:
    """Raise PackageMissing where a setting needs a package that is not installed."""
    if conf.metrics is not None:
        prometheus.check_installed()
    if conf.opentelemetry:
        opentelemetry.check_installed()


class Monitoring:
    """The faces of one process, from ``start`` to ``stop``; ``process`` is its number, from 1."""

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
        self.health = health = Health(engines, pool, overview.get, store.browse.size, conf.objective_ms)
        counts, objective_ms = PacedCounts(store.browse.schedule_counts), conf.objective_ms
        self._metrics = ProcessMetrics(
            engines,
            lambda: Totals(
                overview.get(),
                counts.get(),
                store.browse.size(),
                store.browse.server(),
                objective_ms,
            ),
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
        return HttpAnswer(200, *prometheus.page_of(self._metrics.collect, accept))


# -- the process and systemd

#: The garbage collector runs rarely: after twice the window's rows. Rows form no cycles, and scanning 100,000 of them
#: was a fifth of the CPU time of ingest and dispatch.
GARBAGE_EVERY = 200_000

#: ``mallopt`` of glibc: the greatest number of arenas. With an arena for each thread, memory that one thread frees
#: serves no other: 216 MB with 100,000 rows pending, in place of 161. Threads run Python in turn: none waits for one.
ARENAS = 2


#: A thread that works keeps the interpreter so long while another one wants it; Python's 5 ms are longer than most
#: rounds. A round of dispatch wants it again after each of its ten calls to a server or the system, so beside ingest
#: it waited ten times: the p99 at 4,000 messages a second is 9 ms with 0.1 ms and 10 ms with 0.5 ms.
SWITCH_S = 0.0001


def tune_process() -> None:
    """Set the garbage collector, malloc and the turns of the threads; call it before threads start."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(GARBAGE_EVERY, 10, 10)
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(-8, ARENAS)  # M_ARENA_MAX


_repetitions = count()


def _is_first(record: logging.LogRecord) -> bool:
    # A URL of rediss:// without options of TLS accepts any certificate.
    repeated = str(record.msg).startswith("Secure redis scheme specified (rediss) with no ssl")
    return not repeated or next(_repetitions) == 0


def warn_once() -> None:
    """Let this process log the warning once; a second call changes nothing."""
    logging.getLogger("kombu.connection").addFilter(_is_first)


def notify(state: str) -> None:
    """Send a state to systemd, if it listens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path  # a name without a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("systemd is not told %s (%s)", state.partition("\n")[0], error, extra={"action": "notify"})


def watchdog_s() -> float:
    """Return the seconds between two signs of life; 0 where systemd watches no process, or another one."""
    microseconds, pid = whole_number(os.environ.get("WATCHDOG_USEC", "")), os.environ.get("WATCHDOG_PID", "")
    if microseconds is None or pid not in ("", str(os.getpid())):
        return 0.0
    return microseconds / 2_000_000


class Watchdog:
    """The job that tells systemd that the process lives, with a line for ``systemctl status``."""

    def __init__(self, pool: Pool, is_live: Callable[[], bool], status: Callable[[], str]) -> None:
        self._is_live = is_live
        self._status = status
        self._every_s = watchdog_s()
        self._job = pool.job(self._run, "watchdog")

    def start(self) -> None:
        if self._every_s:
            self._job.wake()

    def stop(self) -> None:
        self._job.cancel()

    def _run(self) -> Wait:
        if self._is_live():
            notify(f"WATCHDOG=1\nSTATUS={self._status()}")
        return Wait(self._every_s, self._every_s)
