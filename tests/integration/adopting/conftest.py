"""Projects of the kinds that people have before they adopt the wheel: files in a folder, and processes on them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.patience import wait_until
from tests.kit.processes import ROOT, Process, run

DJANGO_SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "of tests"
USE_TZ = True
INSTALLED_APPS = ["django_wheel"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "site.sqlite3"}}
"""

DJANGO_APP = """
import os
from pathlib import Path

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings"{namespace})


@app.task
def touch(path):
    Path(path).touch()
"""


@dataclass
class NewProject:
    """A project's folder, from which modules are imported whatever the working folder of its processes."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    running: list[Process] = field(default_factory=list)
    is_warm: bool = False  #: its commands are forks of ``tests.kit.warm``, where no test looks at their imports

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_django(self, settings: str, namespace: str | None = None) -> None:
        """Write the project ``shop``, whose app Celery's manual makes like this."""
        argument = f', namespace="{namespace}"' if namespace else ""
        self.write("shop/__init__.py", "from shop.celery import app as celery_app\n")
        self.write("shop/celery.py", DJANGO_APP.format(namespace=argument))
        self.write("shop/settings.py", DJANGO_SETTINGS + settings)
        self.variables["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        self.is_warm = True

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder}{os.pathsep}{ROOT}"
        return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **self.variables}

    def run(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run(folder or self.folder, self.environment, *arguments, cold=not self.is_warm)

    def output(self, *arguments: str, folder: Path | None = None) -> str:
        done = self.run(*arguments, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def status(self, app: str, *options: str, folder: Path | None = None) -> str:
        """Return the output of ``wheel status``, once a holder was seen: it holds a shard before it says so there."""
        said: list[subprocess.CompletedProcess[str]] = []

        def is_live() -> bool:
            said.append(self.run("-m", "celery", "-A", app, "wheel", "status", *options, folder=folder))
            return said[-1].returncode == 0

        wait_until(is_live, "every shard has a holder")
        return said[-1].stdout.rstrip("\n")

    def start(self, name: str, *arguments: str, folder: Path | None = None) -> Process:
        process = Process(
            [sys.executable, "-m", "celery", "-A", *arguments],
            self.folder / f"{name}.log",
            environment=self.environment,
            folder=folder or self.folder,
        )
        self.running.append(process)
        return process


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[Callable[..., NewProject]]:
    made: list[NewProject] = []

    def make(name: str = "site") -> NewProject:
        (tmp_path / name).mkdir()
        made.append(NewProject(tmp_path / name))
        return made[-1]

    yield make
    for project in made:
        for process in project.running:
            process.kill()


@pytest.fixture
def project(make_project: Callable[..., NewProject]) -> NewProject:
    return make_project()
