"""The running site: Redis, PostgreSQL, beat, a web server, and a Chromium of the system that shows its pages."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from celery_wheel import Celery
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import patience, wait_until
from tests.kit.servers import absent
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.site.running import RunningSite, manage, migrated

OPERATOR, VIEWER, PASSWORD = "operator", "viewer", "of tests"
PERMISSIONS = {
    OPERATOR: ("operate_wheel", "manage_schedules", "view_payload"),
    VIEWER: ("view_wheel", "view_payload"),
}
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'"
#: The width of a narrow screen in pixels.
NARROW = 360

Visit = Callable[..., Page]


class BrowsedSite(RunningSite):
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
        site = BrowsedSite(tmp_path_factory.mktemp("site"), redis, postgres.new_database(stays=True))
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


def open_page(page: Page, path: str) -> None:
    """Open a page of the wheel, anew where the store was too busy to answer in the time that a page gives it."""

    def opened() -> bool:
        response = page.goto(path)
        return response is not None and response.status != HTTPStatus.SERVICE_UNAVAILABLE

    wait_until(opened, f"the store answers for {path}")


@pytest.fixture
def visit(browser: Browser, site: BrowsedSite) -> Iterator[Visit]:
    """Return a function that opens a window of its own, logged in; more options are those of Playwright's context."""
    with ExitStack() as windows:

        def window(name: str = OPERATOR, **options: Any) -> Page:
            context = browser.new_context(**{"base_url": site.url, **options})
            windows.callback(context.close)
            page = context.new_page()
            page.goto("/admin/")
            page.fill("input[name=username]", name)
            page.fill("input[name=password]", PASSWORD)
            page.locator("[type=submit]").first.click()  # an input, or under other themes a button
            page.wait_for_url(lambda url: "/login/" not in url, timeout=patience() * 1_000)
            return page

        yield window


@pytest.fixture
def plain(visit: Visit) -> Page:
    return visit(java_script_enabled=False, viewport={"width": NARROW, "height": 740})


@pytest.fixture
def page(visit: Visit) -> Iterator[Page]:
    """Yield a page logged in as an operator; an error in its console fails the test."""
    page = visit()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []


def width(page: Page) -> int:
    """Return the width of a page in pixels, with what a reader has to scroll to."""
    found: int = page.evaluate("document.documentElement.scrollWidth")
    return found


def check_rules(page: Page) -> None:
    found = Axe().run(page, context="#content-main")
    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"


def be_strict(page: Page, addresses: str) -> list[str]:
    """Serve the addresses with a policy of contents that allows only files of the site; returns what it refuses."""
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if "Content Security" in message.text else None)

    def strict(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": POLICY})

    page.route(re.compile(addresses), strict)
    return refused
