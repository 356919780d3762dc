"""The site as it runs: Redis, PostgreSQL, beat, a web server, and a Chromium of the system that looks at it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from celery_wheel import Celery
from celery_wheel.store import open_store
from celery_wheel.store.sql import SqlStore
from tests.postgres import PostgresServer
from tests.servers import PATIENCE_S, RedisServer, absent, free_port, wait_until

ROOT = Path(__file__).parents[2]

OPERATOR, VIEWER, PASSWORD = "operator", "viewer", "of tests"


class Site:
    """The project tests.site with its wheel in Django's own PostgreSQL database, as its processes."""

    def __init__(self, folder: Path, redis: RedisServer, database: str) -> None:
        self.folder = folder
        self.redis = redis
        self.database = database
        self.results = folder / "results"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.site.settings",
            "SITE_FOLDER": str(folder),
            "SITE_DATABASE": database,
            "SITE_STORE": "django://default",
            "SITE_BROKER": redis.url,
            "SITE_RESULTS": str(self.results),
        }
        self.app = Celery("producer", broker=redis.url, set_as_current=False)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def manage(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def set_up(self) -> None:
        self.manage("migrate", "--verbosity", "0")
        users = f"""
from django.contrib.auth.models import Permission, User
for name, codename in (({OPERATOR!r}, "operate_wheel"), ({VIEWER!r}, "view_wheel")):
    user = User.objects.create_user(name, password={PASSWORD!r}, is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename=codename))
"""
        self.manage("shell", "-c", users)

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", *arguments]
            self._processes[name] = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    def start_beat(self) -> None:
        self.start("beat", "celery", "-A", "tests.site", "beat", "--pidfile", "", "-l", "INFO")

    def start_web(self) -> None:
        self.start("web", "django", "runserver", "--noreload", "--insecure", f"127.0.0.1:{self.port}")
        wait_until(self._answers, "the web server answers")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        self.app.close()

    def store(self) -> SqlStore:
        return open_store(self.database, shards=None, create=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path_factory.mktemp("redis")))
        postgres = stack.enter_context(PostgresServer())
        site = Site(tmp_path_factory.mktemp("site"), redis, postgres.new_database())
        stack.callback(site.close)
        site.set_up()
        site.start_beat()
        site.start_web()
        yield site


@pytest.fixture(scope="module")
def store(site: Site) -> Iterator[SqlStore]:
    found: list[SqlStore] = []

    def opened() -> bool:
        with suppress(OSError):  # beat begins it
            found.append(site.store())
        return bool(found)

    wait_until(opened, "beat begins the store")
    yield found[0]
    found[0].close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended with its module: as long as Playwright lives, its event loop does, and Django's ORM refuses to work."""
    chromium = shutil.which("chromium")
    if chromium is None:
        absent("Chromium")
    with sync_playwright() as playwright:
        # As root there is no sandbox; it opens nothing but our own pages.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def log_in(page: Page, name: str = OPERATOR) -> None:
    page.goto("/admin/")
    page.fill("input[name=username]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("input[type=submit]")


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """Logged in as an operator; a page that logs an error to its console fails the test."""
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    log_in(page)
    yield page
    context.close()
    assert errors == []
