"""Actions on all matching tasks, and the audit log in a browser, with a real wheel."""

import csv
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import NARROW, BrowsedSite, open_page, width
from tests.kit.patience import wait_until

ADMIN = "/admin/django_wheel/"
PENDING, AUDIT = f"{ADMIN}pending/", f"{ADMIN}audit/"

Send = Callable[[int, str], list[str]]


@pytest.fixture
def send(site: BrowsedSite, store: SqlStore) -> Send:
    def tasks(count: int, queue: str) -> list[str]:
        ids = [site.app.send_task("site.later", (n,), countdown=7_200 + n, queue=queue).id for n in range(count)]
        wait_until(lambda: len(states(store, ids)) == count, "the tasks are accepted")
        return ids

    return tasks


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
    expect(page.locator("#wheel-audit tbody tr")).to_have_count(2)  # of 500 tasks and of 120
    expect(page.locator("#wheel-audit")).to_contain_text("campaign is over")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(path := tmp_path / "audit.csv")
    with path.open(newline="") as file:
        results = {line["name"]: line["result"] for line in csv.DictReader(file)}
    assert results == dict.fromkeys(ids, "done")


def test_without_script_a_step_is_a_click_and_a_closed_page_goes_on(plain: Page, store: SqlStore, send: Send) -> None:
    ids = send(3, "plain")
    open_page(plain, f"{PENDING}?queue=plain")
    plain.get_by_label("All tasks that match the filter").check()
    plain.get_by_role("button", name="Run now…").click()
    plain.get_by_role("button", name="Run now").click()
    expect(plain.locator("#wheel-bulk-state")).to_contain_text("0 of 3")
    assert width(plain) <= NARROW
    open_page(plain, PENDING)  # the page is left, and opened again
    open_page(plain, f"{PENDING}bulk/")
    plain.get_by_role("button", name="Continue").click()
    expect(plain.locator("#wheel-bulk-state strong")).to_have_text("over")
    wait_until(lambda: states(store, ids) == ["dispatched"] * 3, "the tasks are dispatched")
    open_page(plain, f"{AUDIT}?name={ids[0]}")
    expect(plain.locator("#wheel-audit tbody")).to_contain_text("run now")
    expect(plain).to_have_url(re.compile("name="))
    assert width(plain) <= NARROW
