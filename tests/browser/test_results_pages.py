"""The pages of the results of the pipeline's jobs, in a browser."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import VIEWER, BrowsedSite, Visit, open_page
from tests.kit.job_results import LAST, RUN, hour, leave_forecast, leave_lateness

pytestmark = pytest.mark.slow

#: Returns the colour of a cell as the browser paints it, and its height.
LOOK = "(cell) => [getComputedStyle(cell).fill, cell.getBBox().height]"


@pytest.fixture(scope="module", autouse=True)
def left(site: BrowsedSite) -> None:
    names = ["app.mail", *[f"app.other_{number}" for number in range(11)]]
    heats = (90, 900, 9_000, 59_000, 3_700_000)
    rows = [hour(name, ago, p99_ms=heats[ago % 5], max_ms=heats[ago % 5]) for name in names for ago in range(48)]
    for row in (rows[0], rows[47]):  # the first and the last cell of a line
        row.update(objective_ms=50, over=60, missed=True)
    now = datetime.now(UTC)
    leave_lateness(site.results, *rows, run=now)
    minutes = [{"minute": RUN + timedelta(minutes=at), "queue": "mail", "n": at} for at in range(1, 1_000)]
    herd = {"second": RUN, "queue": "mail", "n": 500, "usual": 1.5, "limit": 99.0, "jitter_s": 5}
    drain = {"queue": "mail", "rate": 2.5, "n": 5, "worst_backlog": 4, "longest_wait_s": 2.0, "drained_at": RUN}
    herds = [{**herd, "tasks": [{"n": 500, "task": name}]} for name in names]
    leave_forecast(site.results, minutes=minutes, herds=herds, drain=[drain], run=now)


def test_links_lead_from_the_menu_to_a_task_and_its_hours(page: Page) -> None:
    page.goto("/admin/django_wheel/")
    page.locator("#content").get_by_role("link", name="Lateness").click()
    expect(page.locator("#wheel-late tbody tr")).to_have_count(12)
    page.locator("#wheel-late").get_by_role("link", name="app.mail").click()
    expect(page.locator("#wheel-hours tbody tr")).to_have_count(48)
    page.locator("#wheel-hours a").first.click()
    expect(page).to_have_url(re.compile(r"/history/\?task=app\.mail&queue=mail&from=\d+&to=\d+$"))
    assert str(round(LAST.timestamp() * 1_000) + 3_600_000) in page.url


def test_links_lead_from_the_wheel_to_the_forecast_and_to_pending_tasks(page: Page) -> None:
    open_page(page, "/admin/django_wheel/wheel/")
    page.locator("#content").get_by_role("link", name="Forecast from archive").click()
    expect(page.locator("#wheel-herds tbody tr")).to_have_count(12)
    expect(page.locator("#wheel-drains")).to_contain_text("2.5/s")
    page.locator("#ahead summary").click()
    page.locator("#ahead a").first.click()
    expect(page).to_have_url(re.compile(r"/pending/\?from=\d+&to=\d+$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_heat_has_a_colour_and_a_height_of_its_own(visit: Visit, scheme: str) -> None:
    page = visit(VIEWER, color_scheme=scheme)
    open_page(page, "/admin/django_wheel/lateness/")
    found = [page.locator(f"#wheel-heat rect.wheel-heat-{heat}").first.evaluate(LOOK) for heat in range(5)]
    assert len({colour for colour, _ in found}) == 5
    heights = [height for _, height in found]
    assert heights == sorted(set(heights))
    expect(page.locator("#wheel-heat rect.wheel-missed")).to_have_count(2)
    expect(page.locator("#wheel-heat td").filter(has_text="missed").first).to_be_visible()
