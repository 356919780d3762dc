"""Every text of the admin's pages and messages goes through gettext.

The pages are rendered with a catalog that puts each translated text in brackets. Words outside of brackets are either
data of the samples, which the tests know, or texts that no translator will ever see.
"""

import gettext
import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils.translation import trans_real

from celery_wheel.store.model import HOUR_MS, ORIGIN, Gate, GroupLimit, LaneState
from celery_wheel.testing import VirtualWheel
from django_wheel.views import schedule_edit
from tests.admin.conftest import ADMIN, MakeClient, end, renew, shown, tallied, text_of, unreadable
from tests.admin.test_schedule_acting import FORM
from tests.admin.test_schedules import changed, definition, runs_of
from tests.contract.stores.test_groups_browsing import wait
from tests.kit.holder import NOW, Holder, place
from tests.kit.job_results import RUN, hour, leave_forecast, leave_lateness
from tests.kit.schedules import create
from tests.kit.site import celery_app

#: Attributes whose values people read or hear.
READ = {"title", "aria-label", "placeholder", "alt", "data-news"}
STATES = {"data-current", "data-stale", "data-paused", "data-keyboard", "data-selection", "data-hidden"}
#: Elements whose text is a name, a command or a message's own bytes.
LITERAL = {"code", "pre", "script", "style"}
#: The data of the samples, units, and statistics that have one name everywhere.
DATA = """
    app remind celery mail slow host everything provider root wanted operator other site nothing direct
    ms min bytes KB MB h d s p50 p90 p99 max UTC CET Europe Berlin Paris DE x id
    api code beat anna later tenant skip all asked for bad somebody
"""


class Brackets(gettext.NullTranslations):
    """A gettext catalog that puts every text in brackets."""

    def gettext(self, message: str) -> str:
        context, mark, text = message.rpartition(trans_real.CONTEXT_SEPARATOR)
        if mark and context.startswith("code of the language"):
            return "en"
        return f"⟦{text}⟧"

    def ngettext(self, singular: str, plural: str, number: int) -> str:
        return self.gettext(singular if number == 1 else plural)

    def to_language(self) -> str:
        return "en"

    def language(self) -> str:
        return "en"


@pytest.fixture
def brackets() -> Iterator[None]:
    schedule_edit.import_task_modules(celery_app)  # it activates the project's language, once in a process
    before = getattr(trans_real._active, "value", None)
    trans_real._active.value = Brackets()
    yield
    if before is None:
        del trans_real._active.value
    else:
        trans_real._active.value = before


