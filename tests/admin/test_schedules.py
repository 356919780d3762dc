"""The pages of schedules that read the store: the list, and one schedule with its runs and revisions."""

import json
import re
from dataclasses import asdict, replace
from html import unescape
from typing import Any

import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel.recurring.definition import to_text
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.schedule_model import Revision, RunEnd, Schedule, Skip
from celery_wheel.store.sql.browse import schedules as browsing
from celery_wheel.store.sql.store import SqlStore
from django_wheel.project import project_wheel
from tests.admin.conftest import ADMIN, MakeClient, end, shown, text_of
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, place
from tests.kit.schedules import create, occurrence, revision

SCHEDULE = f"{ADMIN}/schedule/"
DAY = 86_400_000


def definition(task: str = "app.report", zone: str = "Europe/Paris", **parts: Any) -> str:
    recurrence = {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0", "hour": "9"}, "zone": zone}
    return to_text({"recurrence": {**recurrence, **parts.pop("recurrence", {})}, "task": task, **parts})


def one(client: Client, name: str, status: int = 200) -> str:
    response = client.get(f"{SCHEDULE}one/", {"name": name})
    assert response.status_code == status
    return text_of(response)


def rows(page: str, table: str = "wheel-schedules") -> list[str]:
    body = page.split(f'id="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", f"<tr{line}")).split()) for line in body.split("<tr")[1:]]


@pytest.mark.usefixtures("still")
def test_the_list_describes_each_schedule_in_words(viewer: Client, holder: Holder) -> None:
    create(holder, "nightly/report", definition=definition(), next_ms=NOW + DAY, last_ms=NOW)
    create(holder, "held", definition=definition(), paused=True, note="provider is down", next_ms=None)
    create(holder, "wrong", definition="{", broken=True, note="it is no JSON", next_ms=None, source="beat")
    create(holder, "over", definition=definition(), next_ms=None)
    held, nightly, over, wrong = rows(shown(viewer, SCHEDULE))
    assert nightly == (
        "nightly/report app.report every day at 09:00 Europe/Paris active 2027-01-16 09:00:00 2027-01-15 09:00:00 0 api"
    )
    assert "paused provider is down" in held
    assert "broken it is no JSON" in wrong
    assert wrong.endswith(" beat")
    assert "ended" in over


def test_pending_occurrences_are_counted(viewer: Client, holder: Holder) -> None:
    busy, _idle = create(holder, "busy", "idle", definition=definition())
    made = [occurrence(holder, busy, NOW + n) for n in range(3)]
    holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made])
    assert [line.split()[-2] for line in rows(shown(viewer, SCHEDULE))] == ["3", "0"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"part": "REPORT"}, ["report-a", "report-b"]),
        ({"state": "paused"}, ["held"]),
        ({"state": "broken"}, ["wrong"]),
        ({"state": "active"}, ["from-beat", "report-a", "report-b"]),
        ({"source": "beat"}, ["from-beat"]),
        ({"task": "app.clean"}, ["report-b"]),
        ({"task": "app.clean", "state": "paused"}, []),
    ],
)
def test_filters_narrow_the_list(viewer: Client, holder: Holder, query: dict[str, str], names: list[str]) -> None:
    create(holder, "report-a", definition=definition())
    create(holder, "report-b", definition=definition("app.clean"))
    create(holder, "held", definition=definition(), paused=True, next_ms=None)
    create(holder, "wrong", definition="{}", broken=True, next_ms=None)
    create(holder, "from-beat", definition=definition(), source="beat")
    page = text_of(viewer.get(SCHEDULE, query))
    assert re.findall(r"one/\?name=([\w-]+)", page) == names
    assert ("No schedules match." in page) is (names == [])


@pytest.mark.parametrize("query", [{"state": "asleep"}, {"source": "\0"}, {"part": "\0"}, {"task": "a\0"}])
def test_a_filter_without_meaning_is_told_and_ignored(viewer: Client, holder: Holder, query: dict[str, str]) -> None:
    create(holder, "report", definition=definition())
    page = text_of(viewer.get(SCHEDULE, query))
    assert f"{next(iter(query))} must be" in page
    assert "?name=report" in page


def test_schedules_page_by_name(viewer: Client, holder: Holder) -> None:
    create(holder, *[f"s/{n:03} ü" for n in range(250)], definition=definition())
    seen, address = [], "?part=s"
    while address:
        page = shown(viewer, SCHEDULE + address)
        seen += rows(page)
        found = re.search(r'<a href="([^"]+)" rel="next"', page)
        address = found[1].replace("&amp;", "&") if found else ""
    assert len(seen) == len(set(seen)) == 250


