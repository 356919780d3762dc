"""The pages have their content, and read by key.

The first screen: its answers, its herds and lanes, and the parts that a poll sends.
"""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel import overview
from celery_wheel.engine.stats import SPAN_MS, Recent
from celery_wheel.overview.ahead import Ahead, read_ahead
from celery_wheel.requests import answers
from celery_wheel.store import open_store
from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.store.model import HOUR_MS, ORIGIN, Gate, LaneState, Position, TallyKey
from celery_wheel.store.ports import FullStore
from celery_wheel.store.sql.browse import pages
from celery_wheel.store.sql.store import SqlStore
from django_wheel.project import project_wheel
from django_wheel.views import wheel as screen
from tests.admin.conftest import ADMIN, MOMENT, Configure, end, renew, shown, tallied, text_of, unreadable
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, ids, place
from tests.kit.patience import patience
from tests.kit.schedules import create
from tests.kit.site import celery_app

SHOWN = "2027-01-15 09:00:00"  # NOW in Berlin

pytestmark = pytest.mark.usefixtures("still")


def test_the_wheel_page_names_the_pauses_and_counts_no_paused_task_as_late(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW - 60_000)
    renew(holder, NOW - 700)
    assert 'id="wheel-behind">1 min ' in shown(viewer, f"{ADMIN}/wheel/")
    holder.apply(gates=[Gate("all", "", "paused", 0, "<b>provider</b>", "root on vm", NOW - 90_000)])
    text = shown(viewer, f"{ADMIN}/wheel/")
    banner = text.split('<ul class="wheel-banner">')[1].split("</ul>")[0]
    assert "<strong>Paused: everything</strong> since 08:58:30 (1 min ago), by root on vm, " in banner
    assert "holds back 1 due task: &lt;b&gt;provider" in banner
    assert 'id="wheel-behind">no<' in text


def test_the_wheel_page_shows_levels_buckets_and_counts(viewer: Client, holder: Holder) -> None:
    tallied(holder, *[NOW + 340 + n for n in range(3)], NOW + 3 * HOUR_MS, NOW + 400 * 24 * HOUR_MS)
    renew(holder, NOW - 700)
    text = shown(viewer, f"{ADMIN}/wheel/")
    assert 'data-count="5"' in text
    assert 'data-level="0" data-pending="3"' in text
    assert "tick 1 ms, a turn is 512 ms; 1 of 512 buckets in use" in text
    assert "tick 512 ms, a turn is 4 min 22 s; 0 of 512 buckets in use" in text
    assert "host-a</td>" in text
    assert f"<td>{holder.epoch}</td>" in text
    assert 'data-age="700">700 ms ago</span>' in text
    assert "3 pending, 09:00 (level 0)" in text
    assert '<dd id="wheel-beyond" data-count="2">' in text
    assert f"from={NOW + 3 * HOUR_MS}&amp;to={NOW + 4 * HOUR_MS}" in text
    assert "1 pending, 12:00 - 13:00" in text
    assert "1 task is due later than in a year." in text
    assert "1,234 dispatched" in text


@pytest.mark.parametrize(("skew_ms", "remedy"), [(None, "wheel clock accept"), (3, "check the time service")])
def test_the_wheel_page_says_that_a_clock_is_disputed(
    viewer: Client, holder: Holder, skew_ms: int | None, remedy: str
) -> None:
    renew(holder, clock_disputed_ms=-3_600_000, clock_skew_ms=skew_ms)
    text = shown(viewer, f"{ADMIN}/wheel/")
    assert "the wall clock of its host is 1 h behind due time" in text
    assert remedy in text
    renew(holder)
    assert "disputed" not in shown(viewer, f"{ADMIN}/wheel/")


def test_the_live_part_is_the_same_without_the_frame(viewer: Client, holder: Holder) -> None:
    renew(holder)
    text = shown(viewer, f"{ADMIN}/wheel/live/")
    assert "<html" not in text
    assert 'data-level="0"' in text


