"""``wheel_processes``: children that share the shards with beat's process, and the supervisor that restarts them.

1. Children are spawned, never forked: beat has threads and connections. A child imports the module that has the app,
   and gets the settings that beat's process changed after its own import, such as those of the command line.
2. Children serve all shards but the first, which beat's process holds with the periodic entries. A child is a node of
   Celery's remote control: its engines learn from it which stamps are revoked.
3. SIGTERM to beat ends the children gracefully. The failure of an engine ends its child with exit code 1. A child that
   ended is started again after 1 s, 2 s, 4 s … 30 s; after 1 s once it ran for a minute.
4. No child outlives beat: on Linux the kernel kills it with the thread of ``tick``, which started it; everywhere a
   child stops when its pipe to beat's process ends.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from celery import platforms, signals
from celery._state import set_default_app
from celery.utils.imports import symbol_by_name

from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.scheduler.monitoring import warn_once
from celery_wheel.scheduler.service import WheelService
from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry
from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

BACK_OFF_FIRST_S, BACK_OFF_MOST_S = 1.0, 30.0

#: A child that ran for so long has started well, and its next restart is soon.
STEADY_S = 60.0

#: A stop kills the children that have not ended after so many seconds; each gives its engines 10 s.
STOP_S = 15.0


@dataclass(slots=True)
class Child:
    number: int
    process: BaseProcess | None = None
    start_s: float = 0.0  #: when it was started, or will be
    backoff: Backoff = field(default_factory=lambda: Backoff(BACK_OFF_FIRST_S, BACK_OFF_MOST_S))


class Supervisor:
    """Runs the children; all calls are made by the thread of ``tick``, or by its signal handlers.

    ``install`` makes a child's app an app of the wheel; children import it by its name. ``on_end`` is called for each
    unexpected end of a child.
    """

    def __init__(
        self,
        app: Any,
        install: Callable[[Any], Any],
        on_end: Callable[[], None],
        process: Callable[..., BaseProcess] = SpawnProcess,
    ) -> None:
        self._app = app
        self._process = process
        self._log = RetryLog(logger, time.monotonic)
        self._install = install
        self._on_end = on_end
        self._children: list[Child] | None = None  #: None before the first ``tend``

    def check(self) -> None:
        """Raise SettingError where children could not load the app."""
        if Conf(self._app).processes > 1:
            path_of(self._app)

    def tend(self) -> None:
        """Start each child whose time has come."""
        if self._children is None:
            self._children = self._make_children()
        now_s = time.monotonic()
        for one in self._children:
            if one.process is not None and one.process.exitcode is not None:
                code = one.process.exitcode
                self._note_end(one, f"(pid {one.process.pid}) ended with exit code {code}", now_s, code)
            if one.process is None and now_s >= one.start_s:
                self._start(one, now_s)

    def _make_children(self) -> list[Child]:
        conf = Conf(self._app)
        if conf.processes > conf.shards:
            logger.warning(
                "wheel_processes is %d and wheel_shards is %d: a process without a shard has no work, so %d are "
                "started; `celery -A proj wheel reshard` changes the number of shards",
                conf.processes,
                conf.shards,
                conf.shards,
                extra={"action": "idle_processes"},
            )
        return [Child(number) for number in range(2, min(conf.processes, conf.shards) + 1)]

    def _start(self, one: Child, now_s: float) -> None:
        module, name = path_of(self._app)
        if module == "__main__":  # Celery names the tasks of a script after the app, in a child of this file
            os.environ["MP_MAIN_FILE"] = str(sys.modules[module].__file__)
        start = Start(one.number, module, name, changes_of(self._app), self._install, socket.getdefaulttimeout())
        one.start_s = now_s
        one.process = self._process(target=serve_child, args=(start,), name=f"wheel-{one.number}", daemon=True)
        try:
            one.process.start()
        except OSError as error:  # the system has no memory or no process ids left
            self._note_end(one, f"did not start ({error})", now_s)

    def _note_end(self, one: Child, end: str, now_s: float, exit_code: int | None = None) -> None:
        one.process = None
        if now_s - one.start_s > STEADY_S:
            one.backoff.succeeded()
        wait_s = one.backoff.failed()
        one.start_s = now_s + wait_s
        self._log.write(
            logging.ERROR,
            f"{one.number} {exit_code}",
            "process %d of the scheduler %s; the other processes take its shards, and it is started again in %g s",
            one.number,
            end,
            wait_s,
            extra={"action": "process_ended", "exit_code": exit_code},
        )
        self._on_end()

    def terminate(self) -> None:
        """Ask the children to end; ``join`` waits for them."""
        for process in self._processes():
            process.terminate()

    def join(self) -> None:
        until_s = time.monotonic() + STOP_S
        for process in self._processes():
            process.join(max(0.0, until_s - time.monotonic()))
            if process.exitcode is None:
                logger.error("pid %d did not end in time and is killed", process.pid, extra={"action": "process_kill"})
                process.kill()
                process.join()

    def _processes(self) -> list[BaseProcess]:
        found = [one.process for one in self._children or ()]
        return [process for process in found if process is not None and process.pid is not None]


def path_of(app: Any) -> tuple[str, str]:
    """Return the module and the name under which a child finds the app; a script's own module comes last."""
    for module in sorted(sys.modules, key=lambda module: module == "__main__"):
        # Their modules refer to the current app, whichever that is; "__mp_main__" is multiprocessing's ``__main__``.
        if module.partition(".")[0] in ("celery", "celery_wheel", "__mp_main__"):
            continue
        for name, value in list(getattr(sys.modules[module], "__dict__", {}).items()):
            if value is app:
                return module, name
    raise SettingError(
        f"wheel_processes must be 1 for the app {app.main!r}: no module has it as a global variable, so other "
        "processes cannot import it; assign it to a variable of a module, in a script run beat under "
        "`if __name__ == '__main__':`, or set wheel_processes = 1"
    )


