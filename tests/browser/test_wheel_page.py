"""The wheel page in a browser, while tasks flow through a real wheel."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, Response, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import VIEWER, BrowsedSite, Visit, be_strict, check_rules, open_page
from tests.kit.patience import patience, wait_until

WHEEL = "/admin/django_wheel/wheel/"
#: The ring of the level with the tasks of the next minutes; a turn of the level below takes half a second.
SLOW_RING = ".wheel-ring[data-interval='262144']"


@pytest.fixture(scope="module", autouse=True)
def later(site: BrowsedSite, store: SqlStore) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
    for n in range(40):
        site.app.send_task("site.later", (n,), eta=hour + timedelta(minutes=10, seconds=n))
    wait_until(lambda: pending(store) == 40, "the tasks are accepted")


def pending(store: SqlStore) -> int:
    return sum(store.pending(0).values())


def refreshed(page: Page) -> int:
    """Return the count on the page after its next refresh: one that begins after the call."""
    now_ms = time.time() * 1_000

    def is_next(response: Response) -> bool:
        return "/wheel/live/" in response.url and response.request.timing["startTime"] > now_ms

    with page.expect_response(is_next, timeout=patience() * 1_000) as fetched:
        pass
    body = fetched.value.text()
    found = re.search(r'id="wheel-pending-count" data-count="(\d+)"', body)
    if found is not None:
        return int(found[1])
    assert 'id="wheel-answers"' not in body, "a part without a change is left out, and no other"
    return int(str(page.locator("#wheel-pending-count").get_attribute("data-count")))


def drawn(page: Page, selector: str) -> Locator:
    found = page.locator(f"{selector} a")
    wait_until(lambda: found.count() > 0, f"{selector} has links")
    return found


@pytest.mark.slow
def test_counts_on_the_page_are_the_stores_while_tasks_flow(page: Page, site: BrowsedSite, store: SqlStore) -> None:
    open_page(page, WHEEL)
    first_s = patience(8)  # all are accepted before
    for n in range(600):
        site.app.send_task("site.soon", (n,), countdown=first_s + n * patience(1 / 40))
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
    expect(page.locator("#wheel-lost")).to_be_hidden()
    age = page.locator("#wheel-age")
    wait_until(lambda: int(str(age.get_attribute("data-age"))) < 2_000, "the holder was seen lately")


@pytest.mark.slow
def test_a_click_leads_from_a_bar_to_its_tasks(page: Page) -> None:
    open_page(page, WHEEL)
    bar = drawn(page, "#wheel-day").filter(has_text="40 pending, ").first
    bar.click()
    expect(page).to_have_url(re.compile(r"/pending/\?from=\d+&to=\d+"))
    expect(page.locator("#wheel-pending tbody tr").first).to_contain_text("site.later")
    page.locator("#wheel-pending tbody a").first.click()
    expect(page.locator(".wheel-headline")).to_contain_text("pending")


@pytest.mark.slow
def test_an_arc_of_the_wheel_names_its_bucket_and_opens_its_tasks(page: Page, site: BrowsedSite) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=90)  # of all three: they are in one bucket
    soon = [site.app.send_task("site.soon", (n,), eta=eta).id for n in range(3)]
    page.emulate_media(reduced_motion="reduce")  # a click waits for an element that stands still
    open_page(page, WHEEL)
    arc = drawn(page, SLOW_RING).first
    expect(arc.locator("title")).to_have_text(re.compile(r"^3 pending, .*\(level 1\)$"))
    arc.hover()
    expect(page.locator("#wheel-pace > span")).to_have_text("paused while the pointer is on a link")
    arc.click()
    expect(page).to_have_url(re.compile(r"/pending/\?from=\d+&to=\d+&shard=0$"))
    expect(page.locator("#wheel-pending tbody tr")).to_have_count(3)
    site.app.wheel.cancel(soon)


@pytest.mark.slow
def test_a_herd_is_named_and_opens_its_tasks(page: Page, site: BrowsedSite, store: SqlStore) -> None:
    before, eta = pending(store), datetime.now(UTC) + timedelta(hours=5)
    herd = [site.app.send_task("site.herd", (n,), eta=eta).id for n in range(250)]
    wait_until(lambda: pending(store) == before + 250, "the tasks are accepted")
    open_page(page, WHEEL)
    link = page.locator("#wheel-herds a")
    expect(link).to_have_count(1)
    expect(link).to_contain_text("250 tasks, ")
    expect(page.locator("#wheel-herds li")).to_contain_text("in 4 h")
    link.click()
    expect(page.locator("#wheel-pending tbody tr").first).to_contain_text("site.herd")
    site.app.wheel.cancel(herd)


@pytest.mark.slow
def test_a_pause_is_a_banner_until_it_is_resumed(page: Page) -> None:
    open_page(page, f"{WHEEL}gate/?verb=pause")
    page.select_option("select[name=scope]", "queue")
    page.fill("input[name=name]", "mail")
    page.fill("[name=reason]", "the provider asks for it")
    page.click(".wheel-form button[type=submit]")
    banner = page.locator(".wheel-banner li")
    expect(banner).to_contain_text("Paused: queue mail")
    expect(banner).to_contain_text("the provider asks for it")
    expect(page.locator(".wheel-changes li").first).to_contain_text("queue mail")
    banner.locator("a").click()
    page.click(".wheel-form button[type=submit]")
    expect(page.locator(".wheel-banner")).to_have_count(0)


@pytest.mark.slow
def test_open_details_stay_open_when_the_page_refreshes(page: Page) -> None:
    open_page(page, WHEEL)
    page.locator("#internals summary").click()
    page.mouse.move(0, 0)
    page.locator("#wheel-pace button").focus()
    refreshed(page)
    refreshed(page)
    expect(page.locator("#internals table")).to_be_visible()
    assert page.locator(".wheel-level").count() >= 1


@pytest.mark.slow
def test_every_drawing_has_a_table_for_the_keyboard(page: Page) -> None:
    open_page(page, WHEEL)
    page.get_by_text("Drawings as tables").click()
    refreshed(page)
    page.locator("#wheel-day tbody a").get_by_text("40", exact=True).press("Enter")
    expect(page.locator("#wheel-pending tbody tr").first).to_contain_text("site.later")


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_slow_ring_turns_unless_motion_is_unwanted(visit: Visit, site: BrowsedSite, motion: str) -> None:
    soon = site.app.send_task("site.soon", countdown=90)
    page = visit(VIEWER, reduced_motion=motion)
    open_page(page, WHEEL)
    drawn(page, SLOW_RING)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator(f"{SLOW_RING}[transform]")).to_have_count(1 if motion == "no-preference" else 0)
    site.app.wheel.cancel(soon)


@pytest.mark.slow
def test_light_and_dark_follow_the_admins_theme(visit: Visit) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = visit(VIEWER, color_scheme=scheme)
        open_page(page, WHEEL)
        colours.add(page.locator(".wheel-track").first.evaluate("one => getComputedStyle(one).stroke"))
    assert len(colours) == 2


@pytest.mark.slow
def test_without_a_script_the_page_is_complete(plain: Page) -> None:
    count = plain.locator("#wheel-pending-count")

    def is_shown() -> bool:
        open_page(plain, WHEEL)  # of the last second: another test may have cancelled its tasks a moment ago
        return count.get_attribute("data-count") == "40"

    wait_until(is_shown, "the page has the tasks")
    expect(count).to_contain_text("40")
    expect(plain.locator(".wheel-rings")).to_be_visible()
    expect(plain.locator("#wheel-pace")).to_be_hidden()
    drawn(plain, "#wheel-day").filter(has_text="40 pending, ").first.click()
    expect(plain.locator("#wheel-pending tbody tr").first).to_contain_text("site.later")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["", "?tables=1"])
def test_axe_finds_nothing(visit: Visit, scheme: str, address: str) -> None:
    page = visit(color_scheme=scheme)
    open_page(page, f"{WHEEL}{address}")
    check_rules(page)


@pytest.mark.slow
def test_a_strict_policy_of_contents_forbids_nothing_of_the_page(page: Page) -> None:
    refused = be_strict(page, r"/wheel/(\?.*)?$")
    open_page(page, WHEEL)
    refreshed(page)
    drawn(page, "#wheel-day")
    assert refused == []


@pytest.mark.slow
def test_the_page_reports_a_lost_holder_and_a_lost_server(page: Page, site: BrowsedSite) -> None:
    open_page(page, WHEEL)
    site["beat"].kill()
    expect(page.locator("#wheel-alerts .errornote")).to_contain_text("last sign of life", timeout=patience(15_000))
    site.beat()
    expect(page.locator("#wheel-alerts .errornote")).to_have_count(0, timeout=patience(20_000))
    site["web"].kill()
    expect(page.locator("#wheel-lost")).to_be_visible(timeout=patience(15_000))
    site.web()
    expect(page.locator("#wheel-lost")).to_be_hidden(timeout=patience(30_000))


@pytest.mark.slow
def test_the_keyboard_focus_is_kept_and_the_page_can_be_paused(page: Page) -> None:
    open_page(page, WHEEL)
    refreshed(page)
    page.locator("#internals summary").press("Shift+Tab")
    page.keyboard.press("Tab")  # into the live part
    state = page.locator("#wheel-pace > span")
    expect(state).to_have_text("paused while the keyboard focus is inside")
    assert page.evaluate("document.getElementById('wheel-live').contains(document.activeElement)")
    page.locator("#wheel-pace button").focus()
    refreshed(page)
    page.keyboard.press("Enter")
    expect(state).to_have_text("paused")
    expect(page.locator("#wheel-pace button")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    refreshed(page)
    expect(state).to_have_text("up to date")