def test_the_page_of_a_wheel_without_a_holder_says_so(viewer: Client, holder: Holder) -> None:
    assert "last sign of life" in shown(viewer, f"{ADMIN}/wheel/")
    renew(holder, NOW - 6_000)
    assert "last sign of life 6 s ago" in shown(viewer, f"{ADMIN}/wheel/")
    holder.store.release(0, holder.epoch)
    assert "No scheduler is running" in shown(viewer, f"{ADMIN}/wheel/")


def test_the_wheel_page_shows_its_delay_and_the_lateness_of_tasks(viewer: Client, holder: Holder) -> None:
    holder.settle(ORIGIN, place(tallied(holder, NOW - 90_000, NOW - 61_500)[0]), at_ms=NOW - 89_960)
    renew(holder)
    holder.store.register_scheduler("host-b/1/2", NOW, 1)
    text = shown(viewer, f"{ADMIN}/wheel/")
    assert "1 min 1 s" in text
    assert text.count(">40 ms</span>") == 3
    assert "host-b/1/2" in text
    assert "host-b/1/2" not in shown(viewer, f"{ADMIN}/shard/")


def test_a_click_on_a_bucket_lists_its_tasks(viewer: Client, holder: Holder) -> None:
    inside = tallied(holder, NOW + 340, task="app.inside")
    tallied(holder, NOW + 331, NOW + 349, task="app.outside")  # an arc stands for nine buckets of this level
    renew(holder)
    page = shown(viewer, f"{ADMIN}/wheel/")
    (link,) = set(re.findall(r'href="(/admin/django_wheel/pending/[^"]*shard=0)"', page))
    text = text_of(viewer.get(link.replace("&amp;", "&")))
    assert f"/pending/{inside[0].id}/" in text
    assert "app.inside" in text
    assert ">app.outside<" not in text.split("</datalist>")[-1]


def test_pending_tasks_page_by_key(viewer: Client, holder: Holder, store: SqlStore) -> None:
    rows = holder.accept(*range(NOW, NOW + 230))
    second = Holder(store, 1).accept(*range(NOW, NOW + 20))
    seen: list[int] = []
    link: str | None = ""
    while link is not None:
        text = shown(viewer, f"{ADMIN}/pending/{link}")
        seen += [int(one) for one in re.findall(r"/pending/(\d+)/", text)]
        found = re.search(r'href="(\?[^"]*)" rel="next"', text)
        link = found[1].replace("&amp;", "&") if found else None
    assert seen == ids(sorted([*rows, *second], key=place))


def test_no_page_counts_rows_without_bound(viewer: Client, holder: Holder, store: SqlStore) -> None:
    tallied(holder, *range(NOW, NOW + 5))
    renew(holder)
    opened = project_wheel().store
    assert isinstance(opened, SqlStore)
    with reads_of(opened) as said:
        for page in ("wheel", "pending", "history", "rejected", "settlement", "shard"):
            viewer.get(f"{ADMIN}/{page}/?task=app.remind")
    assert said
    # The seconds of the next hour are counted the more rarely, the more they are: test_cache. Schedules are counted
    # every ten seconds.
    rare = ("'second' as kind", "from wheel_schedule")
    texts = [one.lower() for one in said]
    counts = [one for one in texts if "count(" in one and "limit" not in one]
    assert not [one for one in counts if not any(part in one for part in rare)]


def test_filters_narrow_the_page_and_offer_names(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW, task="app.a", queue="x")
    tallied(holder, NOW + 1, task="app.b", queue="y")
    text = shown(viewer, f"{ADMIN}/pending/?task=app.b")
    table = text.split("<tbody>")[1]
    assert "app.b" in table
    assert "app.a" not in table
    assert '<option value="app.a">1 pending</option>' in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("shard=x", "shard must be a whole number of at most 255, got &#x27;x&#x27;"),
        ("shard=-1", "shard must be a whole number"),
        ("shard=%D9%A3", "shard must be a whole number"),
        ("from=soon", "from must be a date and time like"),
        ("to=2027-02-31", "to must be a date and time like"),
        ("to=99999999999999999999999999", "to must be a date and time like"),
        ("shard=" + "0" * 30 + "9" * 5_000, "shard must be a whole number"),
        ("from=" + "0" * 30 + "9" * 30, "from must be a date and time like"),
        ("q=%00", "q must be text without NUL characters"),
        ("after=1", "after must be a cursor"),
        ("after=9.99999999999999999999", "after must be a cursor"),
        ("task=%00", "task must be text without NUL characters"),
    ],
)
def test_an_invalid_filter_is_reported_and_ignored(viewer: Client, holder: Holder, query: str, said: str) -> None:
    tallied(holder, NOW)
    text = shown(viewer, f"{ADMIN}/pending/?{query}")
    assert said in text
    assert "app.remind" in text


