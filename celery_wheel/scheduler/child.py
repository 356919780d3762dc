"""The main function of a child of the supervisor: a scheduler without the first shard and the periodic entries.

Its logging, signals and app are as in beat's own process. It is a node of Celery's remote control, as each scheduler:
a node answers for the shards that its own process holds, and its engines learn from it which stamps are revoked.

SIGTERM, SIGHUP, Ctrl-C and the end of beat's process stop it gracefully; the failure of an engine ends it with exit
code 1.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

from celery import platforms, signals
from celery._state import set_default_app
from celery.utils.imports import symbol_by_name

from celery_wheel.conf import Conf
from celery_wheel.scheduler.once import warn_once
from celery_wheel.scheduler.service import WheelService
from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry

#: Between two looks at the engines.
LOOK_S = 0.5

#: A terminal that is closed sends SIGHUP to beat and its children alike.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Start:
    """The parts of beat's process that a child needs.

    ``install`` makes the app an app of the wheel; ``socket_timeout_s`` is the default of all sockets.
    """

    number: int  #: of the process; beat's own is 1
    module: str
    name: str
    changes: dict[str, bytes]  #: pickled settings, to be read once the app's modules are imported
    install: Callable[[Any], Any]
    socket_timeout_s: float | None


def main(start: Start) -> None:
    """Serve shards until a signal, or the end of beat's process."""
    platforms.set_pdeathsig("SIGKILL")
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # ``nohup`` ignores it
            signal.signal(number, _end)
    app = _load(start)
    warn_once()
    service = WheelService(app, BeatApplyEntry(symbol_by_name(Conf(app).base_scheduler), app), process=start.number)
    beat: Any = parent_process()
    try:
        service.start()
        while not wait([beat.sentinel], LOOK_S):
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
