"""The site as processes of its own: its commands, a scheduler and a web server, on a database and a Redis."""

import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.kit import warm
from tests.kit.patience import wait_until
from tests.kit.processes import ROOT, Process, python, run
from tests.kit.servers import free_port


def environment(folder: Path, database: str = "", **more: str) -> dict[str, str]:
    """The processes of a site; ``database`` is a URL, and has the wheel's tables too unless ``SITE_STORE`` is given."""
    found = {"SITE_FOLDER": str(folder), "SITE_STORE": "django://default", "PYTHONPATH": str(ROOT)}
    found |= {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "COLUMNS": "200"}
    if database.startswith("postgresql"):
        found["SITE_DATABASE"] = database
    return {**found, **more}


def manage(
    folder: Path, database: str, *arguments: str, cold: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    return run(ROOT, environment(folder, database, **more), "-W", "error", "-m", "django", *arguments, cold=cold)


def migrated(folder: Path, database: str, **more: str) -> str:
    done = manage(folder, database, "migrate", "--verbosity", "0", **more)
    assert done.returncode == 0, done.stderr
    return database


class RunningSite:
    def __init__(self, folder: Path, database: str, broker: str, **more: str) -> None:
        self.folder = folder
        self.environment = environment(folder, database, SITE_BROKER=broker, **more)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: dict[str, Process] = {}

    def start(self, name: str, *arguments: str) -> Process:
        log = self.folder / f"{name}.log"
        self._processes[name] = python(log, "-m", *arguments, kind=warm.SITE, environment=self.environment)
        return self._processes[name]

    def beat(self) -> Process:
        return self.start("beat", "celery", "-A", "tests.kit.site", "beat", "--pidfile", "", "-l", "INFO")

    def web(self) -> None:
        self.start("web", "django", "runserver", "--noreload", "--insecure", f"127.0.0.1:{self.port}")
        wait_until(self._answers, "the web server answers")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def __getitem__(self, name: str) -> Process:
        return self._processes[name]

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