def test_times_without_a_zone_are_in_the_sites_zone(viewer: Client, holder: Holder) -> None:
    rows = tallied(holder, NOW, NOW + 1_000)
    text = shown(viewer, f"{ADMIN}/pending/?from=2027-01-15T09:00:01")
    assert f"/pending/{rows[1].id}/" in text
    assert f"/pending/{rows[0].id}/" not in text
    assert f"{SHOWN[:-1]}1.000" in text


def test_a_task_is_found_by_its_id_in_every_state(viewer: Client, holder: Holder) -> None:
    left, waits = tallied(holder, NOW, NOW + 5, task_id="wanted")
    holder.settle(ORIGIN, place(left), at_ms=NOW + 7)
    text = shown(viewer, f"{ADMIN}/pending/?q=wanted")
    assert f'/pending/{left.id}/">dispatched' in text
    assert f'/pending/{waits.id}/">pending' in text
    assert "does not know this id" in shown(viewer, f"{ADMIN}/pending/?q=other")


def test_the_history_has_lateness(viewer: Client, holder: Holder) -> None:
    holder.settle(ORIGIN, place(tallied(holder, NOW, NOW + 5)[1]), at_ms=NOW + 12)
    text = shown(viewer, f"{ADMIN}/history/")
    assert ">7 ms<" in text
    assert ">12 ms<" in text


def test_rejected_messages_have_their_reason_and_bytes(viewer: Client, holder: Holder) -> None:
    bad = unreadable(holder, b"\x80<b>")
    (gone,) = holder.accept(NOW)
    end(holder, gone, "cancelled")
    text = shown(viewer, f"{ADMIN}/rejected/")
    assert "asked for" in text
    assert f"/pending/{bad.id}/body/" in text
    assert f"/pending/{gone.id}/" not in text
    assert f"/pending/{gone.id}/" in shown(viewer, f"{ADMIN}/rejected/?kind=cancelled")
    assert "kind must be one of rejected" in shown(viewer, f"{ADMIN}/rejected/?kind=lost")
    response = viewer.get(f"{ADMIN}/pending/{bad.id}/body/")
    assert response.content == b"\x80<b>"
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"].startswith("attachment;")
    assert response["X-Content-Type-Options"] == "nosniff"


def test_the_list_of_rejected_tasks_says_that_its_search_goes_on(
    viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("SCAN", "SCAN_LEAST"):
        monkeypatch.setattr(pages, bound, 2)
    for row in holder.accept(*range(NOW, NOW + 5)):
        end(holder, row)
    page = shown(viewer, f"{ADMIN}/rejected/?queue=nobody")
    assert "the search continues on the next page" in page
    assert "There is no task with the outcome" not in page


def test_settlements_and_shards(viewer: Client, holder: Holder) -> None:
    rows = holder.accept(NOW)
    holder.apply(lanes=[LaneState(4, ORIGIN, ORIGIN, "slow")])
    holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 12)
    assert f"{SHOWN}.012" in shown(viewer, f"{ADMIN}/settlement/")
    text = shown(viewer, f"{ADMIN}/shard/")
    assert "waits for slow" in text
    assert '<strong class="wheel-bad">none</strong>' in text  # shard 1


def test_a_missing_row_is_404(viewer: Client, holder: Holder) -> None:
    for address in ("pending/77/", "pending/77/body/", f"pending/{2**70}/", "pending/x/", "timer/", "wheel/add/"):
        assert viewer.get(f"{ADMIN}/{address}").status_code == 404, address


def test_a_store_that_cannot_be_read_is_reported(viewer: Client, nowhere: Path) -> None:
    for page in ("wheel", "wheel/live", "pending", "pending/1", "shard"):
        assert "there is no store at" in shown(viewer, f"{ADMIN}/{page}/", 503)
    assert not nowhere.exists()


