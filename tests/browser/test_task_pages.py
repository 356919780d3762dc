"""The page of a task and the lists in a browser: timeline, lateness chart, narrow screens, and the rules of axe."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import OPERATOR, BrowsedSite, log_in, open_page
from tests.kit.job_results import hour, leave_forecast, leave_lateness
from tests.kit.patience import patience, wait_until

ADMIN = "/admin/django_wheel"
DISPATCHED, PENDING = 6, 4
PAGES = ["pending/", "history/", "rejected/", "batch/", "lateness/", "lateness/?task=app.mail", "forecast/"]
#: Returns the tables that are wider than their page.
CUT_OFF = """[...document.querySelectorAll('.wheel-rows')]
    .filter((one) => one.scrollWidth > one.parentNode.clientWidth).map((one) => one.id)"""
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'"


@pytest.fixture(scope="module", autouse=True)
def tasks(site: BrowsedSite, store: SqlStore) -> None:
    """Send tasks that are due soon, after they are accepted, and others in two hours; and write results of the jobs."""
    wait_until(lambda: store.state(0).holder is not None, "the shard has a holder")
    for number in range(DISPATCHED):
        site.app.send_task("site.soon", (number,), countdown=patience(5) + number / 10)
    for number in range(PENDING):
        site.app.send_task("site.later_with_a_rather_long_name_of_a_task", (number,), countdown=7_200 + number)
    wait_until(lambda: len(store.browse.dispatched(Criteria()).items) == DISPATCHED, "the tasks are dispatched")
    wait_until(lambda: sum(store.pending(0).values()) == PENDING, "the others are accepted")
    leave_lateness(site.results, *[hour("app.mail", ago, p99_ms=ago * 100, objective_ms=50) for ago in range(60)])
    leave_forecast(site.results)


def of_dispatched(page: Page) -> None:
    open_page(page, f"{ADMIN}/history/")
    page.locator("#wheel-history tbody a").first.click()
    expect(page.locator(".wheel-events")).to_be_visible()  # the next step may look at the page at once


def test_a_tasks_page_tells_its_life_in_order(page: Page) -> None:
    of_dispatched(page)
    expect(page.locator("#content h1")).to_have_text(re.compile(r"^site\.soon [0-9a-f-]{36}$"))
    events = page.locator(".wheel-events strong")
    expect(events).to_have_text(["Sent by the producer", "Accepted: stored by the wheel", "Due", "Dispatched"])
    bars = page.locator(".wheel-life rect[class^=wheel-stage]").all()
    widths = [box["width"] for bar in bars if (box := bar.bounding_box())]
    background, *stages = widths
    assert sum(stages) == pytest.approx(background, abs=2)  # drawn to scale, without a gap
    expect(page.locator(".wheel-life .wheel-ticks text").first).to_be_visible()


def test_a_pending_tasks_page_shows_the_present_before_its_due_time(page: Page) -> None:
    open_page(page, f"{ADMIN}/pending/")
    page.locator("#wheel-pending tbody a").first.click()
    expect(page.locator(".wheel-events .wheel-ahead strong")).to_have_text("Due")
    present, due = (page.locator(f".wheel-life {one}").bounding_box() for one in (".wheel-now", ".wheel-event-due"))
    assert present is not None
    assert due is not None
    assert present["x"] < due["x"] - 50
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()


def test_headers_open_by_the_keyboard_and_have_no_nulls(page: Page) -> None:
    of_dispatched(page)
    headers = page.locator("summary").filter(has_text="Headers")
    headers.focus()
    page.keyboard.press("Enter")
    shown = page.locator("details[open] pre")
    expect(shown).to_contain_text('"task": "site.soon"')
    expect(shown).not_to_contain_text('": null')


def test_a_point_of_the_lateness_chart_leads_to_its_task(page: Page) -> None:
    open_page(page, f"{ADMIN}/history/")
    points = page.locator("#wheel-lateness circle")
    expect(points).to_have_count(DISPATCHED)
    expect(page.locator("#wheel-lateness figcaption")).to_contain_text("None is later than the objective of 30 s.")
    labels = page.locator("#wheel-lateness .wheel-grid text").all_text_contents()
    assert labels[0] == "0 ms"
    assert len(labels) >= 2
    points.last.click()
    expect(page).to_have_url(re.compile(r"/pending/\d+/$"))


def test_the_newest_hour_of_the_heat_map_is_in_view_on_every_screen(browser: Browser, site: BrowsedSite) -> None:
    for width in (360, 1280):
        context = browser.new_context(base_url=site.url, viewport={"width": width, "height": 800})
        page = context.new_page()
        log_in(page)
        open_page(page, f"{ADMIN}/lateness/")
        cells = page.locator("#wheel-heat td rect:not(.wheel-missed)")
        expect(cells).to_have_count(48)
        first, last = cells.first.bounding_box(), cells.last.bounding_box()
        assert first is not None
        assert last is not None
        assert 0 <= first["x"] < last["x"] < width - last["width"]
        context.close()


@pytest.mark.parametrize("address", [*PAGES, "task"])
def test_a_page_fits_narrow_and_common_screens_without_a_script(
    browser: Browser, site: BrowsedSite, address: str
) -> None:
    """No page scrolls sideways, and no table is cut off."""
    for width in (360, 1280):
        view = {"width": width, "height": 740}
        context = browser.new_context(base_url=site.url, java_script_enabled=False, viewport=view)  # type: ignore[arg-type]
        page = context.new_page()
        log_in(page, OPERATOR)
        if address == "task":
            of_dispatched(page)
        else:
            open_page(page, f"{ADMIN}/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_these_pages(browser: Browser, site: BrowsedSite, scheme: str) -> None:
    context = browser.new_context(base_url=site.url, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    log_in(page)
    of_dispatched(page)
    task = page.url.removeprefix(f"{site.url}{ADMIN}/")
    for address in [*PAGES, task]:
        open_page(page, f"{ADMIN}/{address}")
        found = Axe().run(page, context="#content-main")
        assert found.violations_count == 0, f"{address}: {found.generate_report()}"
    context.close()


def test_a_strict_policy_of_contents_forbids_nothing_of_these_pages(page: Page) -> None:
    of_dispatched(page)
    task = page.url
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if "Content Security" in message.text else None)

    def strict(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": POLICY})

    page.route(re.compile(r"/django_wheel/(pending|history|lateness|forecast)/"), strict)
    for address in (task, f"{ADMIN}/history/", f"{ADMIN}/lateness/", f"{ADMIN}/forecast/"):
        open_page(page, address)
        expect(page.locator("#content-main svg").first).to_be_visible()
    assert refused == []