def changes_of(app: Any) -> dict[str, bytes]:
    """Return the pickled settings that were set on the app itself; one that has no pickle is as its module sets it."""
    found = {}
    for name, value in app.conf.changes.items():
        try:
            found[name] = pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            logger.debug("the setting %s has no pickle", name, extra={"action": "no_pickle"})
    return found


#: Between two looks at the engines.
LOOK_S = 0.5

#: A terminal that is closed sends SIGHUP to beat and its children alike.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Start:
    """The parts of beat's process that a child needs; ``socket_timeout_s`` is the default of all sockets."""

    number: int  #: of the process; beat's own is 1
    module: str
    name: str
    changes: dict[str, bytes]  #: pickled settings, to be read once the app's modules are imported
    install: Callable[[Any], Any]
    socket_timeout_s: float | None


def serve_child(start: Start) -> None:
    """Serve shards until a signal, or the end of beat's process."""
    platforms.set_pdeathsig("SIGKILL")
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # ``nohup`` ignores it
            signal.signal(number, _end)
    app = _load(start)
    warn_once()
    beat: Any = parent_process()
    service = WheelService(app, BeatApplyEntry(symbol_by_name(Conf(app).base_scheduler), app), process=start.number)
    serve(service, lambda: bool(wait([beat.sentinel], LOOK_S)))


def serve(service: WheelService, is_over: Callable[[], bool]) -> None:
    """Run a child's service until ``is_over``, which waits for LOOK_S; raise the failure that ends it earlier."""
    try:
        service.start()
        while not is_over():
            service.raise_failure()
    finally:
        service.stop()


def _end(*_: object) -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the stop
    sys.exit()


def _load(start: Start) -> Any:
    """Return the app, prepared as by beat's command."""
    app = start.install(getattr(importlib.import_module(start.module), start.name))
    app.conf.update({name: pickle.loads(value) for name, value in start.changes.items()})  # noqa: S301 - of the parent
    app.set_current()
    set_default_app(app)
    app.loader.init_worker()
    app.finalize()
    # Celery's own way to hand its logging to spawned processes.
    app.log.setup(
        int(os.environ.get("CELERY_LOG_LEVEL") or 0),
        os.environ.get("CELERY_LOG_FILE") or None,
        bool(os.environ.get("CELERY_LOG_REDIRECT")),
        os.environ.get("CELERY_LOG_REDIRECT_LEVEL") or "WARNING",
    )
    socket.setdefaulttimeout(start.socket_timeout_s)
    signals.beat_init.send(sender=None)  # where projects initialize Sentry, for example
    return app