def test_a_page_costs_few_statements_however_many_schedules_there_are(
    viewer: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(holder, *[f"s-{n:04}" for n in range(1_000)], definition=definition())
    monkeypatch.setattr(browsing, "SCAN", 50)
    shown(viewer, SCHEDULE)
    opened: Any = project_wheel().store  # one of SQL
    for query, most in (("", 3), ("?part=no-such", 12), ("one/?name=s-0500", 8)):
        with reads_of(opened) as executed:
            page = shown(viewer, SCHEDULE + query)
        # Once a second a process checks that the store is still the same.
        assert len([text for text in executed if "wheel_meta" not in text]) <= most, query
        assert ("the search continues on the next page" in page) is ("part=" in query)


@freeze_time("2013-11-02T12:00:00Z")
def test_the_next_instants_are_in_both_zones_with_the_days_of_a_clock_change(viewer: Client, holder: Holder) -> None:
    at_half_past_one = {"spec": {"kind": "crontab", "minute": "30", "hour": "1"}, "fold": "both"}
    create(holder, "airline", definition=definition(zone="America/New_York", recurrence=at_half_past_one))
    page = one(viewer, "airline")
    lines = rows(page.replace('class="wheel-lines wheel-next"', 'id="next"'), "next")
    assert lines[:3] == [
        "Sun 2013-11-03 01:30:00 EDT Sun 2013-11-03 06:30:00 CET clocks -1 h",
        "Sun 2013-11-03 01:30:00 EST Sun 2013-11-03 07:30:00 CET clocks -1 h",
        "Mon 2013-11-04 01:30:00 EST Mon 2013-11-04 07:30:00 CET",
    ]
    assert len(lines) == 20
    assert "times that occur twice run twice" in page
    assert '<span class="wheel-in-zone">America/New_York</span>' in page


@freeze_time("2026-11-26T12:00:00Z")
def test_left_out_instants_are_shown_with_the_reason(viewer: Client, holder: Holder) -> None:
    without = {"without": {"kind": "weekdays", "days": ["sat", "sun"]}}
    create(holder, "weekly", definition=definition(recurrence=without))
    page = one(viewer, "weekly")
    assert re.search(r"wheel-left-out.*Sat 2026-11-28 09:00:00 CET.*excluded", page)
    assert "every day at 09:00, except Saturday, Sunday" in page


def runs_of(holder: Holder, schedule: Schedule) -> dict[str, int]:
    """Make a run of each kind; return the instants by kind."""
    at = {kind: NOW - (9 - n) * DAY for n, kind in enumerate(("on-time", "late", "failed", "cancelled", "pending"))}
    made = {kind: occurrence(holder, schedule, at_ms) for kind, at_ms in at.items()}
    holder.apply(rows=[row for row, _ in made.values()], runs=[run for _, run in made.values()])
    on_time, late, failed, cancelled, _pending = (row for row, _run in made.values())
    holder.settle(ORIGIN, place(on_time), at_ms=on_time.due_ms + 40)
    holder.settle(place(on_time), place(late), at_ms=late.due_ms + 90_000)
    for row, kind in ((failed, "rejected"), (cancelled, "cancelled")):
        end(holder, row, kind)
    skips = {"paused": NOW - 3 * DAY, "missed": NOW - 2 * DAY}
    holder.apply(skips=[Skip(schedule.id, at_ms, at_ms + DAY // 2, 2, why, NOW) for why, at_ms in skips.items()])
    return at | skips


@pytest.mark.usefixtures("still")
def test_a_schedule_that_waits_or_starves_says_so(viewer: Client, holder: Holder) -> None:
    """The clock went back behind its last instant; each run of the other one was cancelled by the next."""
    create(holder, "silent", definition=definition(), next_ms=NOW + 2 * DAY, last_ms=NOW + DAY)
    assert "It waits until then, since no instant runs twice." in one(viewer, "silent")
    starved, other = create(holder, "starved", "other", definition=definition(overlap="cancel_running"), next_ms=NOW)
    for schedule, cancelled in ((starved, 3), (other, 2)):
        made = [occurrence(holder, schedule, NOW - n * DAY) for n in range(5)]
        holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made])
        ends = [RunEnd(run.timer_id, run.at_ms + DAY) for _, run in made[1 : cancelled + 1]]
        holder.apply(run_ends=ends)
    assert "Each of the last 3 runs was cancelled by the next one" in one(viewer, "starved")
    assert "was cancelled by the next one" not in one(viewer, "other")


@pytest.mark.usefixtures("still")
def test_runs_and_skips_are_marks_with_a_shape_of_their_own_and_a_table(viewer: Client, holder: Holder) -> None:
    (schedule,) = create(holder, "report", definition=definition())
    runs_of(holder, schedule)
    page = one(viewer, "report")
    chart = page.split('<svg class="wheel-runs"')[1].split("</svg>")[0]
    kinds = re.findall(r'<g class="wheel-run-([\w-]+)"', chart)
    assert kinds == ["on-time", "late", "failed", "skipped", "pending", "skipped", "missed"]
    shapes = re.findall(r"</title>(<\w+[^>]*>.*?)</g>", chart, re.DOTALL)
    assert len(set(shapes)) == 6, "each kind has a shape of its own"
    assert "<title id=" in chart
    assert "on time: 1. late: 1. pending: 1. skipped: 2. missed: 1. failed to run: 1." in " ".join(chart.split())
    lines = rows(page.replace('id="wheel-runs-table"', ""), "content-main")
    table = [line for line in lines if "asked for" in line or "paused" in line or "late" in line]
    assert any("late 1 min 30 s" in line for line in lines)
    assert any("failed to run" in line and "asked for" in line for line in table)
    assert any("skipped, 2 instants" in line and "the schedule was paused" in line for line in lines)


@pytest.mark.usefixtures("still")
def test_the_chart_has_the_last_sixty_and_every_mark_is_inside(viewer: Client, holder: Holder) -> None:
    (schedule,) = create(holder, "report", definition=definition())
    made = [occurrence(holder, schedule, NOW - n * DAY) for n in range(80)]
    holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made])
    holder.put_offset(Position(NOW + 1, holder.highest_seq))
    chart = one(viewer, "report").split('<svg class="wheel-runs"')[1].split("</svg>")[0]
    places = [float(x) for x in re.findall(r'transform="translate\(([\d.]+) ', chart)]
    assert len(places) == 60
    assert places == sorted(places)
    assert places[0] > 0
    assert places[-1] < 720


