"""The wheel page in a browser, while tasks flow through a real wheel."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import VIEWER, BrowsedSite, log_in, open_page
from tests.kit.patience import patience, wait_until

WHEEL = "/admin/django_wheel/wheel/"
HOURS_S = 7_200


@pytest.fixture(scope="module", autouse=True)
def later(site: BrowsedSite, store: SqlStore) -> None:
    """Send 40 tasks that are due in two hours."""
    for n in range(40):
        site.app.send_task("site.later", (n,), countdown=HOURS_S + n)
    wait_until(lambda: pending(store) == 40, "the tasks are accepted")


def pending(store: SqlStore) -> int:
    return sum(store.pending(0).values())


def refreshed(page: Page) -> int:
    """Return the count on the page after its next refresh."""
    with page.expect_response(re.compile(r"/wheel/live/")) as fetched:
        pass
    body = fetched.value.text()
    found = re.search(r'data-count="(\d+)"', body)
    assert found, body
    expect(page.locator("#wheel-pending-count")).to_have_attribute("data-count", re.compile(r"\d+"))
    return int(found[1])


def test_counts_on_the_page_are_the_stores_while_tasks_flow(page: Page, site: BrowsedSite, store: SqlStore) -> None:
    open_page(page, WHEEL)
    for n in range(600):
        site.app.send_task("site.soon", (n,), countdown=8 + n / 60)
    wait_until(lambda: pending(store) == 640, "the tasks are accepted")
    seen = []
    while True:
        before = pending(store)
        count = refreshed(page)
        assert pending(store) <= count <= before
        seen.append(count)
        if count == 40:
            break
    assert len(set(seen)) > 3, "tasks were to be dispatched while the page was open"
    assert site.redis.client().llen("celery") == 600

    def levels() -> int:
        return sum(int(str(one.get_attribute("data-pending"))) for one in page.locator(".wheel-level").all())

    # A task that is due in two hours is beyond the window, in the store only.
    wait_until(
        lambda: (levels(), page.locator("#wheel-beyond").get_attribute("data-count")) == (0, "40"),
        "the levels are empty",
    )
    assert page.locator("#wheel-lost").is_hidden()
    assert int(str(page.locator("#wheel-age").get_attribute("data-age"))) < 2_000


def test_a_click_leads_from_a_bar_to_its_tasks(page: Page) -> None:
    open_page(page, WHEEL)
    page.locator(".wheel-strip a").last.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/pending/\?shard=0&from=\d+&to=\d+"))
    expect(page.locator("#wheel-pending tbody tr").first).to_contain_text("site.later")
    page.locator("#wheel-pending tbody a").first.click()
    expect(page.locator(".wheel-facts")).to_contain_text("pending")


def test_open_details_stay_open_when_the_page_refreshes(page: Page) -> None:
    open_page(page, WHEEL)
    page.locator("#ahead summary").click()
    refreshed(page)
    refreshed(page)
    expect(page.locator("#ahead table")).to_be_visible()
    assert page.locator("#ahead tbody tr").count() >= 1


def test_light_and_dark_follow_the_admins_theme(browser: Browser, site: BrowsedSite) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        context = browser.new_context(base_url=site.url, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        log_in(page, VIEWER)
        open_page(page, WHEEL)
        strip = page.locator(".wheel-strip").first
        colours.add(strip.evaluate("one => getComputedStyle(one).backgroundColor"))
        context.close()
    assert len(colours) == 2


def test_without_a_script_the_page_is_complete(browser: Browser, site: BrowsedSite) -> None:
    context = browser.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    log_in(page, VIEWER)
    open_page(page, WHEEL)
    expect(page.locator("#wheel-pending-count")).to_contain_text("40")
    context.close()


def test_the_page_reports_a_lost_holder_and_a_lost_server(page: Page, site: BrowsedSite) -> None:
    open_page(page, WHEEL)
    site["beat"].kill()
    expect(page.locator("#wheel-live .errornote")).to_contain_text("last sign of life", timeout=patience(15_000))
    site.beat()
    expect(page.locator("#wheel-live .errornote")).to_have_count(0, timeout=patience(20_000))
    site["web"].kill()
    expect(page.locator("#wheel-lost")).to_be_visible(timeout=patience(15_000))
    site.web()
    expect(page.locator("#wheel-lost")).to_be_hidden(timeout=patience(30_000))


def test_the_keyboard_focus_is_kept_and_the_page_can_be_paused(page: Page) -> None:
    open_page(page, WHEEL)
    refreshed(page)
    page.locator("#wheel-pace button").focus()
    page.keyboard.press("Tab")  # into the live part
    state = page.locator("#wheel-pace span")
    expect(state).to_have_text("paused while the keyboard focus is inside")
    assert page.evaluate("document.getElementById('wheel-live').contains(document.activeElement)")
    page.keyboard.press("Shift+Tab")
    refreshed(page)
    page.keyboard.press("Enter")
    expect(state).to_have_text("paused")
    expect(page.locator("#wheel-pace button")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    refreshed(page)
    expect(state).to_have_text("up to date")


@pytest.mark.parametrize(
    "address",
    ["wheel/", "wheel/gate/", "pending/", "history/", "rejected/", "batch/", "shard/", "schedule/", "schedule/edit/"],
)
def test_a_narrow_screen_needs_no_sideways_scrolling(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    open_page(page, f"/admin/django_wheel/{address}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
