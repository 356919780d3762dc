"""The first screen answers what operators ask: what is held, by whom and for how long; what is new; where a herd is."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel.store.model import HOUR_MS, ORIGIN, Gate, LaneState
from celery_wheel.store.ports.pages import COUNTED
from tests.admin.conftest import ADMIN, MOMENT, MakeClient, end, renew, shown, tallied, text_of
from tests.kit.holder import NOW, Holder, hour_of

pytestmark = pytest.mark.usefixtures("still")

WHEEL = f"{ADMIN}/wheel/"


def part(page: str, name: str) -> str:
    """Return a part of the page as its text."""
    section = page.split(f'<section id="wheel-{name}"')[1].split('<section id="wheel-')[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", section.partition(">")[2])).split())


def pause(holder: Holder, *due_ms: int, scope: str = "queue", name: str = "mail") -> None:
    lane = LaneState(1, ORIGIN, ORIGIN, name, scope=scope)
    gate = Gate(scope, name, "paused", 0, "", "ann", NOW - 90_000)
    rows = [holder.row(due, lane=1, queue="mail") for due in due_ms]
    holder.apply(lanes=[lane], gates=[gate], rows=rows)
    for row in rows:
        holder.apply(tally={hour_of(row): 1})


def test_the_head_of_a_paused_queue_is_not_the_next_due_task(viewer: Client, holder: Holder) -> None:
    pause(holder, NOW - 1_680_000, NOW - 5_000, NOW - 1)
    tallied(holder, NOW + 190_000)
    renew(holder)
    page = shown(viewer, WHEEL)
    answers = part(page, "answers")
    assert "Next due in 3 min 09:03:10" in answers
    assert "Held back 3 by a pause; the first was due 28 min ago" in answers
    assert "in time" in answers
    assert "Paused: queue mail since 08:58:30 (1 min ago), by ann, holds back 3 due tasks" in part(page, "alerts")
    assert "28 min ago" not in shown(viewer, f"{ADMIN}/shard/")


def test_nothing_is_next_while_everything_is_paused(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW - 60_000, NOW + 60_000)
    holder.apply(gates=[Gate("all", "", "paused", 0, "", "ann", NOW - 90_000)])
    renew(holder)
    page = shown(viewer, WHEEL)
    assert "Next due - Held back 1 by a pause; the first was due 1 min ago" in part(page, "answers")
    assert "Paused: everything since 08:58:30 (1 min ago), by ann, holds back 1 due task" in part(page, "alerts")


def test_a_limit_is_no_pause(viewer: Client, holder: Holder) -> None:
    lane = LaneState(1, ORIGIN, ORIGIN, "mail", scope="queue")
    holder.apply(lanes=[lane], rows=[holder.row(NOW - 5_000, lane=1, queue="mail")])
    renew(holder)
    assert "Held back 1 by a limit or a group; the first was due 5 s ago" in part(shown(viewer, WHEEL), "answers")


def test_a_count_that_may_be_larger_says_so(viewer: Client, holder: Holder) -> None:
    pause(holder)
    holder.apply(rows=[holder.row(NOW - 5_000, lane=1, queue="mail") for _ in range(COUNTED + 1)])
    renew(holder)
    assert "holds back at least 1,000 due tasks" in part(shown(viewer, WHEEL), "alerts")
    renew(holder, lanes=[{"lane": 1, "ready": 1_234}])
    assert "holds back at least 1,234 due tasks" in part(shown(viewer, WHEEL), "alerts")


def test_a_pause_of_a_group_has_the_waiting_tasks_of_the_group(viewer: Client, holder: Holder) -> None:
    holder.apply(gates=[Gate("group", name, "paused", 0, "", "ann", NOW - 90_000) for name in ("tenant:1", "tenant:2")])
    groups = {"count": 1, "waiting": 7, "largest": [["tenant:1", 7, 0, []]], "unreported": {}}
    renew(holder, groups={**groups, "starving": [], "starving_count": 0, "unreported_count": 0})
    alerts = part(shown(viewer, WHEEL), "alerts")
    assert "group tenant:1 since 08:58:30 (1 min ago), by ann, holds back 7 due tasks" in alerts
    assert "group tenant:2 since 08:58:30 (1 min ago), by ann shard 0" in alerts, "its tasks are not known"
    renew(holder, groups=None)  # of a shard without a row of a group
    assert "group tenant:1 since 08:58:30 (1 min ago), by ann Paused" in part(shown(viewer, WHEEL), "alerts")


# -- the numbers of the next hour and the next day ---------------------------------------------------------------------


@pytest.mark.parametrize("at", [MOMENT, "2027-01-15 08:31:40.500", "2027-01-15 08:59:59.999"])
def test_the_number_of_a_period_is_that_of_the_pending_tasks_behind_its_link(
    viewer: Client, holder: Holder, at: str
) -> None:
    """A list from this minute on had two percent more: the number is of whole hours, and names their end."""
    pause(holder, NOW + 100, NOW + 1_899_000)
    tallied(holder, *[NOW + n * 700_000 for n in range(1, 180)])
    with freeze_time(at):
        renew(holder)
        shown(viewer, WHEEL)  # the first reading has no seconds
        page = shown(viewer, WHEEL)
        found = re.findall(r'<dt>The next (\w+)</dt><dd><a href="([^"]+)">(\d+)</a>', page)
        assert [period for period, *_ in found] == ["hour", "day"]
        for _period, link, number in found:
            listed, address = 0, unescape(link)
            while address:
                text = text_of(viewer.get(address))
                listed += text.count('<span class="wheel-name"')
                following = re.search(r'<a href="([^"]+)" rel="next"', text)
                address = f"{ADMIN}/pending/{unescape(following[1])}" if following else ""
            assert listed == int(number) > 0
    assert re.search(r"The next day \d+ until tomorrow 09:00", part(page, "answers"))


# -- problems ----------------------------------------------------------------------------------------------------------


def mark(client: Client, page: str) -> None:
    (shown_counts,) = re.findall(r'form="wheel-seen" class="button" name="seen" value="([\d.]+)"', page)
    response = client.post(f"{WHEEL}seen/", {"seen": shown_counts})
    assert (response.status_code, response["Location"]) == (302, WHEEL)


def test_a_user_marks_problems_as_seen_and_later_ones_are_new(client_of: MakeClient, holder: Holder) -> None:
    viewer, other = client_of("viewer"), client_of("operator")
    end(holder, *tallied(holder, NOW - 60_000))
    renew(holder, rejected=334)
    page = shown(viewer, WHEEL)
    assert part(page, "problems").startswith("Problems 334 Rejected 334 Expired 0")
    assert "last task rejected or expired" in part(page, "problems")
    mark(viewer, page)
    quiet = shown(viewer, WHEEL)
    assert part(quiet, "problems").startswith("Problems nothing new Rejected 334 Expired 0")
    assert "marked as seen 09:00" in part(quiet, "problems")
    assert "Mark as seen" not in quiet
    assert part(shown(other, WHEEL), "problems").startswith("Problems 334 ")
    renew(holder, rejected=336, store_errors=1)
    text = part(shown(viewer, WHEEL), "problems")
    assert text.startswith("Problems 3 new Rejected 336 2 new Expired 0 Errors of the store 1 1 new")
    assert text.endswith("Mark as seen")


@pytest.mark.parametrize(("later_ms", "said"), [(0, "nothing new Rejected 5"), (60_000, "5 Rejected 5")])
def test_counts_of_a_new_process_are_new_and_those_of_one_that_adopts_again_are_not(
    viewer: Client, holder: Holder, later_ms: int, said: str
) -> None:
    renew(holder, rejected=5, began_ms=NOW)
    mark(viewer, shown(viewer, WHEEL))
    holder.store.release(0, holder.epoch)
    renew(Holder(holder.store), rejected=5, began_ms=NOW + later_ms)
    assert part(shown(viewer, WHEEL), "problems").startswith(f"Problems {said} ")


@pytest.mark.parametrize("seen", ["", "1", "1.x", "1.-2", "<b>"])
def test_other_values_are_not_kept(viewer: Client, holder: Holder, seen: str) -> None:
    renew(holder, rejected=5)
    assert viewer.post(f"{WHEEL}seen/", {"seen": seen}).status_code == 400
    assert viewer.get(f"{WHEEL}seen/").status_code == 405
    assert part(shown(viewer, WHEEL), "problems").startswith("Problems 5 ")


def test_a_session_keeps_as_many_numbers_as_the_page_has_and_of_one_store(viewer: Client, holder: Holder) -> None:
    renew(holder, rejected=5)
    viewer.post(f"{WHEEL}seen/", {"seen": ".".join(["7"] * 500)})
    kept: dict[str, Any] = viewer.session["wheel_seen"]
    assert len(kept["counts"]) == 9
    of_an_older_version = {"store": kept["store"], "at_ms": NOW, "epochs": 1, "counts": [5]}
    for other in ({**kept, "store": "another"}, of_an_older_version):
        session = viewer.session
        session["wheel_seen"] = other
        session.save()
        assert part(shown(viewer, WHEEL), "problems").startswith("Problems 5 ")


# -- herds and times ---------------------------------------------------------------------------------------------------


def test_a_herd_of_one_second_far_ahead_is_named_with_its_task(viewer: Client, holder: Holder) -> None:
    at_ms = NOW + 30 * HOUR_MS + 7_000
    rows = [holder.row(at_ms, task="shop.herd") for _ in range(2_000)]
    holder.apply(rows=rows, tally={hour_of(rows[0]): 2_000})
    tallied(holder, *[NOW + n * HOUR_MS for n in range(48)], task="shop.usual")
    page = shown(viewer, WHEEL)
    assert part(page, "herds") == "Herd 2,000 tasks, tomorrow 15:00:07 in 1 d shop.herd"
    assert f"?from={at_ms}&amp;to={at_ms + 1_000}" in page


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("Europe/Berlin", "Europe/Berlin (UTC+01:00)"),
        ("Asia/Kolkata", "Asia/Kolkata (UTC+05:30)"),
        ("UTC", "UTC (UTC+00:00)"),
    ],
)
@pytest.mark.parametrize(
    "address", ["wheel/", "pending/", "history/", "rejected/", "shard/", "settlement/", "schedule/", "audit/"]
)
def test_a_page_names_the_zone_of_its_times_once(
    viewer: Client, holder: Holder, settings: Any, zone: str, said: str, address: str
) -> None:
    settings.TIME_ZONE = zone
    tallied(holder, NOW + 5_000)
    page = shown(viewer, f"{ADMIN}/{address}")
    assert page.count(f"Times are in the time zone {said}.") == 1
    content = page.split('id="content-main"')[1]
    assert not re.search(r"\d\d:\d\dZ|\d\d:\d\d:\d\dZ|of UTC|\+00:00</", re.sub(r'datetime="[^"]*"', "", content))


def test_without_scripts_a_user_decides_whether_the_page_reloads_itself(viewer: Client, holder: Holder) -> None:
    """Each reload takes the focus from who uses a keyboard, and lets a screen reader begin anew."""
    renew(holder)
    refresh = '<noscript><meta http-equiv="refresh" content="5"></noscript>'
    page = shown(viewer, WHEEL)
    assert refresh in page
    (link,) = re.findall(r'<noscript><a href="([^"]*)">Do not reload every five seconds</a></noscript>', page)
    still = shown(viewer, WHEEL + unescape(link))
    assert refresh not in still
    assert ">Reload every five seconds</a></noscript>" in still
