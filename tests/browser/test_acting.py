"""An operator acts in a browser, by keyboard, on a narrow screen and without a script, and a real wheel obeys."""

import re

from playwright.sync_api import Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import NARROW, OPERATOR, BrowsedSite, open_page, width
from tests.kit.patience import wait_until

PENDING, WHEEL = "/admin/django_wheel/pending/", "/admin/django_wheel/wheel/"


def test_tasks_are_cancelled_run_moved_and_a_queue_is_paused(plain: Page, site: BrowsedSite, store: SqlStore) -> None:
    page = plain
    ids = [site.app.send_task("site.later", (n,), countdown=7_200 + n).id for n in range(4)]

    def states() -> list[str]:
        return [found.state for one in ids for found in store.browse.find(one, with_bytes=False)]

    wait_until(lambda: states() == ["pending"] * 4, "the tasks are accepted")

    # two tasks are selected and cancelled by keyboard alone, after a first attempt is abandoned
    open_page(page, PENDING)
    boxes = page.locator("#wheel-pending input[type=checkbox]")
    for n in (0, 1):
        boxes.nth(n).press("Space")
    page.get_by_role("button", name="Cancel…").press("Enter")
    expect(page.locator("h1").last).to_have_text("Cancel 2 tasks?")
    expect(page.locator("#wheel-selected")).to_contain_text(ids[1])
    assert width(page) <= NARROW
    page.get_by_role("link", name="Change nothing").click()
    expect(page).to_have_url(re.compile(PENDING))
    assert states() == ["pending"] * 4
    for n in (0, 1):
        boxes.nth(n).check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_label("Reason").fill("sent <b>twice</b>")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("2 tasks are cancelled.")
    assert states() == ["cancelled", "cancelled", "pending", "pending"]
    outcome = store.browse.find(ids[0])[0].outcomes[-1]
    assert (outcome.actor, outcome.reason) == (OPERATOR, "sent <b>twice</b>")

    # on its own page a task is rescheduled, then dispatched
    page.locator("#wheel-pending tbody a").first.click()
    page.get_by_role("button", name="Reschedule…").click()
    page.get_by_label("New time").fill("2040-01-15T09:00:30")
    page.get_by_role("button", name="Reschedule").click()
    expect(page.locator(".messagelist")).to_contain_text("1 task is rescheduled.")
    expect(page.locator(".wheel-facts")).to_contain_text("2040-01-15 09:00:30.000")
    page.get_by_role("button", name="Run now…").click()
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".messagelist")).to_contain_text("1 task is dispatched now.")
    wait_until(lambda: states()[2] == "dispatched", "the task is dispatched")
    assert width(page) <= NARROW

    # a queue is paused and resumed
    open_page(page, WHEEL)
    page.get_by_role("link", name="Pause or resume").click()
    page.get_by_label("Name").fill("celery")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist")).to_contain_text("Paused: queue celery.")
    assert width(page) <= NARROW
    page.get_by_role("link", name="Resume…").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".messagelist")).to_contain_text("Resumed: queue celery. The backlog is dispatched now.")
    expect(page.locator("#wheel-live")).not_to_contain_text("Paused")
