"""Processes that have imported Celery and the wheel, or Django too, and fork a Python at once at a request.

The imports of a scheduler take half a second of a core, and the suites start hundreds of schedulers.
The forked process is otherwise like any other: it has a session, an environment and a log, and ``kill -9`` is the same.

::

    start(CELERY, ["-m", "celery", …], …)      a Forked, which is to Process what subprocess.Popen is
    start(SITE, ["-m", "django", "check"], …)  of a starter that has imported Django besides

The arguments are those of ``python``: ``-m module`` or ``-c program``, after ``-W error`` or not. One starter of a kind
lives as long as the tests of a process; it opens nothing, runs no thread, and reads requests from its standard input.
It imports without ``-W error`` and without the settings of a project.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1

#: The first word of a command that is forked from a starter: the kind of the starter.
CELERY, SITE = "warm celery", "warm site"

#: Modules that beat, workers and the wheel's commands import as they start.
_OF_CELERY = (
    "celery.bin.celery",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "celery_wheel.beat",
    "celery_wheel.broker.redis",
    "celery_wheel.broker.amqp.edge",
    "celery_wheel.broker.virtual",
    "celery_wheel.console.output",
    "celery_wheel.control",
    "celery_wheel.producer.rescue",
    "celery_wheel.scheduler.remote_control.node",
    "celery_wheel.scheduler.service",
    "celery_wheel.store.postgresql.database",
    "celery_wheel.store.sql.store",
    "celery_wheel.store.sqlite.database",
    "celery_wheel.store.url",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "rich.table",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
)

#: Modules that a site imports besides; none needs Django's settings.
_OF_A_SITE = (
    "celery_wheel.operations.doctor",
    "django.contrib.admin.options",
    "django.contrib.admin.views.main",
    "django.contrib.messages.middleware",
    "django.contrib.sessions.backends.db",
    "django.contrib.staticfiles.management.commands.runserver",
    "django.core.management.commands.makemigrations",
    "django.core.management.commands.migrate",
    "django.core.management.commands.shell",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.middleware.csrf",
    "django.views.i18n",
)

MODULES = {CELERY: _OF_CELERY, SITE: (*_OF_CELERY, *_OF_A_SITE)}


class Forked:
    """The part of ``subprocess.Popen`` that ``Process`` uses."""

    stdin = None

    def __init__(self, starter: Starter, pid: int) -> None:
        self._starter = starter
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._starter.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        until_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < until_s, f"process {self.pid} has not ended"
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Starter:
    def __init__(self, kind: str, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.warm", kind],
            cwd=Path(__file__).parents[2],
            # Celery reads the variable when it is imported.
            env={**os.environ, "C_FORCE_ROOT": "1", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, request: Mapping[str, Any]) -> Any:
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

    def close(self) -> None:
        """Close its standard input, at which it ends."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()
        self._popen.wait()


_starters: dict[tuple[str, str], Starter] = {}


def close(library: str | None = None) -> None:
    """Close the starters, or those with such a library."""
    for key in [key for key in _starters if library in (None, key[1])]:
        _starters.pop(key).close()


def start(
    kind: str,
    arguments: Sequence[str],
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    errors: Path | None = None,
) -> Forked:
    """Fork ``python <arguments>``; ``errors`` is the file of its standard error, by default the log.

    A library that is loaded before all others (LD_PRELOAD) cannot come into a fork: it has a starter of its own.
    """
    library = environment.get("LD_PRELOAD", "")
    key = kind, library
    if key not in _starters:
        _starters[key] = Starter(kind, environment if library else None)
    logs = [str(log), str(errors or log)]
    request = {"arguments": arguments, "logs": logs, "folder": str(folder), "environment": environment}
    return Forked(_starters[key], _starters[key].ask(request))


def serve() -> dict[str, Any]:
    """Answer requests; returns in each process that it forks, with its request."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            return request  # type: ignore[no-any-return]
        print(json.dumps(answer), flush=True)
    sys.exit()


def become(request: dict[str, Any]) -> None:
    os.setsid()
    if sys.platform == "linux":  # the children end with a killed test run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for target, path in enumerate((os.devnull, *request["logs"])):
        source = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.dup2(source, target)
        os.close(source)
    sys.path[:0] = [request["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    execute(request["arguments"])


def execute(arguments: Sequence[str]) -> None:
    """Do as ``python <arguments>`` does."""
    option, value, *others = arguments
    if option == "-W":
        sys.warnoptions.append(value)
        warnings.simplefilter(value)  # type: ignore[arg-type]
        execute(others)
    elif option == "-m":
        sys.argv = [value, *others]
        runpy.run_module(value, run_name="__main__", alter_sys=True)
    else:
        assert option == "-c", option
        sys.argv = [option, *others]
        exec(compile(value, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    for module in MODULES[sys.argv[1]]:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    become(serve())
