"""The pages under other themes of the admin, and in a language that is written from right to left."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import BrowsedSite, Visit, open_page, width
from tests.kit.patience import wait_until
from tests.kit.site.running import RunningSite

pytestmark = pytest.mark.slow

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
    for n in range(TASKS):
        site.app.send_task("site.later", (n,), countdown=3_600 + n)
    wait_until(lambda: sum(store.pending(0).values()) == TASKS, "the tasks are accepted")


@pytest.fixture(scope="module")
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, site: BrowsedSite
) -> Iterator[RunningSite]:
    folder = tmp_path_factory.mktemp(request.param)
    variables = {**VARIANTS[request.param], "SITE_RESULTS": str(site.results)}
    found = RunningSite(folder, site.database, site.redis.url, **variables)
    found.web()
    yield found
    found.close()


@pytest.mark.parametrize("screen", [1_280, 390])
@pytest.mark.parametrize("variant", VARIANTS, indirect=True)
def test_the_pages_are_whole(variant: RunningSite, visit: Visit, screen: int) -> None:
    page = visit(base_url=variant.url, viewport={"width": screen, "height": 900})
    open_page(page, f"{ADMIN}/wheel/")
    expect(page.locator(".wheel-rings")).to_be_visible()
    drawn(page)
    assert width(page) <= screen
    open_page(page, f"{ADMIN}/pending/")
    expect(page.locator("#wheel-pending tbody tr")).to_have_count(TASKS)
    assert width(page) <= screen
    page.locator("#wheel-pending tbody a").first.click()
    expect(page.locator(".wheel-events")).to_be_visible()
    assert width(page) <= screen


def drawn(page: Page) -> None:
    """Check that a chart has a colour under each theme, and its time from left to right in each language."""
    # A poll may replace the chart at any moment: ``expect`` looks again at the new one.
    expect(page.locator(".wheel-bars").first).to_have_css("direction", "ltr")
    colours = {
        page.evaluate(f"getComputedStyle(document.querySelector('.wheel')).getPropertyValue('{name}')").strip()
        for name in ("--body-bg", "--body-fg", "--link-fg", "--error-fg", "--hairline-color")
    }
    assert len(colours) == 5
    assert "" not in colours


@pytest.mark.parametrize("variant", ["unfold", "jazzmin"], indirect=True)
def test_a_dark_theme_has_light_texts(variant: RunningSite, store: SqlStore, visit: Visit) -> None:
    page = visit(base_url=variant.url, color_scheme="dark")
    page.add_init_script("localStorage.setItem('jazzmin-theme-mode', 'dark')")
    open_page(page, f"{ADMIN}/wheel/")
    wait_until(lambda: brightness(page) > 150, "the texts are light")


def brightness(page: Page) -> float:
    """Return the mean of red, green and blue of a text of the page, up to 255."""
    name = "getComputedStyle(document.querySelector('.wheel')).getPropertyValue('--body-fg')"
    script = f"(e => {{ e.style.color = {name}; document.body.append(e); return getComputedStyle(e).color }})"
    found = page.evaluate(f"{script}(document.createElement('i'))")
    return sum(int(part) for part in re.findall(r"\d+", found)[:3]) / 3
