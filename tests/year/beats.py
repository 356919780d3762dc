"""A process of beat in a simulated year: the product's own ``WheelScheduler``, over the servers of the year.

::

    main thread    tick ─► sleeps as Beat does ─► tick …     an error ends the process; its supervisor starts another
    the rest       whatever ``tick`` starts: service, pool, jobs, sources, node, answers …

Nothing of the shell is a stand-in, but what would open a socket, a file or a process: the store, the broker's edge (on
RabbitMQ its links), the message of an occurrence, the transport of the control node's mailbox, and the processes of
``wheel_processes``: each of them is a host of the machine.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery_wheel import Celery
from celery_wheel import beat as beat_module
from celery_wheel.engine import runner
from celery_wheel.producer.rescue import ReceivedMessage
from celery_wheel.requests import answers
from celery_wheel.scheduler import service, supervisor
from celery_wheel.scheduler.supervisor import Start
from celery_wheel.store.schedule_model import RunReport
from celery_wheel.worker.run_reports import Reporter
from tests.kit.holder import message
from tests.kit.virtual_machine import Host
from tests.simulation.recurring_world import Renderer
from tests.year.servers import StoreLine

#: ``tests.year.world.Year``, which imports this module.
Year = Any

logger = logging.getLogger("tests.year")

#: After an end a process is started again after so many seconds, as by systemd.
RESTART_S = 2.0

#: The year's app, where its children find it.
APP: Any = None


class YearRenderer(Renderer):
    def close(self) -> None: ...


class Process:
    _numbers = itertools.count(1)
    year: Year
    host: Host
    service: Any = None

    @property
    def engines(self) -> list[Any]:
        return list(self.service._engines()) if self.service is not None else []

    @property
    def held(self) -> list[int]:
        return [engine.shard for engine in self.engines if engine.held]

    def end(self) -> None:
        self.host.kill()
        self.year.after_death(self.host)


class Child(Process):
    """In place of ``multiprocessing.Process``: a child of the beat whose thread makes it."""

    def __init__(self, beat: Beat, args: tuple[Start], **_: Any) -> None:
        self.beat, self.year, self.number = beat, beat.year, args[0].number
        self.pid: int | None = None
        self.exitcode: int | None = None
        self._stopping = False

    def start(self) -> None:
        year, self.pid = self.year, next(self._numbers)
        year.forks += 1
        is_out = year.machine.now_s < year.forks_until_s
        if is_out and year.forks % 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.host = year.machine.new_host(f"{self.beat.name}.{self.number}/{self.pid}")
        self.beat.children.append(self)
        year.machine.spawn(self.kill if is_out else self._main, self.host)

    def _main(self) -> None:
        try:
            self.service = service.WheelService(self.year.app, process=self.number)
            supervisor.serve(self.service, self._is_over)
            self._over(0)
        except Exception as error:
            if self.host.is_dead:
                raise
            self.beat.ended.append(error)
            self._over(1)

    def _is_over(self) -> bool:
        self.year.machine.time.sleep(supervisor.LOOK_S)
        return self._stopping

    def _over(self, exit_code: int) -> None:
        self.exitcode = exit_code
        self.beat.children.remove(self)
        self.end()

    def terminate(self) -> None:
        self._stopping = True

    def kill(self) -> None:
        if self.exitcode is None:
            self._over(-9)

    def join(self, timeout: float | None = None) -> None:
        until_s = self.year.machine.now_s + (timeout or 0)
        while self.exitcode is None and self.year.machine.now_s < until_s:
            self.year.machine.time.sleep(0.1)


class Beat(Process):
    def __init__(self, year: Year, name: str) -> None:
        self.year = year
        self.name = name
        self.scheduler: Any = None
        self.ended: list[BaseException] = []  #: what ended its processes
        self.children: list[Child] = []  #: that run
        self.start()

    def start(self) -> None:
        self.number = next(self._numbers)
        self.host = self.year.machine.new_host(f"{self.name}/{self.number}")
        self.stopping = False
        self.year.judge.shares_change()
        self.year.machine.spawn(self._main, self.host)

    def _main(self) -> None:
        host, time = self.host, self.year.machine.time
        try:
            self.scheduler = scheduler = beat_module.WheelScheduler(self.year.app)
            while not self.stopping:
                time.sleep(scheduler.tick() or 0.01)
            scheduler.close()
        except Exception as error:  # it ends beat
            if host.is_dead:
                raise
            self.ended.append(error)
            logger.info("%s ended: %r", host.name, error)
            self.kill()
            self.year.later(RESTART_S, self.start)

    def stop(self) -> None:
        self.stopping = True

    def kill(self) -> None:
        for child in list(self.children):  # as the kernel does
            child.kill()
        self.scheduler = None
        self.end()

    @property
    def service(self) -> Any:  # type: ignore[override]
        return self.scheduler._service if self.scheduler is not None else None

    @property
    def holds(self) -> bool:
        return 0 in self.held


class Worker:
    """A worker's main process, as far as it reports the ends of runs."""

    def __init__(self, year: Year) -> None:
        self._year = year
        self.host = year.machine.new_host("worker")
        self.reporter = Reporter(year.app)
        self.reporter._forwarder = self  # type: ignore[assignment]

    def spawn(self, report: RunReport) -> None:
        """Run a task for two seconds, and report its end."""

        def run() -> None:
            self._year.machine.time.sleep(2.0)
            self.reporter.put(report)

        self._year.machine.spawn(run, self.host)

    def publish(self, received: ReceivedMessage, shard: int) -> None:
        self._year.broker_line.gate()
        one = received.envelope
        parts = {"envelope_id": one.id, "task_id": one.task_id, "task": one.task, "body": received.body}
        self._year.broker.send(message(**parts, eta_ms=one.eta_ms, created_ms=one.created_ms))

    def drop(self) -> None: ...


