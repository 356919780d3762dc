"""A process of beat in a simulated year: the product's own ``WheelScheduler``, over the servers of the year.

::

    main thread    tick ─► sleeps as Beat does ─► tick …     an error ends the process; its supervisor starts another
    the rest       whatever ``tick`` starts: service, pool, jobs, sources, node, answers …

Nothing of the shell is a stand-in, but what would open a socket, a file or a process: the store, the broker's edge, the
message of an occurrence, the children of ``wheel_processes`` and the control node's mailbox.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_wheel import Celery
from celery_wheel import beat as beat_module
from celery_wheel.engine import runner
from celery_wheel.producer.rescue import ReceivedMessage
from celery_wheel.requests import answers
from celery_wheel.scheduler import service
from celery_wheel.worker.run_reports import Reporter
from tests.kit.holder import message
from tests.simulation.recurring_world import Renderer
from tests.year.servers import Reached, StoreLine, YearRedis

if TYPE_CHECKING:
    from tests.year.world import Year

logger = logging.getLogger("tests.year")

#: After an end a process is started again after so many seconds, as by systemd.
RESTART_S = 2.0


#: A run takes so long.
RUN_S = 2.0


class YearRenderer(Renderer):
    def close(self) -> None: ...


class Beat:
    """One process; ``start`` makes a new one of the same name."""

    _numbers = itertools.count(1)

    def __init__(self, year: Year, name: str) -> None:
        self.year = year
        self.name = name
        self.scheduler: Any = None
        self.ended: list[BaseException] = []  #: what ended its processes
        self.born_s = 0.0
        self.start()

    def start(self) -> None:
        self.number = next(self._numbers)
        self.host = self.year.machine.new_host(f"{self.name}/{self.number}")
        self.stopping = False
        self.born_s = self.year.machine.now_s
        self.year.machine.spawn(self._main, self.host)

    def _main(self) -> None:
        host, time = self.host, self.year.machine.time
        try:
            self.scheduler = scheduler = beat_module.WheelScheduler(self.year.app)
            while not self.stopping:
                wait_s = scheduler.tick()
                time.sleep(wait_s or 0.01)
            scheduler.close()
        except Exception as error:  # it ends beat
            if host.is_dead:
                raise
            self.ended.append(error)
            logger.info("%s ended: %r", host.name, error)
            self.kill()
            self.year.later(RESTART_S, self.start)

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does."""
        self.stopping = True

    def kill(self) -> None:
        self.host.kill()
        self.scheduler = None
        self.year.after_death(self)

    @property
    def service(self) -> Any:
        return self.scheduler._service if self.scheduler is not None else None

    @property
    def engines(self) -> list[Any]:
        return list(self.service._engines()) if self.scheduler is not None else []

    @property
    def holds(self) -> bool:
        return any(engine.held for engine in self.engines)


class Worker:
    """A worker's main process, as far as it reports the ends of runs."""

    def __init__(self, year: Year) -> None:
        self._year = year
        self.host = year.machine.new_host("worker")
        self.reporter = Reporter(year.app)
        self.reporter._forwarder = self  # type: ignore[assignment]

    def spawn(self, header: dict[str, Any]) -> None:
        """Run a task for two seconds, and report its end."""

        def run() -> None:
            self._year.machine.time.sleep(RUN_S)
            self.reporter.put(header)

        self._year.machine.spawn(run, self.host)

    def publish(self, received: ReceivedMessage) -> None:
        self._year.broker_line.gate()
        one = received.envelope
        parts = {"envelope_id": one.id, "task_id": one.task_id, "task": one.task, "body": received.body}
        self._year.broker.send(message(**parts, eta_ms=one.eta_ms, created_ms=one.created_ms))

    def drop(self) -> None: ...


@contextmanager
def servers_instead(year: Year) -> Iterator[None]:
    """Let the product open the year's servers."""

    def open_store(*_: Any, **__: Any) -> Any:
        year.store_line.gate()
        return StoreLine(year.disk, year.store_line)

    def broker_for(*_: Any, **__: Any) -> Any:
        edge = YearRedis(year.broker, lambda: year.machine.now_ms, pushed=year.pushed)
        return Reached(edge, year.broker_line)

    host = year.machine.host
    assert host is year.machine.outside
    with ExitStack() as stack:
        for module, name, value in (
            (service, "open_store_of", open_store),
            (service, "broker_for", broker_for),
            (service, "meet_broker", lambda *_: year.broker_line.gate()),
            (service, "ScheduleRenderer", lambda *_, **__: YearRenderer()),
            (service, "ReplacedRuns", lambda *_: year.overlapped.extend),
            (service, "tune_memory", lambda: None),
            (beat_module, "end_on_hangup", lambda: None),
            (service.secrets, "token_hex", lambda *_: f"{next(year.tokens):06x}"),
            (answers, "open_store", open_store),
            (runner, "random", SimpleNamespace(Random=lambda: Random(year.seed))),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def make_app(year: Year, entries: dict[str, Any]) -> Any:
    app = Celery("year", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        timezone="Europe/Berlin",
        beat_schedule=entries,
        wheel_control=False,
        wheel_store="sqlite:////nowhere/year.sqlite3",
        wheel_base_scheduler="celery.beat:Scheduler",
        wheel_shards=1,
    )
    app.now = lambda: datetime.fromtimestamp(year.machine.time.time(), app.timezone)

    def mark_as_revoked(task_id: str, *_: Any, **__: Any) -> None:
        year.backend_line.gate()
        year.revoked.add(task_id)

    app.backend.mark_as_revoked = mark_as_revoked
    return app
