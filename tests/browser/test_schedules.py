"""Schedules in a browser: the form with its live preview, a real wheel that obeys, and the chart of runs."""

import re

from playwright.sync_api import Page, expect

from celery_wheel.store.sql.store import SqlStore
from tests.browser.conftest import NARROW, OPERATOR, open_page, width
from tests.kit.patience import wait_until

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
