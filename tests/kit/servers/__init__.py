"""Private real servers for tests: each on a free port, with a data folder of its own, gone with the test.

::

    with RedisServer(tmp_path) as server:       tests.kit.servers.redis; so PostgresServer, RabbitServer, SqsServer
        server.url                              redis://127.0.0.1:<port>/0
        server.pause(); server.resume()         SIGSTOP, SIGCONT: it lives and does not answer
        server.kill(); server.start()           kill -9, and the same port and folder again
        server.restart()                        as an operator would

Where there is no server, tests are skipped at home and fail in CI (environment variable ``CI``).
"""

import gc
import os
import random
import socket
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

import psutil
import pytest

from tests.kit.patience import PATIENCE_S, wait_until
from tests.kit.processes import TAIL, Process

#: pytest-randomly gives every process of the tests the same numbers by ``random``.
_ANY = random.SystemRandom()

#: A process that ended as it was suspended waits for its parent, which is suspended.
_SUSPENDED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)

#: The last ports that were found free.
_given = deque[int](maxlen=200)


def absent(what: str) -> NoReturn:
    """Skip the test, or fail it in CI, where nothing may be absent."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is absent, and CI is to run this test")
    pytest.skip(f"{what} is absent")


def free_port(count: int = 1) -> int:
    """Return the first of free ports next to each other, below those that the kernel gives to connections.

    A server begins to listen some time later: each process of pytest-xdist has ports of its own, and gives none of the
    last ones again. A run beside another one names its own first port by TEST_PORTS.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    first = int(os.environ.get("TEST_PORTS", "15000")) + process % 8 * 1_000
    while True:
        port = _ANY.randrange(first, first + 1_001 - count)
        ports = range(port, port + count)
        if set(ports).isdisjoint(_given) and all(map(_is_free, ports)):
            _given.extend(ports)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class Server(ABC):
    """One server process; usable as a context manager. ``folder`` outlives ``kill`` and ``stop``."""

    START_S = PATIENCE_S

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: Process | None = None

    @abstractmethod
    def launch(self, port: int) -> Process: ...

    @abstractmethod
    def answers(self, port: int) -> bool: ...

    def start(self) -> Self:
        """Start the server, on its former port or else on a free one; returns when it answers."""
        assert self._process is None, f"{type(self).__name__} runs already"
        ports = [self.port] if self.port else [free_port() for _ in range(5)]
        for port in ports:  # another process may take the free port between finding and using it
            process = self.launch(port)
            wait_until(
                lambda port=port, process=process: not process.is_alive() or self.answers(port),
                f"{type(self).__name__} answers on port {port}",
                self.START_S,
            )
            if process.is_alive():
                self.port, self._process = port, process
                return self
        raise AssertionError(f"{type(self).__name__} did not start; its log:\n{self.log()}")

    def stop(self) -> None:
        """Stop the server as an operator would. Does nothing when it is not running."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            self._gone()

    def kill(self) -> None:
        """Kill all processes of the server, as a loss of power would: data that is not on disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._gone()

    def _gone(self) -> None:
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let the server hang: connections stay open, and no request is answered."""
        for process in self.hanging():
            with suppress(psutil.NoSuchProcess):  # a backend may end just now, and is no more than a number then
                process.suspend()
                wait_until(lambda one=process: one.status() in _SUSPENDED, "the server is suspended")

    def resume(self) -> None:
        for process in self.hanging():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def hanging(self) -> list[psutil.Process]:
        return self.running.family()

    @property
    def is_up(self) -> bool:
        return self._process is not None

    @property
    def running(self) -> Process:
        assert self._process is not None, f"{type(self).__name__} is not running"
        return self._process

    @property
    def pid(self) -> int:
        return self.running.pid

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-TAIL:] for path in sorted(self.folder.glob("**/*.log")))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        gc.collect()  # Celery's AsyncResult asks the server once more as it is collected
        self.kill()
