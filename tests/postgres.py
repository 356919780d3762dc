"""A private PostgreSQL server for tests: on a free port, with a data folder of its own, gone with the test.

::

    with PostgresServer() as server:
        server.url()                            postgresql://wheel@127.0.0.1:<port>/postgres
        server.new_database()                   the URL of an empty database; a few hundredths of a second
        server.sql("SELECT 1")                  as superuser, each statement by itself
        server.pause(); server.resume()         SIGSTOP, SIGCONT to all its processes: it is there and does not answer
        server.kill(); server.start()           kill -9 to all of them; comes up by its log
        server.restart()                        as an operator would: sessions are ended

PostgreSQL refuses to run as root, so for root it runs as the user ``postgres`` that its package makes. The folder is a
temporary one of its own, since those of pytest are closed to other users. The cluster that Debian's package makes and
starts by itself is neither used nor touched.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import psycopg

from tests.servers import PATIENCE_S, absent, free_port, wait_until

_DEBIAN = Path("/usr/lib/postgresql")

USER = "wheel"

#: Losing power is not tested, and without fsync a test is several times faster. A benchmark wants ``fsync="on"``.
FAST = {"fsync": "off", "full_page_writes": "off"}


def postgres_binaries() -> Path | None:
    """The folder with ``initdb`` and ``postgres``; of several versions the newest."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


def _user() -> dict[str, Any]:
    """As whom the server runs, as arguments of ``subprocess``."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        absent("the user postgres, as whom PostgreSQL runs where tests run as root,")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server. Usable as a context manager; ``options`` are those of postgresql.conf."""

    def __init__(self, **options: str) -> None:
        self.options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "logging_collector": "off",
            "max_connections": "200",
            "shared_buffers": "32MB",
            **FAST,
            **options,
        }
        self.folder: Path | None = None
        self.port = 0
        self._databases = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> PostgresServer:
        """Start it, on the port it had before, or else on a free one; returns when it answers."""
        binaries = postgres_binaries()
        if binaries is None:
            absent("PostgreSQL")
        assert self._process is None, "it runs already"
        if self.folder is None:
            self._initialise(binaries)
        ports = [self.port] if self.port else (free_port() for _ in range(5))
        for port in ports:  # between finding a free port and taking it, somebody else may have
            if self._launch(binaries, port):
                self.port = port
                return self
        raise AssertionError(f"PostgreSQL did not start; its log:\n{self.log()}")

    def _initialise(self, binaries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wheel-postgres-"))
        user = _user()
        if user:
            os.chown(self.folder, user["user"], user["group"])
        command = [str(binaries / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8"]
        command += ["--locale=C", "--no-sync", "--no-instructions"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, **user)
        assert done.returncode == 0, done.stderr

    def _launch(self, binaries: Path, port: int) -> bool:
        assert self.folder is not None
        command = [str(binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(port)]
        for name, value in self.options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **_user())
        self._process = process
        wait_until(lambda: process.poll() is not None or _answers(port), f"PostgreSQL on port {port}")
        if process.poll() is None:
            return True
        self._process = None
        return False

    def stop(self) -> None:
        """End it as an operator would: what is open is rolled back. Does nothing when it is not running."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._process = None

    def kill(self) -> None:
        """End all its processes at once, as a loss of power would."""
        if self._process is None:
            return
        processes = self._all()
        for process in processes:  # the first first, which would start others anew
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(PATIENCE_S)
        psutil.wait_procs(processes, PATIENCE_S)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing is answered."""
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _all(self) -> list[psutil.Process]:
        assert self._process is not None, "it is not running"
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None

    # -- use -------------------------------------------------------------------------------------

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """An empty database's URL. It goes with the server."""
        name = f"wheel_{next(self._databases)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements, each by itself; returns the last one's rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def log(self) -> str:
        path = self.folder and self.folder / "log"
        return path.read_text(errors="replace") if path and path.exists() else "(none)"


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:  # not listening yet, or still recovering
        return False
    return True
