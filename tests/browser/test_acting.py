"""An operator acts in a browser, by keyboard, on a narrow screen and without a script, and a real wheel obeys.

Actions on all matching tasks, and the audit log in a browser, with a real wheel.

Schedules in a browser: the form with its live preview, a real wheel that obeys, and the chart of runs.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import NARROW, OPERATOR, BrowsedSite, open_page, width
from tests.kit.patience import wait_until

pytestmark = pytest.mark.slow

PENDING, WHEEL = "/admin/django_wheel/pending/", "/admin/django_wheel/wheel/"


def test_tasks_are_cancelled_run_moved_and_a_queue_is_paused(plain: Page, site: BrowsedSite, store: SqlStore) -> None:
    page = plain
    ids = [site.app.send_task("site.later", (n,), countdown=7_200 + n, queue="keys").id for n in range(4)]
    own = f"{PENDING}?queue=keys"  # other tests of this file leave tasks in the same wheel

    def states() -> list[str]:
        return [found.state for one in ids for found in store.browse.find(one, with_bytes=False)]

    wait_until(lambda: states() == ["pending"] * 4, "the tasks are accepted")

    # two tasks are selected and cancelled by keyboard alone, after a first attempt is abandoned
    open_page(page, own)
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
    open_page(page, own)
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
    open_page(page, own)
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


ADMIN = "/admin/django_wheel/"
PENDING, AUDIT = f"{ADMIN}pending/", f"{ADMIN}audit/"

Send = Callable[[int, str], list[str]]


@pytest.fixture
def send(site: BrowsedSite, store: SqlStore) -> Iterator[Send]:
    """Sends tasks, and cancels at the end those that are left: the tests of this file share a wheel."""
    sent: list[str] = []

    def tasks(count: int, queue: str) -> list[str]:
        ids = [site.app.send_task("site.later", (n,), countdown=7_200 + n, queue=queue).id for n in range(count)]
        sent.extend(ids)
        wait_until(lambda: len(states(store, ids)) == count, "the tasks are accepted")
        return ids

    yield tasks
    site.app.wheel.cancel(sent, timeout=60)


def states(store: SqlStore, ids: list[str]) -> list[str]:
    return [found.state for one in ids for found in store.browse.find(one, with_bytes=False)]


def test_all_tasks_that_match_are_cancelled_while_the_page_shows_the_progress(
    page: Page, store: SqlStore, send: Send, tmp_path: Path
) -> None:
    ids, others = send(620, "campaign"), send(2, "others")
    open_page(page, f"{PENDING}?queue=campaign")
    page.get_by_label("All tasks that match the filter").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("h1").last).to_have_text("Cancel all 620 tasks?")
    assert Counter(states(store, ids)) == {"pending": 620}
    page.get_by_label("Reason").fill("campaign is over")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#wheel-bulk-state strong")).to_have_text("over", timeout=60_000)
    expect(page.locator("#wheel-bulk-state progress")).to_have_attribute("value", "620")
    assert Counter(states(store, ids)) == {"cancelled": 620}
    assert states(store, others) == ["pending"] * 2

    page.get_by_role("link", name="The result of each task").click()
    expect(page.locator("#wheel-audit")).to_contain_text("end of a bulk action")
    expect(page.locator("#wheel-audit")).to_contain_text("campaign is over")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(path := tmp_path / "audit.csv")
    with path.open(newline="") as file:
        results = {line["name"]: line["result"] for line in csv.DictReader(file) if line["action"] == "cancel"}
    assert results == dict.fromkeys(ids, "done")


def test_without_script_a_closed_page_is_found_again(plain: Page, store: SqlStore, send: Send) -> None:
    ids = send(3, "plain")
    open_page(plain, f"{PENDING}?queue=plain")
    plain.get_by_label("All tasks that match the filter").check()
    plain.get_by_role("button", name="Run now…").click()
    plain.get_by_role("button", name="Run now").click()
    expect(plain.locator("#wheel-bulk-state")).to_contain_text("Run now")
    assert width(plain) <= NARROW
    plain.goto("about:blank")  # nobody looks on
    wait_until(lambda: states(store, ids) == ["dispatched"] * 3, "the tasks are dispatched")
    open_page(plain, PENDING)
    plain.get_by_role("link", name="Bulk actions under way and recent").click()
    line = plain.locator("#wheel-bulk-list tbody tr").first
    expect(line).to_contain_text("plain")
    assert width(plain) <= NARROW
    wait_until(lambda: "over" in reloaded(plain).locator("#wheel-bulk-list tbody tr").first.inner_text(), "it is over")
    plain.locator("#wheel-bulk-list tbody tr").first.get_by_role("link").click()
    expect(plain.locator("#wheel-bulk-state")).to_contain_text("3 of 3")
    open_page(plain, f"{AUDIT}?name={ids[0]}")
    expect(plain.locator("#wheel-audit tbody")).to_contain_text("run now")
    expect(plain).to_have_url(re.compile("name="))
    assert width(plain) <= NARROW


def reloaded(page: Page) -> Page:
    page.reload()
    return page


def test_a_group_is_paused_limited_and_its_tasks_are_cancelled(plain: Page, site: BrowsedSite, store: SqlStore) -> None:
    page, group = plain, "tenant:browser"
    open_page(page, f"{ADMIN}group/")
    page.get_by_role("link", name="Pause a group").click()
    expect(page.get_by_label("Scope")).to_have_value("group")
    page.get_by_label("Name").fill(group)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist")).to_contain_text(f"Paused: group {group}.")
    for n in range(2):
        site.app.send_task("site.later", (n,), queue="groups", wheel={"group": group})
    waiting = partial(site.app.wheel.groups, group)
    wait_until(lambda: [one.waiting for one in waiting().items] == [2], "the tasks wait in the line of their group")

    open_page(page, f"{ADMIN}group/?part={group}")
    line = page.locator("#wheel-groups tbody tr")
    expect(line).to_contain_text("paused since")
    assert width(page) <= NARROW
    line.get_by_role("link", name="Limits…").click()
    page.get_by_label("Rate").fill("often")
    page.get_by_role("button", name="Set limits").click()
    expect(page.locator("form.wheel-form")).to_contain_text("Enter a rate like 100/m")
    page.get_by_label("Rate").fill("100/m")
    page.get_by_role("button", name="Set limits").click()
    expect(page.locator(".messagelist")).to_contain_text(f"The limits of group {group} are in force.")
    expect(line.filter(has_text=group)).to_contain_text("at most 100 in 1 min")
    assert width(page) <= NARROW

    line.filter(has_text=group).get_by_role("link", name="Pending tasks").click()
    page.get_by_label("All tasks that match the filter").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("h1").last).to_have_text("Cancel all 2 tasks?")
    page.get_by_role("button", name="Cancel").click()
    wait_until(lambda: reloaded(page).locator("#wheel-bulk-state strong").inner_text() == "over", "it is over")
    assert waiting().items == []

    open_page(page, f"{ADMIN}group/limits/?group={group}")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".messagelist")).to_contain_text("has no limits of its own any more")
    open_page(page, f"{ADMIN}wheel/gate/?verb=resume&scope=group&name={group}")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".messagelist")).to_contain_text(f"Resumed: group {group}.")


SCHEDULES = "/admin/django_wheel/schedule/"
NEW_YORK = "America/New_York"


def test_the_preview_follows_the_form_and_the_schedule_is_saved_and_runs(page: Page, store: SqlStore) -> None:
    open_page(page, SCHEDULES)
    page.get_by_role("link", name="New schedule").click()
    preview, lines = page.locator("#wheel-preview"), page.locator("#wheel-preview tbody tr")
    expect(preview).to_contain_text("every day at 09:00")
    expect(page.get_by_role("button", name="Preview")).to_be_hidden()

    # the text follows what the user types, and an error stands beside its field
    page.get_by_label("Hour").fill("25")
    error = page.locator("[data-errors-of=hour] .errorlist")
    expect(error).to_contain_text("hour must be a crontab field of 0 to 23")
    expect(page.get_by_label("Hour")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#wheel-preview-news")).to_have_text("The form has errors.")
    page.get_by_label("Hour").fill("17")
    expect(error).to_have_count(0)
    expect(preview).to_contain_text("every day at 17:00")
    expect(lines).to_have_count(20)

    # days of a clock change are marked, in the schedule's zone and in the viewer's
    page.get_by_role("radio", name="List of instants").check()
    expect(page.get_by_label("Hour")).to_be_hidden()
    page.get_by_label("Time zone").fill(NEW_YORK)
    page.locator("#id_instants").fill("2040-11-03 01:30\n2040-11-04 01:30")
    expect(lines).to_have_count(2)
    expect(lines.nth(0)).to_have_text(re.compile("Sat 2040-11-03 01:30:00 EDT.*06:30:00 CET"))
    expect(lines.nth(1)).to_contain_text("clocks -1 h")
    expect(lines.nth(1)).to_have_class("wheel-shift")

    page.get_by_role("radio", name="Interval").check()
    page.get_by_label("Every").fill("1")
    page.get_by_label("Unit").first.select_option("1000")
    expect(preview).to_contain_text("every 1 s")
    page.get_by_label("Name").fill("browsed/1")
    page.get_by_label("Task").fill("site.later")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist")).to_contain_text("1 schedule is created: browsed/1.")

    def runs() -> int:
        found = store.browse.schedule("browsed/1")
        return 0 if found is None else sum(run.state == "dispatched" for run in found.runs)

    wait_until(lambda: runs() >= 3, "the schedule runs each second")
    page.reload()
    expect(page.get_by_role("img", name=re.compile("The last .* runs and skips"))).to_be_visible()
    assert page.locator(".wheel-runs g").count() >= 3
    page.get_by_text("Runs as a table").click()
    expect(page.locator("#wheel-runs-table tbody tr").first).to_be_visible()


def test_several_are_changed_without_a_script_and_long_names_do_not_widen_a_page(plain: Page, store: SqlStore) -> None:
    page = plain
    names = ("x" * 255, "مرحبا <b>")

    for name in names:
        open_page(page, f"{SCHEDULES}edit/")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Task").fill("site.later")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".messagelist")).to_contain_text("1 schedule is created")
        expect(page.locator(".wheel-facts")).to_contain_text(name)
        assert width(page) <= NARROW
    open_page(page, SCHEDULES)
    for name in names:
        page.get_by_role("checkbox", name=name[:50]).press("Space")
    page.get_by_role("button", name="Change…").press("Enter")
    expect(page.get_by_label("Time zone")).to_be_visible()
    assert width(page) <= NARROW
    page.get_by_label("Time zone").fill("Mars")
    page.keyboard.press("Enter")
    expect(page.locator("[data-errors-of=zone]")).to_contain_text("zone must be a time zone")
    page.get_by_label("Time zone").fill(NEW_YORK)
    page.get_by_role("textbox", name="Queue").fill("slow")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("2 schedules are changed: ")
    assert width(page) <= NARROW
    for name in names:
        found = store.browse.schedule(name)
        assert found is not None
        assert found.schedule is not None
        assert (NEW_YORK in found.schedule.definition, '"slow"' in found.schedule.definition) == (True, True)
        assert [(one.what, one.actor) for one in found.revisions] == [("changed", OPERATOR), ("created", OPERATOR)]


def test_without_a_script_a_schedule_is_previewed_changed_paused_and_rolled_back(plain: Page, store: SqlStore) -> None:
    page = plain
    open_page(page, f"{SCHEDULES}edit/")
    page.get_by_label("Name").fill("plain")
    page.get_by_label("Task").fill("site.later")
    page.get_by_label("Hour").fill("7")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#wheel-preview")).to_contain_text("every day at 07:00")
    assert width(page) <= NARROW
    page.get_by_label("Reason").fill("at breakfast")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist")).to_contain_text("1 schedule is created: plain.")
    assert width(page) <= NARROW

    page.get_by_role("link", name="Change", exact=True).click()
    page.get_by_label("Hour").fill("8")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".wheel-facts")).to_contain_text("every day at 08:00")
    page.get_by_role("button", name="Roll back to revision 1").click()
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator(".messagelist")).to_contain_text("1 schedule is rolled back: plain.")
    expect(page.locator(".wheel-facts")).to_contain_text("every day at 07:00")

    open_page(page, SCHEDULES)
    page.get_by_role("checkbox", name="plain").press("Space")
    page.get_by_role("button", name="Pause…").press("Enter")
    page.get_by_label("Note").fill("holidays")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("1 schedule is paused: plain.")
    expect(page.locator("#wheel-schedules")).to_contain_text("holidays")
    found = store.browse.schedule("plain")
    assert found is not None
    said = [(one.what, one.actor) for one in found.revisions]
    assert said == [("paused", OPERATOR), ("rolled back", OPERATOR), ("changed", OPERATOR), ("created", OPERATOR)]
    assert found.revisions[-1].reason == "at breakfast"