def changed(before: Schedule, **values: Any) -> tuple[Schedule, Revision]:
    after = replace(before, revision=before.revision + 1, **values)
    return after, revision(after, "changed", before=json.dumps(asdict(before)), reason="later", at_ms=NOW + 1)


@pytest.mark.usefixtures("still")
def test_revisions_tell_who_changed_which_value(operator: Client, holder: Holder) -> None:
    (first,) = create(holder, "report", definition=definition())
    second, change = changed(first, definition=definition(overlap="skip"))
    third, back = changed(second, definition=definition())
    holder.apply(schedules=[third], revisions=[change, back])
    page = one(operator, "report")
    latest, middle, created = rows(page, "wheel-revisions")
    assert '3 changed 2027-01-15 09:00:00.001 anna later overlap "skip"' in latest
    assert "Roll back" not in latest
    assert "Roll back" in middle
    assert "created" in created
    assert "Roll back" not in created, "its definition is that of today"
    assert 'name="revision" value="2"' in page


@pytest.mark.parametrize(("kind", "acts"), [("viewer", False), ("operator", True)])
def test_only_operators_are_offered_actions(client_of: MakeClient, holder: Holder, kind: str, acts: bool) -> None:
    (first,) = create(holder, "report", definition=definition())
    second, change = changed(first, definition=definition(overlap="skip"))
    holder.apply(schedules=[second], revisions=[change])
    client = client_of(kind)
    for page in (shown(client, SCHEDULE), one(client, "report")):
        assert ("schedule/act/" in page) is acts
        assert ("schedule/edit/" in page) is acts
        assert ('name="row"' in page) is acts
        assert ("<button" in page.partition('id="content-main"')[2].partition("<footer")[0]) is acts


@pytest.mark.usefixtures("still")
def test_a_deleted_schedule_keeps_its_page(viewer: Client, holder: Holder) -> None:
    (gone,) = create(holder, "gone", definition=definition())
    runs_of(holder, gone)
    deleted = replace(gone, revision=2)
    before = json.dumps(asdict(gone))
    holder.apply(removed_schedules=[gone.id], revisions=[revision(deleted, "deleted", before=before)])
    page = one(viewer, "gone")
    assert "This schedule is deleted." in page
    assert "wheel-run-late" in page
    assert "deleted" in rows(page, "wheel-revisions")[0]


def test_an_entry_that_beat_runs_is_shown_with_the_reason(operator: Client, holder: Holder) -> None:
    text = to_text({"task": "app.market", "base": "its schedule decides itself when it is due"})
    create(holder, "market", definition=text, source="beat", broken=True, note="its schedule decides", next_ms=None)
    (line,) = rows(shown(operator, SCHEDULE))
    assert "market app.market" in line
    assert "run by Beat its schedule decides" in line
    page = one(operator, "market")
    assert "Beat runs this entry: its schedule decides." in page
    assert "Pause…" not in page