@contextmanager
def servers_instead(year: Year) -> Iterator[None]:
    def open_store(*_: Any, **__: Any) -> Any:
        year.store_line.gate()
        return StoreLine(year.disk, year.store_line)

    def child(**options: Any) -> Child:
        return Child(next(beat for beat in year.beats if beat.host is year.machine.host), **options)

    assert year.machine.host is year.machine.outside
    with ExitStack() as stack:
        for module, name, value in (
            (service, "open_store_of", open_store),
            (service, "broker_for", lambda *_: year.broker.edge(year.pushed)),
            (service, "meet_broker", lambda *_: year.broker_line.gate()),
            (service, "ScheduleRenderer", lambda *_, **__: YearRenderer()),
            (service, "cancel_replaced", lambda _app, _store, task_ids: year.overlapped.extend(task_ids)),
            (service, "tune_process", lambda: None),
            (beat_module, "end_on_hangup", lambda: None),
            (beat_module, "Supervisor", partial(supervisor.Supervisor, process=child)),
            (sys.modules[__name__], "APP", year.app),
            (service, "os", SimpleNamespace(getpid=lambda: next(year.pids))),
            (service.secrets, "token_hex", lambda *_: f"{next(year.tokens):06x}"),
            (answers, "open_store", open_store),
            (runner, "random", SimpleNamespace(Random=lambda: Random(year.seed))),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def make_app(year: Year, entries: dict[str, Any], processes: int) -> Any:
    app = Celery("year", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        timezone="Europe/Berlin",
        beat_schedule=entries,
        wheel_store="sqlite:////nowhere/year.sqlite3",
        wheel_base_scheduler="celery.beat:Scheduler",
        wheel_shards=len(year.shards),
        wheel_processes=processes,
    )
    app.now = lambda: datetime.fromtimestamp(year.machine.time.time(), app.timezone)

    def mark_as_revoked(task_id: str, *_: Any, **__: Any) -> None:
        year.backend_line.gate()
        year.revoked.add(task_id)

    app.backend.mark_as_revoked = mark_as_revoked
    return app
