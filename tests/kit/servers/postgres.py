"""A private PostgreSQL.

::

    with PostgresServer() as server:
        server.url()                            postgresql://wheel@127.0.0.1:<port>/postgres
        server.new_database()                   the URL of an empty database; a few hundredths of a second
        server.sql("SELECT 1")                  as superuser, each statement by itself

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
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from tests.kit.processes import Process
from tests.kit.servers import Server, absent

_DEBIAN = Path("/usr/lib/postgresql")

USER = "wheel"

#: Losing power is not tested, and without fsync a test is several times faster. A benchmark wants ``fsync="on"``.
FAST = {"fsync": "off", "full_page_writes": "off"}


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

    def launch(self, port: int) -> Process:
        binaries = postgres_binaries()
        if binaries is None:
            absent("PostgreSQL")
        if not (self.folder / "data").exists() or self.folder == Path():
            self._initialise(binaries)
        command = [binaries / "postgres", "-D", self.folder / "data", "-p", str(port)]
        for name, value in self.options.items():
            command += ["-c", f"{name}={value}"]
        return Process(command, self.folder / "postgres.log", **_user())

    def _initialise(self, binaries: Path) -> None:
        if self._stays:
            self.folder.mkdir(parents=True)
        folder, user = self.folder if self._stays else Path(tempfile.mkdtemp(prefix="wheel-postgres-")), _user()
        if user:
            os.chown(folder, user["user"], user["group"])
        command = [binaries / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8"]
        command += ["--locale=C", "--no-sync", "--no-instructions"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **user)
        assert done.returncode == 0, done.stderr
        self.folder = folder

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

    def new_database(self, template: str = "") -> str:
        """Return the URL of an empty database, or of a copy of another one, which is removed with the server."""
        name = f"wheel_{next(self._databases)}"
        self.sql(f"CREATE DATABASE {name} {self._copying.format(template) if template else ''}")
        return self.url(name)

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