def test_a_number_may_have_leading_zeros(viewer: Client, holder: Holder) -> None:
    text = shown(viewer, f"{ADMIN}/pending/?shard=" + "0" * 5_000 + "1")
    assert "errornote" not in text
    assert 'name="shard" value="1"' in text


def test_a_store_that_was_replaced_is_opened_anew(viewer: Client, store: SqlStore, tmp_path: Any) -> None:
    """An open file that was removed would still have the former content."""
    Holder(store).accept(NOW, task="app.old")
    assert "app.old" in shown(viewer, f"{ADMIN}/pending/")
    for one in tmp_path.glob("wheel.sqlite3*"):
        one.unlink()
    assert "there is no store at" in shown(viewer, f"{ADMIN}/pending/", 503)
    other = open_store(celery_app.conf.wheel_store, shards=1)
    Holder(other).accept(NOW, task="app.new")
    text = shown(viewer, f"{ADMIN}/pending/")
    assert ("app.new" in text, "app.old" in text) == (True, False)
    other.close()


def test_a_store_of_other_shards_is_reopened(viewer: Client, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.requests.answers.CHECK_EVERY_S", 0)
    assert shown(viewer, f"{ADMIN}/shard/").count("<td>none</td>") == 2
    store.maintenance.reshard(5, lambda key, task_id, shards: 0, NOW)
    assert shown(viewer, f"{ADMIN}/shard/").count("<td>none</td>") == 5


def test_a_page_stays_small_whatever_the_names(viewer: Client, holder: Holder) -> None:
    names = ["t" * 20_000 + str(n) for n in range(50)]
    for name in (*names, "turned\u202earound", "app.good"):
        tallied(holder, NOW, task=name, queue=name)
    response = viewer.get(f"{ADMIN}/pending/")
    assert len(response.content) < 100_000
    text = text_of(response)
    assert '<option value="app.good">' in text
    assert "\u202e" not in text


def test_a_task_may_have_the_name_of_a_template_variables_method(viewer: Client, holder: Holder) -> None:
    for name in ("items", "keys", "0"):
        tallied(holder, NOW, task=name, queue=name)
    assert '<option value="items">1 pending</option>' in shown(viewer, f"{ADMIN}/pending/")


def test_a_missing_shard_is_reported(viewer: Client, holder: Holder) -> None:
    assert "shard must be a shard of the store, got 7" in shown(viewer, f"{ADMIN}/wheel/?shard=7")
    assert "must be" not in shown(viewer, f"{ADMIN}/wheel/?shard=1")


@pytest.mark.parametrize("language", ["de", "en", "he"])
def test_links_are_alike_in_any_number_format(viewer: Client, holder: Holder, settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    settings.USE_THOUSAND_SEPARATOR = True
    tallied(holder, *[NOW + n for n in range(1_001)], NOW + HOUR_MS)
    renew(holder, NOW - 1_700)
    for address in ("wheel/", "wheel/live/"):
        text = shown(viewer, f"{ADMIN}/{address}")
        assert 'data-count="1002"' in text
        assert 'data-age="1700"' in text
        assert f"from={NOW + HOUR_MS}&amp;to={NOW + 2 * HOUR_MS}" in text
        assert not re.search(r"(from|to)=\d+[^\d\"&]", text)
    assert f" {holder.highest_seq}</td>" in shown(viewer, f"{ADMIN}/pending/{holder.ids()[-1]}/")


def test_pages_can_be_read_by_a_screen_reader(viewer: Client, holder: Holder, settings: Any) -> None:
    """English text is marked as English; the part that is replaced every second has no alerts; columns have heads."""
    settings.LANGUAGE_CODE = "he"
    tallied(holder, NOW + HOUR_MS)
    assert '<div id="content-main" lang="en" dir="ltr">' in shown(viewer, f"{ADMIN}/wheel/")
    live = shown(viewer, f"{ADMIN}/wheel/live/")
    assert 'data-news="The scheduler that holds the wheel is silent."' in live
    assert 'role="alert"' not in live
    for page in ("wheel", "pending", "history", "rejected", "settlement", "shard"):
        found = shown(viewer, f"{ADMIN}/{page}/").partition('id="content-main"')[2]
        assert found.count("<th ") == found.count('<th scope="')
        assert "<th>" not in found
        assert len(re.findall('<div class="wheel-scroll[^>]*><table', found)) == found.count("<table")


def test_a_task_is_found_without_reading_its_bodies(viewer: Client, holder: Holder, store: SqlStore) -> None:
    holder.accept(NOW, task_id="wanted", body=b"b" * 1_000)
    (found,) = store.browse.find("wanted", with_bytes=False)
    assert (found.state, found.body) == ("pending", b"")
    (found,) = store.browse.find("wanted")
    assert len(found.body) == 1_000


WHEEL = f"{ADMIN}/wheel/"


def card(client: Client, title: str) -> str:
    found = re.search(rf"<h2>{title}.*?</section>", text_of(client.get(WHEEL)), re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())


def test_totals_say_since_when_they_count(viewer: Client, holder: Holder) -> None:
    renew(holder, began_ms=NOW - 3 * HOUR_MS, **{"rejected": 2, "store_errors": 5, "guard_trips": 1})
    create(holder, "report", definition="{", broken=True, note="x", next_ms=None)
    said = card(viewer, "Problems")
    assert said.startswith("Problems 9 Rejected 2 Expired 0 Errors of the store 5")
    assert "Broken schedules, now 1 Failing schedules, now 0 since this holder began, 06:00" in said
    assert "1,234 dispatched since this holder began, 06:00" in card(viewer, "Throughput")


def test_the_last_minutes_are_lines_against_the_objective(viewer: Client, holder: Holder, conf: Configure) -> None:
    recent = Recent()
    recent.add(NOW - 2 * SPAN_MS, 0, 0, None)
    recent.add(NOW - SPAN_MS, 500, 300, {"p50_ms": 20, "p99_ms": 900})
    renew(holder, recent=recent.add(NOW, 500, 300, None), accepted=500)
    page = shown(viewer, WHEEL)
    assert 'class="wheel-line-p99"' in page
    assert "wheel-limit" not in page  # half a minute is above the axis
    assert card(viewer, "Throughput").startswith("Throughput In 25/s 500 accepted Out 15/s")
    assert card(viewer, "Lateness").startswith("Lateness in time Behind no p50 / p99 / max 40 ms / 40 ms / 40 ms")
    conf(wheel_objective=0.02)
    assert 'class="wheel-limit" d="M0 39.2H29"' in shown(viewer, WHEEL)
    assert card(viewer, "Lateness").startswith("Lateness late")


def test_the_last_changes_by_people_come_from_the_audit_log(viewer: Client, holder: Holder) -> None:
    results = ({"queue:<b>mail</b>": "done"}, {"task-1": "done", "task-2": "done", "task-3": "already"})
    for n, (action, found) in enumerate(zip(("pause", "cancel"), results, strict=True)):
        about = {"origin": "cli", "actor": "ann", "action": action, "reason": "", "details": "{}", "bulk": None}
        request = f"01900000-0000-7000-8000-{n:012}"
        holder.apply(audits=[AuditEntry(request, NOW - 60_000 + n, **about, results=json.dumps(found))])
    last, before = "Cancel: task-1 and 2 more ann, 59 s ago", "Pause: queue &lt;b&gt;mail&lt;/b&gt; ann, 1 min ago"
    assert card(viewer, "Changes") == f"Changes {last} {before}"


def test_a_lane_says_what_holds_it_back(viewer: Client, holder: Holder, conf: Configure) -> None:
    conf(wheel_rate_limits={"sms": "5/s"})
    at = Position(NOW - 190_000, 0)
    lanes = [
        LaneState(1, at, at, "mail", scope="queue"),
        LaneState(2, at, at, "sms", scope="queue"),
        LaneState(3, at, at, "<slow>"),
    ]
    holder.apply(lanes=lanes, gates=[Gate("queue", "mail", "paused", 0, "", "root", NOW)])
    renew(holder, lanes=[{"lane": 2, "ready": 7}])
    page = shown(viewer, WHEEL).split(">Lanes</caption>")[1].split("</table>")[0]
    said = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "queue mail paused 08:56:50 (3 min ago) -" in said
    assert "queue sms at most 5 in 1 s 08:56:50 (3 min ago) 7" in said
    assert "&lt;slow&gt; waits until its queue accepts messages" in said


def test_a_herd_is_a_link_to_its_tasks(viewer: Client, holder: Holder) -> None:
    holder.apply(tally={TallyKey((NOW + 20 * HOUR_MS) // HOUR_MS, "celery", "app.remind"): 12_000})
    page = shown(viewer, WHEEL).split('id="wheel-herds"')[1].split("</section>")[0]
    assert f'?from={NOW + 20 * HOUR_MS}&amp;to={NOW + 21 * HOUR_MS}">12,000 tasks, tomorrow 05:00 - 06:00</a>' in page
    assert "in 20 h" in page


def test_a_page_does_not_wait_for_a_long_search_for_herds(
    viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.apply(tally={TallyKey((NOW + 20 * HOUR_MS) // HOUR_MS, "celery", "app.remind"): 12_000})
    ended, searching = threading.Event(), "Herds further ahead are being searched for."

    def search(store: FullStore, now_ms: int) -> Ahead:
        assert ended.wait(patience())
        return read_ahead(store, now_ms)

    monkeypatch.setattr(answers, "read_ahead", search)
    monkeypatch.setattr(screen, "SEARCH_S", 0)
    assert searching in shown(viewer, WHEEL)
    ended.set()
    monkeypatch.setattr(screen, "SEARCH_S", patience())
    page = shown(viewer, WHEEL)
    assert "12,000 tasks, tomorrow" in page
    assert searching not in page


def test_a_poll_sends_the_parts_that_differ_from_those_of_the_page(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW + HOUR_MS)
    renew(holder)
    viewer.get(WHEEL)
    versions = re.findall(r'data-version="(\w+)"', shown(viewer, WHEEL))
    assert len(set(versions)) == 11
    assert viewer.get(f"{WHEEL}live/?have={'.'.join(versions)}").content == b""
    tallied(holder, NOW + HOUR_MS)
    changed = shown(viewer, f"{WHEEL}live/?have={'.'.join(versions)}")
    assert set(re.findall(r'<section id="wheel-(\w+)"', changed)) == {"alerts", "answers", "day", "year"}


def test_a_year_is_drawn_every_ten_seconds(viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "YEAR_MS", 10_000)
    tallied(holder, NOW + HOUR_MS)
    with freeze_time(MOMENT) as clock:
        for seconds, known in ((0, "1 pending"), (9, "1 pending"), (1, "2 pending")):
            clock.tick(seconds)
            assert known in shown(viewer, f"{WHEEL}live/").split('id="wheel-year"')[1].split("</section>")[0]
            tallied(holder, NOW + HOUR_MS) if seconds == 0 else None


def test_a_thread_that_renders_an_older_overview_does_not_disturb_the_newer_one(
    viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(holder)
    page, real, newer = f"{WHEEL}live/", screen.Screen, list[str]()

    def interrupted(*about: Any) -> screen.Screen:
        monkeypatch.setattr(screen, "Screen", real)
        tallied(holder, NOW + HOUR_MS)
        newer.append(shown(viewer, page))
        return real(*about)

    monkeypatch.setattr(screen, "Screen", interrupted)
    older = shown(viewer, page)
    monkeypatch.setattr(overview, "FRESH_S", 3_600)
    assert older not in newer
    assert [shown(viewer, page)] == newer


def test_a_first_reading_has_no_seconds_and_says_so(
    viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tallied(holder, NOW + 30_000)
    first = shown(viewer, f"{WHEEL}live/").split('id="wheel-minute"')[1].split("</section>")[0]
    assert "counted with the next refresh" in first
    second = shown(viewer, f"{WHEEL}live/?tables=1").split('id="wheel-minute"')[1].split("</section>")[0]
    assert "1 pending, at most 1 in one" in second
    assert f'?from={NOW + 30_000}&amp;to={NOW + 31_000}">1</a>' in second
    monkeypatch.setattr(overview, "FRESH_S", 3_600)
    assert f'?from={NOW + 30_000}&amp;to={NOW + 31_000}">1</a>' not in shown(viewer, f"{WHEEL}live/")
