"""The running site: Redis, PostgreSQL, beat, a web server, and a Chromium of the system that shows its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from celery_wheel import Celery
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import patience, wait_until
from tests.kit.servers import absent
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.site.running import RunningSite, manage, migrated

OPERATOR, VIEWER, OBSERVER, PLANNER, PASSWORD = "operator", "viewer", "observer", "planner", "of tests"
PERMISSIONS = {
    OPERATOR: ("operate_wheel", "manage_schedules", "view_payload"),
    VIEWER: ("view_wheel", "view_payload"),
    OBSERVER: ("view_wheel",),
    PLANNER: ("manage_schedules",),
}


class BrowsedSite(RunningSite):
    """Run the site with its wheel in Django's own PostgreSQL database, with users and a producer of tasks."""

    def __init__(self, folder: Path, redis: RedisServer, database: str) -> None:
        self.redis = redis
        self.database = database
        self.results = folder / "results"
        super().__init__(folder, database, redis.url, SITE_RESULTS=str(self.results))
        self.app = Celery("producer", broker=redis.url, set_as_current=False)
        self.app.conf.wheel_store = database

    def set_up(self) -> None:
        migrated(self.folder, self.database)
        users = f"""
from django.contrib.auth.models import Permission, User
for name, codenames in {PERMISSIONS!r}.items():
    user = User.objects.create_user(name, password={PASSWORD!r}, is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
"""
        done = manage(self.folder, self.database, "shell", "-c", users)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        super().close()
        self.app.wheel.close()
        self.app.close()

    def store(self) -> SqlStore:
        return open_store(self.database, shards=None, create=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[BrowsedSite]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        site = BrowsedSite(tmp_path_factory.mktemp("site"), redis, postgres.new_database())
        site.set_up()
        site.beat()
        site.web()
        yield site
        site.close()


@pytest.fixture(scope="module")
def store(site: BrowsedSite) -> Iterator[SqlStore]:
    found: list[SqlStore] = []

    def opened() -> bool:
        with suppress(OSError):  # beat makes it
            found.append(site.store())
        return bool(found)

    wait_until(opened, "beat makes the store")
    yield found[0]
    found[0].close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser that ends with its module: while Playwright's event loop runs, Django's ORM refuses to work."""
    chromium = shutil.which("chromium")
    if chromium is None:
        absent("Chromium")
    expect.set_options(timeout=patience() * 1_000)  # by default five seconds, whatever the machine
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; it opens only our own pages.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def log_in(page: Page, name: str = OPERATOR) -> None:
    page.goto("/admin/")
    page.fill("input[name=username]", name)
    page.fill("input[name=password]", PASSWORD)
    page.locator("[type=submit]").first.click()  # an input, or under other themes a button
    page.wait_for_url(lambda url: "/login/" not in url, timeout=patience() * 1_000)


def open_page(page: Page, path: str) -> None:
    """Open a page of the wheel, anew where the store was too busy to answer in the time that a page gives it."""

    def opened() -> bool:
        response = page.goto(path)
        return response is not None and response.status != HTTPStatus.SERVICE_UNAVAILABLE

    wait_until(opened, f"the store answers for {path}")


@pytest.fixture
def plain(browser: Browser, site: BrowsedSite) -> Iterator[Page]:
    """Yield a page on a narrow screen, without a script, logged in as an operator."""
    context = browser.new_context(base_url=site.url, java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    log_in(page)
    yield page
    context.close()


@pytest.fixture
def page(browser: Browser, site: BrowsedSite) -> Iterator[Page]:
    """Yield a page logged in as an operator; an error in its console fails the test."""
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    log_in(page)
    yield page
    context.close()
    assert errors == []
