"""A private PostgreSQL for tests, as ``tests.servers.RedisServer``; one cluster, as many databases as tests ask for.

::

    with PostgresServer(folder) as server:
        server.url                    postgresql://wheel@127.0.0.1:<port>/wheel
        server.fresh()                the URL of a new, empty database
        server.kill(); server.start() SIGKILL of the postmaster; what was committed comes back

PostgreSQL refuses to run as root: then the folder and the process are the user's ``postgres``, which Debian's package
makes, or ``nobody``. The cluster that the package starts by itself is not used.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import psycopg

from tests.servers import PATIENCE_S, absent, free_port, wait_until

USER = "wheel"


def binaries() -> Path | None:
    """The folder of initdb and postgres: Debian keeps them off the path; the newest version counts."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "64MB",
            **options,
        }
        self.port = 0
        self._data: Path | None = None
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> PostgresServer:
        place = binaries()
        if place is None:
            absent("postgresql")
        if self._data is None:
            self._data = self._make(place)
        self.port = self.port or free_port()
        options = [f"-c{name}={value}" for name, value in {**self.options, "port": str(self.port)}.items()]
        command = [place / "postgres", "-D", self._data, *options]
        for _ in range(20):  # a child of one that was killed may still be about to notice
            with self._log().open("ab") as log:
                self._process = process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user())
            wait_until(lambda process=process: process.poll() is not None or self._answers(), "postgres answers")  # type: ignore[misc]
            if process.poll() is None:
                return self
        raise AssertionError(f"postgres did not start; its log:\n{self.log()}")

    def _make(self, place: Path) -> Path:
        """A cluster, in a folder that its user may enter; pytest's own folders are for root alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = Path(tempfile.mkdtemp(prefix="wheel-postgres-"))
        if os.geteuid() == 0:
            user = _other_user()
            os.chown(data, user.pw_uid, user.pw_gid)
        command = [place / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(command, capture_output=True, text=True, **self._as_user())
        assert made.returncode == 0, made.stderr
        return data

    @staticmethod
    def _as_user() -> dict[str, Any]:
        if os.geteuid() != 0:
            return {"cwd": "/"}
        user = _other_user()
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL; its children end by themselves when they notice."""
        if self._process is None:
            return
        children = psutil.Process(self._process.pid).children()
        self._process.kill()
        self._process.wait(PATIENCE_S)
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        assert not alive, "children of postgres did not end"
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> PostgresServer:
        self.start()
        self.run(f"CREATE DATABASE {USER}", database="postgres")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._url(USER)

    def _url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def fresh(self) -> str:
        name = f"wheel_{next(self._names)}"
        self.run(f"CREATE DATABASE {name}", database="postgres")
        return self._url(name)

    def run(self, statement: str, database: str = USER) -> list[tuple[Any, ...]]:
        """One statement of one's own, in autocommit; its rows, if it has some."""
        with psycopg.connect(self._url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def log(self) -> str:
        return self._log().read_text(errors="replace")

    def _log(self) -> Path:
        return self.folder / "postgres.log"


def _other_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
