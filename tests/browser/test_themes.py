"""The pages under other themes of the admin, and in a language that is written from right to left."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import BrowsedSite, log_in, open_page
from tests.kit.patience import wait_until
from tests.kit.site.running import RunningSite

ADMIN = "/admin/django_wheel"
TASKS = 5

#: Name of a variant → variables of its site.
VARIANTS = {
    "unfold": {"SITE_THEME": "unfold"},
    "jazzmin": {"SITE_THEME": "jazzmin"},
    "arabic": {"SITE_LANGUAGE": "ar"},
}


@pytest.fixture(scope="module", autouse=True)
def later(site: BrowsedSite, store: SqlStore) -> None:
    """Send some tasks that are due in an hour."""
    for n in range(TASKS):
        site.app.send_task("site.later", (n,), countdown=3_600 + n)
    wait_until(lambda: sum(store.pending(0).values()) == TASKS, "the tasks are accepted")


@pytest.fixture(scope="module")
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, site: BrowsedSite
) -> Iterator[RunningSite]:
    """Yield a second web server on the same database, of a variant."""
    folder = tmp_path_factory.mktemp(request.param)
    variables = {**VARIANTS[request.param], "SITE_RESULTS": str(site.results)}
    found = RunningSite(folder, site.database, site.redis.url, **variables)
    found.web()
    yield found
    found.close()


@pytest.mark.parametrize("width", [1_280, 390])
@pytest.mark.parametrize("variant", VARIANTS, indirect=True)
def test_the_pages_are_whole(variant: RunningSite, browser: Browser, width: int) -> None:
    context = browser.new_context(base_url=variant.url, viewport={"width": width, "height": 900})
    page = context.new_page()
    log_in(page)
    open_page(page, f"{ADMIN}/wheel/")
    expect(page.locator(".wheel-rings")).to_be_visible()
    drawn(page)
    fits(page)
    open_page(page, f"{ADMIN}/pending/")
    expect(page.locator("#wheel-pending tbody tr")).to_have_count(TASKS)
    fits(page)
    page.locator("#wheel-pending tbody a").first.click()
    expect(page.locator(".wheel-events")).to_be_visible()
    fits(page)
    context.close()


def fits(page: Page) -> None:
    """Check that no reader has to scroll sideways."""
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, page.url


def drawn(page: Page) -> None:
    """Check that a chart has a colour under each theme, and its time from left to right in each language."""
    # A poll may replace the chart at any moment: ``expect`` looks again at the new one.
    expect(page.locator(".wheel-plot").first).to_have_css("direction", "ltr")
    colours = {
        page.evaluate(f"getComputedStyle(document.querySelector('.wheel')).getPropertyValue('{name}')").strip()
        for name in ("--body-bg", "--body-fg", "--link-fg", "--error-fg", "--hairline-color")
    }
    assert len(colours) == 5
    assert "" not in colours


@pytest.mark.parametrize("variant", ["unfold", "jazzmin"], indirect=True)
def test_a_dark_theme_has_light_texts(variant: RunningSite, store: SqlStore, browser: Browser) -> None:
    context = browser.new_context(base_url=variant.url, color_scheme="dark")
    context.add_init_script("localStorage.setItem('jazzmin-theme-mode', 'dark')")
    page = context.new_page()
    log_in(page)
    open_page(page, f"{ADMIN}/wheel/")
    wait_until(lambda: brightness(page) > 150, "the texts are light")
    context.close()


def brightness(page: Page) -> float:
    """Return the mean of red, green and blue of a text of the page, up to 255."""
    name = "getComputedStyle(document.querySelector('.wheel')).getPropertyValue('--body-fg')"
    script = f"(e => {{ e.style.color = {name}; document.body.append(e); return getComputedStyle(e).color }})"
    found = page.evaluate(f"{script}(document.createElement('i'))")
    return sum(int(part) for part in re.findall(r"\d+", found)[:3]) / 3
