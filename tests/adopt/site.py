"""A throw-away site of a project: its files, its Redis, its worker, beat with the wheel, and a server that is busy.

::

    with Site("pretix", folder) as site:        configured and migrated; the servers, worker and beat are up
        trial = trials(site)                    see tests.adopt.trial
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from tests.adopt.busy import BusyServer
from tests.adopt.projects import PROJECTS, Place
from tests.kit.processes import ROOT, Process
from tests.kit.servers.redis import RedisServer

#: Migrations of a large project on a slow disk.
PREPARE_S = 900.0
#: A worker imports the whole project.
START_S = 120.0


class Site:
    """A site of a project in a folder that does not exist yet."""

    def __init__(self, name: str, folder: Path) -> None:
        self.project = PROJECTS[name]
        self.folder = folder
        folder.mkdir(parents=True)
        self._notes = folder / "notes"
        self._redis = RedisServer(folder / "redis")
        self.busy = BusyServer(self.project.busy, self.project.refused)
        self._processes: list[Process] = []

    @property
    def root(self) -> Path:
        return self.folder / self.project.root

    def environment(self, settings: str | None = None, *more: Path) -> dict[str, str]:
        own = {key: value.format(folder=self.folder) for key, value in (self.project.environment or {}).items()}
        return {
            **own,
            "DJANGO_SETTINGS_MODULE": self.project.settings if settings is None else settings,
            "PYTHONPATH": os.pathsep.join(map(str, (self.root, *more))),
            "ADOPT_NOTES": str(self._notes),
            "C_FORCE_ROOT": "1",
        }

    def python(self, name: str, *arguments: str, settings: str | None = None) -> Process:
        process = Process(
            [sys.executable, *arguments],
            self.folder / f"{name}.log",
            folder=self.root if self.root.exists() else self.folder,
            environment=self.environment(settings, ROOT),
        )
        self._processes.append(process)
        return process

    def run(self, name: str, *arguments: str, settings: str | None = None) -> None:
        code, said = self.python(name, *arguments, settings=settings).end(PREPARE_S)
        assert code == 0, f"{' '.join(arguments)} failed:\n{said[-3000:]}"

    def celery(self, name: str, *arguments: str, ready: str) -> None:
        process = self.python(name, "-m", "celery", "-A", self.project.app, name, "-l", "INFO", *arguments)
        process.wait_for(ready, seconds=START_S)

    def __enter__(self) -> Self:
        try:
            self._redis.start()
            self.busy.start()
            for number, command in enumerate(self.project.commands):
                self.run(f"command-{number}", *command, settings="")
            for path, text in self.project.files(Place(self.folder, self._redis.url, self.busy.port)).items():
                (self.folder / path).write_text(text, encoding="utf-8")
            self.run("migrate", "-m", "django", "migrate", "--run-syncdb", "--verbosity", "0")
            self.run("check", "-m", "django", "check")
            self.celery("worker", "-P", "solo", "-I", "tests.adopt.noting", *self.project.worker, ready=" ready.")
            self.celery("beat", "--pidfile", "", ready="at epoch")
        except BaseException:
            self.close()
            raise
        return self

    def app(self) -> Any:
        """Import the project's app into this process, which sends tasks as its web server does."""
        environment = self.environment(None, ROOT)
        os.environ.update(environment)
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        os.chdir(self.root)
        import django  # the settings are known from here on

        django.setup()
        app = __import__(self.project.app, fromlist=["app"]).app
        app.loader.import_default_modules()
        app.finalize()
        return app

    def notes(self) -> list[dict[str, Any]]:
        """Return how each task ran; the last line may be incomplete."""
        text = self._notes.read_text(encoding="utf-8") if self._notes.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def errors(self) -> list[str]:
        text = (self.folder / "beat.log").read_text(encoding="utf-8")
        return [line for line in text.splitlines() if "ERROR" in line or "Traceback" in line]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._redis.kill()
        self.busy.close()

    def __exit__(self, *_: object) -> None:
        self.close()
