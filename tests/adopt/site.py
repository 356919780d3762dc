"""A throw-away site of a project, the two tasks of it that wait, and its own tests with the wheel and without it.

::

    with Site("pretix", folder) as site:    configured and migrated; its Redis, its worker, beat with the wheel and a
        app = site.app()                    server that is too busy for it are up
        delayed(site, app)                  a task of the project that the project itself delays
        retried(site, app)                  a task of the project that tries again, since the server is busy
        compare(site, folder)               its own tests; both runs have its settings for tests, one also the two lines

1. The task is pending in the wheel's store, while no queue of Redis has it, and no worker holds it for later.
2. It runs once, and not before its eta.
3. In the end the wheel's history has it as dispatched.
"""

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree

import redis

from tests.adopt.busy import BusyServer
from tests.adopt.projects import PROJECTS, Place
from tests.kit.patience import patience, wait_until
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


@dataclass(frozen=True, slots=True)
class Trial:
    """How a task waited."""

    task: str
    late_ms: int  #: between its eta and its run in the worker


def queued(app: Any) -> list[str]:
    found = []
    with redis.Redis.from_url(app.conf.broker_url) as client:
        for key in client.scan_iter(_type="list"):
            found += [json.loads(raw)["headers"]["id"] for raw in client.lrange(key, 0, -1)]
    return found


def held(app: Any) -> list[str]:
    """Return the ids of the tasks that workers hold for later, as Celery's own ETA does."""
    answers = app.control.inspect(timeout=patience(2)).scheduled() or {}
    workers = {name: tasks for name, tasks in answers.items() if not name.startswith("wheel@")}
    assert workers, "no worker has answered"
    return [one["request"]["id"] for tasks in workers.values() for one in tasks]


def runs(site: Site, task: str, retries: int) -> list[dict[str, Any]]:
    return [one for one in site.notes() if (one["task"], one["retries"]) == (task, retries)]


def watch(site: Site, app: Any, task: str, retries: int) -> Trial:
    """Watch the pending task of that name until it has run: its first try, or the one after so many retries."""
    since_ms = 0
    if retries:
        wait_until(lambda: runs(site, task, retries - 1), f"{task} has been tried {retries} times", 60)
        since_ms = runs(site, task, retries - 1)[0]["at_ms"]

    found: list[Any] = []

    def waiting() -> list[Any]:
        found[:] = [one for one in app.wheel.pending(task=task).items if one.eta_ms > since_ms]
        return found

    wait_until(waiting, f"{task} is pending on the wheel")
    [waits] = found
    assert waits.task_id not in queued(app), f"{task} is in a queue while it is pending"
    assert waits.task_id not in held(app), f"a worker holds {task}"

    def done() -> list[dict[str, Any]]:
        return [one for one in runs(site, task, retries) if one["id"] == waits.task_id]

    wait_until(done, f"{task} has run", 60)
    wait_until(lambda: app.wheel.get(waits.task_id).state == "dispatched", f"{task} is dispatched in the history")
    [run] = done()
    assert run["at_ms"] >= waits.eta_ms, f"{task} ran {waits.eta_ms - run['at_ms']} ms early"
    return Trial(task, run["at_ms"] - waits.eta_ms)


def delayed(site: Site, app: Any) -> Trial:
    site.project.start(app)
    return watch(site, app, site.project.waits, 0)


def retried(site: Site, app: Any) -> Trial:
    site.project.fail(app)
    trial = watch(site, app, site.project.retries, site.project.refused)
    wait_until(lambda: site.busy.accepted, "the server that was busy has accepted the last try")
    return trial


def once(site: Site) -> None:
    """Assert that nothing ran twice: at the end, when a second copy has had its time."""
    assert site.busy.accepted == 1
    tries = [(one["id"], one["retries"]) for one in site.notes()]
    assert len(set(tries)) == len(tries), f"a task ran twice: {tries}"


#: The settings of both runs.
MODULES = {"plain": "", "wheel": "adopted_tests"}


def folder_of_tests(site: Site, name: str, sdists: Path) -> Path:
    """Return the folder in which the project's tests are: its package, or its sdist, unpacked."""
    if site.project.packaged:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent
    (sdist,) = sdists.glob(f"{name}-*.tar.gz")
    shutil.unpack_archive(sdist, site.folder / "sdist")
    (unpacked,) = (site.folder / "sdist").iterdir()
    if (unpacked / "src" / name).exists():  # the installed package is the one under test
        (unpacked / "src" / name).rename(unpacked / "src" / f"{name}_of_the_sdist")
    return unpacked


def outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own file
        tags = [one.tag for one in case if one.tag in {"failure", "error", "skipped"}]
        found[f"{case.get('classname')}::{case.get('name')}"] = tags[0] if tags else "passed"
    return found


def run_tests(site: Site, folder: Path, kind: str) -> dict[str, str]:
    report = site.folder / f"{kind}.xml"
    settings = MODULES[kind] or site.project.suite
    start = folder / "src" if (folder / "src").exists() else site.root
    arguments = ["-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:sugar", "-W", "default"]
    process = Process(
        [sys.executable, *arguments, f"--ds={settings}", f"--junitxml={report}", "--rootdir", str(start)]
        + [str(folder / path) for path in site.project.tests],
        site.folder / f"tests-{kind}.log",
        folder=start,
        environment=site.environment(settings),
    )
    process.end(PREPARE_S)
    assert report.exists(), process.said()[-3000:]
    return outcomes(report)


def compare(site: Site, folder: Path) -> dict[str, object]:
    module = site.root / f"{MODULES['wheel']}.py"
    module.write_text(f"from {site.project.suite} import *\n\n{site.project.lines}", encoding="utf-8")
    with_wheel, without = run_tests(site, folder, "wheel"), run_tests(site, folder, "plain")
    assert without, "the project's tests were not found"
    return {
        "with": dict(Counter(with_wheel.values())),
        "without": dict(Counter(without.values())),
        "differ": sorted(one for one in with_wheel | without if with_wheel.get(one) != without.get(one)),
    }
