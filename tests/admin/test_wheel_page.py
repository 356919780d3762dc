"""The first screen: its answers, its herds and lanes, and the parts that a poll sends."""

import json
import re

import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel import overview
from celery_wheel.engine.stats import SPAN_MS, Recent
from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.store.model import HOUR_MS, Gate, LaneState, Position, TallyKey
from django_wheel.views import wheel as screen
from tests.admin.conftest import ADMIN, MOMENT, Configure, renew, shown, tallied, text_of
from tests.kit.holder import NOW, Holder
from tests.kit.schedules import create

WHEEL = f"{ADMIN}/wheel/"

pytestmark = pytest.mark.usefixtures("still")


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


def test_a_poll_sends_the_parts_that_differ_from_those_of_the_page(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW + HOUR_MS)
    renew(holder)
    viewer.get(WHEEL)
    versions = re.findall(r'data-version="(\w+)"', shown(viewer, WHEEL))
    assert len(set(versions)) == 9
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