class Texts(HTMLParser):
    """Collects the texts of a page that people read: its text and the values of some attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[str] = []
        self.text = ""  #: in one piece, because a translated text may have elements inside
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.values += [str(value) for name, value in attrs if name in READ | STATES and value]
        if tag == "input" and named.get("type") == "submit":
            self.values.append(str(named.get("value")))
        if tag in LITERAL:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in LITERAL and self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.text += f"{data} "


def unmarked(html: str) -> list[str]:
    parser = Texts()
    parser.feed(html)
    found = []
    for text in (parser.text, *parser.values):
        outside = text
        while (inner := re.sub(r"⟦[^⟦⟧]*⟧", " ", outside)) != outside:
            outside = inner
        # a name with dots, digits or dashes is data
        words = re.findall(r"[^\s,;:()/]*[A-Za-z][^\s,;:()/]*", outside)
        found += [word for word in words if word.isalpha() and word not in DATA.split()]
    return found


def content(page: str) -> str:
    """Return the part of a page that this package renders: the breadcrumbs, the messages and the content."""
    begin = page.find('<div class="breadcrumbs">')
    end = page.find(' id="footer">')  # a div until Django 5.0
    assert 0 < begin < end
    return page[begin:end]


def check(client: Client, address: str, status: int = 200) -> str:
    page = shown(client, f"{ADMIN}/{address}", status)
    own = page if "<html" not in page else content(page)
    assert "⟦" in own
    assert unmarked(own) == [], address
    return own


def test_the_check_finds_a_text_that_is_not_marked() -> None:
    assert unmarked('<p title="Late">⟦Due ⟦now⟧⟧ Nothing <code>celery</code> 3 ms</p>') == ["Nothing", "Late"]


@pytest.fixture
def messages(holder: Holder) -> list[int]:
    tallied(holder, NOW - 2 * HOUR_MS, NOW + 340, NOW + 3 * HOUR_MS, NOW + 400 * 24 * HOUR_MS)
    first, second = tallied(holder, NOW - 90_000, NOW - 61_500, task_id="wanted")
    holder.settle(ORIGIN, place(first), at_ms=NOW - 89_960)
    bad = unreadable(holder)
    (gone,) = holder.accept(NOW + 7)
    end(holder, gone, "cancelled")
    holder.apply(lanes=[LaneState(4, ORIGIN, ORIGIN, "slow")])
    waiting = [holder.accept(NOW - 9_000, group=group, task_id="wanted") for group in ("tenant:1", None)]
    for number, rows in enumerate(waiting):
        wait(holder, number, rows[0].message.group or "", rows)
    holder.apply(limits=[GroupLimit("tenant:1", 5, 100, 60_000, 3, 7_200_000, "root", NOW)])
    gates = [
        Gate("queue", "mail", "paused", 0, "provider", "root", NOW),
        Gate("all", "", "slow", 600_000, "", "root", NOW),
    ]
    holder.apply(gates=gates)
    renew(holder, clock_disputed_ms=-3_600_000, clock_skew_ms=3)
    holder.store.register_scheduler("host-b/1/2", NOW, 1)
    return [second.id, first.id, bad.id, gone.id, *[row.id for rows in waiting for row in rows]]


@pytest.mark.usefixtures("still", "brackets", "messages")
@pytest.mark.parametrize(
    "address",
    [
        "wheel/",
        "wheel/live/",
        "wheel/?shard=1",
        "wheel/?shard=7",
        "wheel/gate/",
        "wheel/gate/?verb=resume",
        "pending/",
        "pending/?task=app.remind&selected=all",
        "pending/?task=no-such",
        "pending/?q=wanted",
        "pending/?q=no-such",
        "pending/?shard=x&from=soon&after=1&task=%00",
        "history/",
        "history/?task=no-such",
        "rejected/",
        "rejected/?kind=cancelled",
        "rejected/?kind=expired",
        "rejected/?kind=lost",
        "settlement/",
        "shard/",
        "group/",
        "group/?part=no-such&sort=name",
        "group/?sort=age&after_name=x",
        "lateness/",
        "forecast/",
    ],
)
def test_a_page_has_no_unmarked_text(client_of: MakeClient, address: str) -> None:
    check(client_of("operator"), address)


@pytest.mark.usefixtures("still", "brackets")
def test_the_page_of_a_task_has_no_unmarked_text(client_of: MakeClient, messages: list[int]) -> None:
    client = client_of("operator")
    for timer_id in messages:
        check(client, f"pending/{timer_id}/")


@pytest.mark.usefixtures("still", "brackets")
def test_the_pages_of_an_empty_store_have_no_unmarked_text(client_of: MakeClient, holder: Holder) -> None:
    client = client_of("operator")
    for address in ("wheel/", "wheel/gate/", "pending/", "history/", "rejected/", "settlement/", "shard/", "group/"):
        check(client, address)
    holder.store.release(0, holder.epoch)
    check(client, "wheel/")


@pytest.mark.usefixtures("still", "brackets", "holder")
def test_the_pages_of_results_have_no_unmarked_text(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, *[hour("app.mail", ago, objective_ms=50, over=7, missed=True) for ago in range(3)])
    herd = {"second": RUN, "queue": "mail", "n": 5_000, "usual": 2.0, "limit": 9.0, "jitter_s": 60, "tasks": []}
    minute = {"minute": RUN + timedelta(minutes=5), "queue": "mail", "n": 10}
    busiest = {"second": "2027-01-15T07:00:00.000Z", "queue": "mail", "n": 9}
    drain = {"queue": "mail", "rate": 2.5, "n": 5_000, "worst_backlog": 4_998, "worst_at": RUN}
    drained = {**drain, "longest_wait_s": 2_000.0, "drained_at": RUN}
    leave_forecast(folder, {"busiest_second": busiest}, herds=[herd], minutes=[minute], drain=[drained])
    for address in ("lateness/", "lateness/?task=app.mail", "lateness/?queue=no-such", "lateness/?page=9"):
        check(viewer, address)
    for address in ("forecast/", "forecast/?queue=mail", "forecast/?queue=no-such", "forecast/?page=x", "wheel/"):
        check(viewer, address)


@pytest.mark.usefixtures("brackets", "nowhere")
def test_the_page_of_a_store_that_cannot_be_read_has_no_unmarked_text(viewer: Client) -> None:
    for address in ("wheel/", "pending/", "pending/1/"):
        check(viewer, address, 503)


@pytest.mark.usefixtures("brackets")
def test_the_menu_of_the_admin_has_no_unmarked_text(client_of: MakeClient, holder: Holder) -> None:
    page = text_of(client_of("operator").get("/admin/"))
    module = page.split('class="app-django_wheel')[1].split("</table>")[0]
    assert "⟦Pending tasks⟧" in module or "⟦pending tasks⟧" in module.lower()
    assert unmarked(f'<div class="{module}') == []


def messages_of(response: Any) -> list[str]:
    found = [str(one) for one in response.context["messages"]]
    assert found
    assert [one for one in found if unmarked(one.replace("<", ""))] == []
    return found


@pytest.mark.usefixtures("brackets")
def test_an_action_and_its_messages_have_no_unmarked_text(client_of: MakeClient, wheel: VirtualWheel) -> None:
    from django_wheel import wheel as site_wheel

    client = client_of("operator")
    for verb in ("cancel", "run_now", "reschedule", "requeue"):
        row = site_wheel.find(celery_app.send_task("site.nothing", countdown=3_600).id)[0].task.id
        page = text_of(client.post(f"{ADMIN}/pending/act/", {"verb": verb, "row": [row, 1]}))
        assert unmarked(content(page)) == [], verb
        values = {"verb": verb, "row": [row, 1], "sure": "yes", "reason": "bad"}
        if verb == "reschedule":
            for eta in ("", "soon", "2020-01-01T00:00", "9999-12-31T23:59"):
                page = text_of(client.post(f"{ADMIN}/pending/act/", {**values, "eta": eta}))
                assert unmarked(content(page)) == [], eta
        for _ in range(2):
            messages_of(client.post(f"{ADMIN}/pending/act/", {**values, "eta": "2040-01-15T09:00"}, follow=True))
    messages_of(client.post(f"{ADMIN}/pending/act/", {"verb": "cancel"}, follow=True))
    messages_of(client.post(f"{ADMIN}/pending/act/", {"verb": "cancel", "row": range(600)}, follow=True))


@pytest.mark.usefixtures("brackets")
def test_a_pause_and_its_messages_have_no_unmarked_text(client_of: MakeClient, wheel: VirtualWheel) -> None:
    client = client_of("operator")
    for verb, more in (("pause", {}), ("resume", {"over": "10"}), ("resume", {}), ("resume", {})):
        for scope, name in (("queue", "mail"), ("all", "")):
            values = {"verb": verb, "scope": scope, "name": name, **more}
            messages_of(client.post(f"{ADMIN}/wheel/gate/", values, follow=True))
    for scope, name in (("queue", ""), ("task", ""), ("all", "mail")):
        page = text_of(client.post(f"{ADMIN}/wheel/gate/", {"verb": "pause", "scope": scope, "name": name}))
        assert unmarked(content(page)) == []


@pytest.mark.usefixtures("brackets", "silent")
def test_a_request_without_an_answer_has_no_unmarked_text(client_of: MakeClient, holder: Holder) -> None:
    values = {"verb": "cancel", "row": holder.accept(NOW)[0].id, "sure": "yes"}
    messages_of(client_of("operator").post(f"{ADMIN}/pending/act/", values, follow=True))


@pytest.mark.usefixtures("still", "brackets")
def test_the_pages_of_schedules_have_no_unmarked_text(client_of: MakeClient, holder: Holder) -> None:
    client = client_of("operator")
    check(client, "schedule/")
    parts = [{"kind": "weekdays", "days": ["sun"]}, {"kind": "holidays", "country": "DE"}]
    every = {"without": {"kind": "any_of", "parts": parts}, "gap": "skip", "fold": "both", "times": 500}
    policies = {"catch_up": "all", "catch_up_ms": 60_000, "overlap": "skip", "jitter_ms": 1_000}
    (first,) = create(holder, "report-1", definition=definition("a.b", recurrence=every, **policies), source="beat")
    runs_of(holder, first)
    holder.apply(revisions=[change for _after, change in [changed(first, definition=definition("a.c"))]])
    create(holder, "report-2", definition="{", broken=True, note="5", next_ms=None)
    create(holder, "report-3", definition=definition("a.b"), paused=True, note="5", next_ms=None)
    for address in ("", "?part=no-such", "?state=paused", "?state=lost&source=lost", "?selected=all"):
        check(client, f"schedule/{address}")
    for name in ("report-1", "report-2", "report-3"):
        check(client, f"schedule/one/?name={name}")
        check(client, f"schedule/edit/?name={name}")
    check(client, "schedule/edit/")


@pytest.mark.usefixtures("brackets")
def test_changes_of_schedules_and_messages_have_no_unmarked_text(client_of: MakeClient, wheel: VirtualWheel) -> None:
    client, act = client_of("operator"), f"{ADMIN}/schedule/act/"
    wrong = {**FORM, "name": "", "zone": "UTC", "kind": "instants", "instants": "x", "times": "x", "calendar": "x"}
    for values in (wrong, {**FORM, "name": "report-1", "kind": "interval"}, {**FORM, "start": "2027-03-28 02:30"}):
        assert unmarked(content(text_of(client.post(f"{ADMIN}/schedule/edit/", values)))) == []
    for _ in range(2):
        client.post(f"{ADMIN}/schedule/edit/", {**FORM, "name": "report-1"})
    for _ in range(2):
        values = {**FORM, "name": "report-1", "hour": "5"}
        messages_of(client.post(f"{ADMIN}/schedule/edit/?name=report-1", values, follow=True))
    for values in ({}, {"queue": "x", "defaults": "queue"}):
        wrong = {"verb": "change", "row": "report-1", "sure": "yes", **values}
        assert unmarked(content(text_of(client.post(act, wrong)))) == []
    for verb in ("pause", "resume", "trigger", "backfill", "rollback", "change", "delete"):
        row = {"verb": verb, "row": "report-1", "revision": "1", "priority": "5"}
        assert unmarked(content(text_of(client.post(act, row)))) == [], verb
        for values in ({"begin": "x", "end": "2026-01-02"}, {"begin": "2026-01-02 00:00", "end": "2026-01-01 00:00"}):
            if verb == "backfill":
                assert unmarked(content(text_of(client.post(act, {**row, **values, "sure": "yes"})))) == []
        if verb not in ("trigger", "backfill"):
            for _ in range(2):
                messages_of(client.post(act, {**row, "sure": "yes"}, follow=True))
    messages_of(client.post(act, {"verb": "pause", "row": "no-such", "sure": "yes"}, follow=True))
    wheel.app.wheel.schedules.create_many({"crm-1": {"recurrence": 60, "task": "a.b"}}, source="crm")
    messages_of(client.post(act, {"verb": "change", "row": "crm-1"}, follow=True))
    messages_of(client.post(act, {"verb": "pause"}, follow=True))
    messages_of(client.post(act, {"verb": "pause", "row": range(600)}, follow=True))


@pytest.mark.parametrize("path", sorted(Path("django_wheel/static/django_wheel").glob("*.js")), ids=str)
def test_a_script_has_no_text_of_its_own(path: Path) -> None:
    """The template passes texts to a script, so a script's strings are names: of one word, or an address."""
    strings = re.findall(r'"([^"\n]*)"', re.sub(r"//.*", "", path.read_text(encoding="utf-8")))
    assert strings
    assert [one for one in strings if re.search(r"[a-z] [a-z]", one) and one != "use strict"] == []
