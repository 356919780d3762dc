"""A private PostgreSQL.

::

    with PostgresServer() as server:
        server.url()                            postgresql://wheel@127.0.0.1:<port>/postgres
        server.new_database()                   the URL of an empty database; a few hundredths of a second
        server.drop_databases()                 all of those; tests/conftest.py calls it after each test
        server.sql("SELECT 1")                  as superuser, each statement by itself
    PostgresReplica(server)                 a streaming replica of it

PostgreSQL refuses to run as root, so for root it runs as the user ``postgres`` that its package makes. The folder is a
temporary one of its own, since those of pytest are closed to other users; one that is named stays, with its data. The
cluster that Debian's package makes and starts by itself is neither used nor touched.
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from tests.kit.processes import Process
from tests.kit.servers import Server, absent

_DEBIAN = Path("/usr/lib/postgresql")

USER = "wheel"

#: Losing power is not tested, and without fsync a test is several times faster. A benchmark wants ``fsync="on"``.
FAST = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "64MB"}

#: A file system in memory, and the bytes that have to be free in it: a copy of a database is 300 files.
MEMORY, MEMORY_FREE = Path("/dev/shm"), 2 * 2**30  # noqa: S108 - mkdtemp makes a folder of its own


def postgres_binaries() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``, of several versions the newest."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


def _user() -> dict[str, Any]:
    """Return the user that the server runs as, as arguments of ``subprocess``."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        absent("the user postgres, as whom PostgreSQL runs where tests run as root,")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer(Server):
    """One server; ``options`` are those of postgresql.conf."""

    #: Options of ``initdb``, and variables of the server's processes.
    initdb: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def __init__(self, folder: Path | None = None, **options: str) -> None:
        super().__init__(folder or Path())
        self._stays = folder is not None
        self.options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "logging_collector": "off",
            "max_connections": "200",
            "shared_buffers": "32MB",
            **FAST,
            **options,
        }
        self._databases = itertools.count(1)
        self._passing: list[str] = []  #: the names of databases that ``drop_databases`` removes

    def launch(self, port: int) -> Process:
        binaries = postgres_binaries()
        if binaries is None:
            absent("PostgreSQL")
        if not (self.folder / "data").exists() or self.folder == Path():
            self._initialise(binaries)
        command = [binaries / "postgres", "-D", self.folder / "data", "-p", str(port)]
        for name, value in self.options.items():
            command += ["-c", f"{name}={value}"]
        return Process(command, self.folder / "postgres.log", environment=self.environment, **_user())

    def _initialise(self, binaries: Path) -> None:
        if self._stays:
            self.folder.mkdir(parents=True)
        temporary = None if self._stays else tempfile.mkdtemp(prefix="wheel-postgres-", dir=self._place())
        folder, user = Path(temporary or self.folder), _user()
        if user:
            os.chown(folder, user["user"], user["group"])
        command = self._making(binaries, folder / "data")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **user)
        assert done.returncode == 0, done.stderr
        self.folder = folder

    def _making(self, binaries: Path, data: Path) -> list[str | Path]:
        """Return the command that makes the data."""
        command: list[str | Path] = [binaries / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8"]
        return [*command, "--locale=C", "--no-sync", "--no-instructions", *self.initdb]

    def _place(self) -> Path | None:
        """Return where the folder is to be; None where temporary files are."""
        is_fast = self.options["fsync"] == "off" and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_FREE
        return MEMORY if is_fast else None

    def answers(self, port: int) -> bool:
        try:
            psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:  # not listening yet, or still recovering
            return False
        return True

    def stop(self) -> None:
        """Stop the server: it ends the sessions, and rolls their transactions back."""
        if self._process is not None:
            self.resume()
            self._process.signal(signal.SIGINT)
            self._process.end()
            self._gone()

    def restart(self) -> None:
        self.stop()
        self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.folder != Path() and not self._stays:
            shutil.rmtree(self.folder)
            self.folder = Path()

    # -- use -------------------------------------------------------------------------------------

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "", *, stays: bool = False) -> str:
        """Return the URL of an empty database or of a copy; ``drop_databases`` leaves one that stays."""
        name = f"wheel_{next(self._databases)}"
        self.sql(f"CREATE DATABASE {name} {self._copying.format(template) if template else ''}")
        if not stays:
            self._passing.append(name)
        return self.url(name)

    def drop_databases(self) -> None:
        """Drop the databases made so far: the files of hundreds of them take minutes to remove at the end."""
        if self._passing:
            self.sql(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in self._passing))
            self._passing.clear()

    @cached_property
    def _copying(self) -> str:
        [(version,)] = self.sql("SHOW server_version_num")
        # A copy of files takes half of the time of a copy through the log, which is PostgreSQL's choice since 15.
        return "TEMPLATE {}" + (" STRATEGY file_copy" if int(version) >= 150_000 else "")

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements, each by itself; returns the last one's rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class PostgresReplica(PostgresServer):
    """A streaming replica of a server that runs, until ``promote``."""

    def __init__(self, primary: PostgresServer, **options: str) -> None:
        super().__init__(None, **options)
        self.primary = primary

    def _making(self, binaries: Path, data: Path) -> list[str | Path]:
        place = ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", USER]
        return [binaries / "pg_basebackup", "-D", data, *place, "-R", "-X", "stream", "-c", "fast", "--no-sync"]

    def promote(self) -> None:
        """Make it a primary; returns when it takes writes."""
        assert self.sql("SELECT pg_promote()") == [(True,)]
