"""A process that has imported Celery and the wheel, and forks a ``celery`` command at once at a request.

The imports of a scheduler take more than a second of a core, and the suites start hundreds of schedulers.
The forked process is otherwise like any other: it has a session, an environment and a log, and ``kill -9`` is the same.

``start(arguments, …)`` gives a ``Forked``, which is to ``Process`` what ``subprocess.Popen`` is. One starter lives as
long as the tests of a process; it opens nothing, runs no thread, and reads requests from its standard input.
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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1

#: Modules that beat, workers and the wheel's commands import as they start.
MODULES = (
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
    "celery_wheel.broker.virtual.edge",
    "celery_wheel.scheduler.remote_control.node",
    "celery_wheel.scheduler.service",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "sqlalchemy.dialects.sqlite",
)


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
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.warm"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "C_FORCE_ROOT": "1"},  # Celery reads the variable when it is imported
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


@cache
def starter() -> Starter:
    return Starter()


def close() -> None:
    if starter.cache_info().currsize:
        starter().close()
        starter.cache_clear()


def start(arguments: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]) -> Forked:
    """Fork ``celery <arguments>``."""
    request = {"arguments": arguments, "log": str(log), "folder": str(folder), "environment": environment}
    return Forked(starter(), starter().ask(request))


# -- in the process itself -----------------------------------------------------------------------------


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
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.argv = ["celery", *request["arguments"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    become(serve())
