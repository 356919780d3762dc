"""The page of a task and the lists in a browser: timeline, lateness chart, narrow screens, and the rules of axe."""

import re

import pytest
from playwright.sync_api import Page, expect

from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import NARROW, BrowsedSite, Visit, be_strict, check_rules, open_page, width
from tests.kit.job_results import RUN, hour, leave_forecast, leave_lateness
from tests.kit.patience import patience, wait_until

pytestmark = pytest.mark.slow

ADMIN = "/admin/django_wheel"
DISPATCHED, PENDING = 6, 4
PAGES = ["pending/", "history/", "rejected/", "settlement/", "lateness/", "lateness/?task=app.mail", "forecast/"]
#: Returns the tables that are wider than their page.
CUT_OFF = """[...document.querySelectorAll('.wheel-rows')]
    .filter((one) => one.scrollWidth > one.parentNode.clientWidth).map((one) => one.id)"""
#: Returns the labels of plots and rings that lie on a bar, a point or an arc.
COVERED = """[...document.querySelectorAll('svg')].flatMap((plot) => {
  const marks = [...plot.querySelectorAll('a rect:not(.wheel-target), a circle, .wheel-ring path')]
    .map((one) => one.getBoundingClientRect());
  return [...plot.querySelectorAll('text')].filter((label) => {
    const own = label.getBoundingClientRect();
    const beside = (one) => own.right <= one.left || one.right <= own.left;
    return !marks.every((one) => beside(one) || own.bottom <= one.top || one.bottom <= own.top);
  }).map((label) => label.textContent);
})"""
#: Pages that only the test of their width opens.
MORE_PAGES = ["wheel/", "wheel/gate/", "shard/", "schedule/", "schedule/edit/"]
#: The longest name that a page of results shows whole.
LONG = "app." + "without_an_end_" * 20


@pytest.fixture(scope="module", autouse=True)
def tasks(site: BrowsedSite, store: SqlStore) -> None:
    wait_until(lambda: store.state(0).holder is not None, "the shard has a holder")
    for number in range(DISPATCHED):
        site.app.send_task("site.soon", (number,), countdown=patience(5) + number / 10)
    for number in range(PENDING):
        site.app.send_task("site.later_with_a_rather_long_name_of_a_task", (number,), countdown=7_200 + number)
    wait_until(lambda: len(store.browse.dispatched(Criteria()).items) == DISPATCHED, "the tasks are dispatched")
    wait_until(lambda: sum(store.pending(0).values()) == PENDING, "the others are accepted")
    hours = [hour("app.mail", ago, p99_ms=ago * 100, objective_ms=50) for ago in range(60)]
    leave_lateness(site.results, *hours, hour(LONG))
    herd = {"second": RUN, "queue": "mail", "n": 500, "usual": 1.5, "limit": 99.0, "jitter_s": 5}
    leave_forecast(site.results, herds=[{**herd, "tasks": [{"n": 500, "task": LONG}]}])


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


@pytest.mark.parametrize("address", ["wheel/", "history/"])
def test_no_label_lies_on_a_bar_or_a_point(visit: Visit, address: str) -> None:
    for screen in (NARROW, 1280):
        page = visit(viewport={"width": screen, "height": 800})
        open_page(page, f"{ADMIN}/{address}")
        expect(page.locator("svg a").first).to_be_attached()
        assert page.evaluate(COVERED) == []


def test_the_newest_hour_of_the_heat_map_is_in_view_on_every_screen(visit: Visit) -> None:
    for screen in (NARROW, 1280):
        page = visit(viewport={"width": screen, "height": 800})
        open_page(page, f"{ADMIN}/lateness/")
        cells = page.locator("#wheel-heat tr").filter(has_text="app.mail").locator("td rect:not(.wheel-missed)")
        expect(cells).to_have_count(48)
        first, last = cells.first.bounding_box(), cells.last.bounding_box()
        assert first is not None
        assert last is not None
        assert 0 <= first["x"] < last["x"] < screen - last["width"]


@pytest.mark.parametrize("scripts", [False, True], ids=["without a script", "with scripts"])
@pytest.mark.parametrize("address", [*PAGES, *MORE_PAGES, "task"])
def test_a_page_fits_narrow_and_common_screens(visit: Visit, address: str, scripts: bool) -> None:
    """No page scrolls sideways, and no table is cut off."""
    for screen in (NARROW, 1280):
        page = visit(java_script_enabled=scripts, viewport={"width": screen, "height": 740})
        if address == "task":
            of_dispatched(page)
        else:
            open_page(page, f"{ADMIN}/{address}")
        assert width(page) <= screen
        assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_these_pages(visit: Visit, site: BrowsedSite, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    of_dispatched(page)
    task = page.url.removeprefix(f"{site.url}{ADMIN}/")
    for address in [*PAGES, task]:
        open_page(page, f"{ADMIN}/{address}")
        check_rules(page)


def test_a_strict_policy_of_contents_forbids_nothing_of_these_pages(page: Page) -> None:
    of_dispatched(page)
    task = page.url
    refused = be_strict(page, r"/django_wheel/(pending|history|lateness|forecast)/")
    for address in (task, f"{ADMIN}/history/", f"{ADMIN}/lateness/", f"{ADMIN}/forecast/"):
        open_page(page, address)
        expect(page.locator("#content-main svg").first).to_be_visible()
    assert refused == []