@pytest.mark.parametrize(
    "text", ["{", "[]", '"text"', "{}", '{"task": 5}', '{"recurrence": {"kind": "any"}}', "[" * 5_000]
)
def test_a_definition_that_cannot_be_read_disturbs_no_page(operator: Client, holder: Holder, text: str) -> None:
    create(holder, "wrong", definition=text, broken=True, note="cannot be read", next_ms=None)
    create(holder, "right", definition=definition())
    assert len(rows(shown(operator, SCHEDULE))) == 2
    assert "This schedule does not run: cannot be read." in one(operator, "wrong")
    assert operator.get(f"{SCHEDULE}edit/", {"name": "wrong"}).status_code == 200


TASK = '"task":"app.report"'


@pytest.mark.parametrize("text", [f'{{{TASK},"x', f"[{{{TASK}}}]", f'{{"options":null,{TASK}}}', TASK])
def test_a_definition_that_cannot_be_read_disturbs_no_filter(viewer: Client, holder: Holder, text: str) -> None:
    create(holder, "a-wrong", definition=text, broken=True, note="cannot be read", next_ms=None)
    create(holder, "right", definition=definition())
    assert "?name=right" in text_of(viewer.get(SCHEDULE, {"task": "app.report"}))
    assert "right" in {one.name for one in project_wheel().schedules.list(task="app.report")}


@pytest.mark.usefixtures("still")
def test_a_revision_that_cannot_be_read_is_not_rolled_back_to(operator: Client, holder: Holder) -> None:
    (first,) = create(holder, "report", definition="{", broken=True, note="cannot be read", next_ms=None)
    second, change = changed(first, definition=definition(), broken=False, note="", next_ms=NOW)
    holder.apply(schedules=[second], revisions=[change])
    assert "Roll back" not in one(operator, "report")
    values = {"verb": "rollback", "row": "report", "revision": "1", "sure": "yes"}
    page = text_of(operator.post(f"{SCHEDULE}act/", values, follow=True))
    assert "the definition of revision 1 cannot be read" in page


def test_a_schedule_of_another_source_is_rolled_back_there(operator: Client, holder: Holder) -> None:
    (first,) = create(holder, "report", definition=definition(), source="beat")
    second, change = changed(first, definition=definition(overlap="skip"))
    holder.apply(schedules=[second], revisions=[change])
    assert "Roll back" not in one(operator, "report")


@pytest.mark.parametrize("query", [{}, {"name": ""}, {"name": "no-such"}, {"name": "a\0b"}])
def test_a_name_that_the_store_does_not_have_is_404(operator: Client, store: SqlStore, query: dict[str, str]) -> None:
    assert operator.get(f"{SCHEDULE}one/", query).status_code == 404
    if query:
        assert operator.get(f"{SCHEDULE}edit/", query).status_code == 404


def test_a_name_may_have_any_character(viewer: Client, holder: Holder) -> None:
    create(holder, 'a/b?c&d=é "<i>x</i>"\u202e%2F', definition=definition())
    page = shown(viewer, SCHEDULE)
    assert "<i>" not in page
    assert "\u202e" not in page.split("<tbody>")[1]
    (link,) = re.findall(r'href="([^"]+one/\?name=[^"]+)"', page)
    assert "every day at 09:00" in shown(viewer, link)


@pytest.mark.usefixtures("still")
def test_the_pages_can_be_read_by_a_screen_reader(operator: Client, holder: Holder) -> None:
    (schedule,) = create(holder, "report", definition=definition())
    runs_of(holder, schedule)
    pages = [shown(operator, SCHEDULE), one(operator, "report"), shown(operator, f"{SCHEDULE}edit/?name=report")]
    for page in pages:
        found = page.partition('id="content-main"')[2]
        assert found.count("<th ") == found.count('<th scope="')
        assert "<th>" not in found
        assert len(re.findall('<div class="wheel-scroll"[^>]*><table', found)) == found.count("<table")
        ids = re.findall(r' id="([^"]+)"', found)
        assert len(ids) == len(set(ids))
    form = pages[2]
    for field in re.findall(r"<(?:input|select|textarea)[^>]*>", form.partition('id="content-main"')[2]):
        name = re.search(r' id="([^"]+)"', field)
        if 'type="hidden"' not in field and 'type="radio"' not in field and 'type="checkbox"' not in field:
            assert name is not None, field
            assert f'for="{name[1]}"' in form or "aria-label" in field, field
