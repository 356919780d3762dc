"""Cancel, run now, reschedule and requeue from the admin: the confirmation, the effect, and the messages.

The admin pauses and resumes queues, tasks and everything.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, connection, connections
from django.test import Client

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Answer, Change, Gate
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from tests.admin.conftest import ADMIN, Configure, MakeClient, end, shown, text_of, unreadable
from tests.kit.holder import NOW, Holder
from tests.kit.site import celery_app

ACT = f"{ADMIN}/pending/act/"
LATER = NOW + 10 * 366 * 86_400_000

Said = list[tuple[str, str]]
BeginAnswering = Callable[[dict[str, str]], list[dict[str, Any]]]


def post(client: Client, verb: str, rows: Any, **more: Any) -> Said:
    response = client.post(ACT, {"verb": verb, "row": rows, "sure": "yes", **more}, follow=True)
    assert response.redirect_chain, text_of(response)
    return [(one.level_tag, str(one)) for one in response.context["messages"]]


def rows_of(task_ids: list[str]) -> list[int]:
    return [found.task.id for id_ in task_ids for found in project_wheel().find(id_)]


def answering(holder: Holder, verdicts: dict[str, str], asked: list[dict[str, Any]]) -> Callable[[], None]:
    """Return a turn of a holder that answers ``verdicts``, or else ``done``, and adds each command to ``asked``."""

    def turn() -> None:
        for item in holder.store.read_inbox(holder.shard, 10):
            given = json.loads(item.payload)
            asked.append({"kind": item.kind, **given})
            said = {name: verdicts.get(name, "done") for name in given["task_ids"]}
            change = Change(inbox=[item.id], answers=[Answer(given["id"], said, 0)])
            holder.store.apply(holder.shard, holder.epoch, change)

    return turn


@pytest.fixture
def answer(holder: Holder, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> BeginAnswering:
    second = Holder(store, 1)

    def begin(verdicts: dict[str, str]) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        turns = [answering(holder, verdicts, asked), answering(second, dict.fromkeys(verdicts, "unknown"), asked)]
        monkeypatch.setattr(project_wheel(), "turn", lambda: [turn() for turn in turns])
        return asked

    return begin


def send(count: int = 1, **options: Any) -> list[str]:
    return [celery_app.send_task("site.nothing", (n,), **{"countdown": 3_600, **options}).id for n in range(count)]


def test_selected_tasks_are_cancelled_after_a_confirmation(operator: Client, wheel: VirtualWheel) -> None:
    stays, *goes = send(3)
    rows = rows_of(goes)
    back = f"{ADMIN}/pending/?task=site.nothing"
    page = text_of(operator.post(ACT, {"verb": "cancel", "row": rows, "back": back}))
    assert "<h1>Cancel 2 tasks?</h1>" in page
    assert all(one in page for one in goes)
    assert stays not in page
    assert len(wheel.pending) == 3, "nothing is done before it is confirmed"
    form = dict(re.findall(r'type="hidden" name="(verb|back|sure)" value="([^"]*)"', page))
    again = re.findall(r'name="row" value="(\d+)"', page)
    assert operator.post(ACT, {**form, "row": again, "reason": "sent twice"})["Location"] == back
    assert [one.id for one in wheel.pending] == [stays]
    (outcome,) = project_wheel().find(goes[0])[0].outcomes
    assert (outcome.kind, outcome.actor, outcome.reason) == ("cancelled", "operator", "sent twice")
    assert ">2 tasks are cancelled.</li>" in text_of(operator.get(back))
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.object_repr) == ("operator", "Cancel: 2 tasks")
    assert entry.change_message == f"Cancel: 2 done; reason: sent twice; tasks: {', '.join(goes)}"
    assert "Cancel: 2 tasks" in text_of(operator.get("/admin/"))


def test_run_now_and_reschedule(operator: Client, wheel: VirtualWheel) -> None:
    first, second = send(2)
    assert post(operator, "run_now", rows_of([first])) == [("success", "1 task is dispatched now.")]
    assert [one.id for one in wheel.run_due()] == [first]
    said = post(operator, "reschedule", rows_of([second]), eta="2040-01-15T09:00")
    assert said == [("success", "1 task is rescheduled.")]
    (waits,) = wheel.pending
    assert waits.eta == datetime(2040, 1, 15, 8, tzinfo=UTC), "the admin's time zone is Berlin"
    entries = LogEntry.objects.order_by("pk").values_list("object_repr", "object_id")
    assert list(entries) == [
        (f"Run now: {first}", str(rows_of([first])[0])),
        (f"Reschedule: {second}", str(rows_of([second])[0])),
    ]


def test_a_dispatched_task_is_too_late_to_cancel(operator: Client, wheel: VirtualWheel) -> None:
    (left,) = send()
    rows = rows_of([left])
    wheel.advance(hours=2)
    for verb, more in (("cancel", {}), ("run_now", {}), ("reschedule", {"eta": "2040-01-15T09:00"})):
        said = f"1 task was too late: it has been handed to the broker, or may have been ({left})."
        assert post(operator, verb, rows, **more) == [("warning", said)]
    assert post(operator, "requeue", rows) == [("warning", f"1 task is not rejected any more ({left}).")]
    assert wheel.run_due() == []


@pytest.mark.parametrize("setting", [True, False])
def test_an_action_is_done_at_once_although_the_project_schedules_in_transactions(
    operator: Client, wheel: VirtualWheel, conf: Configure, monkeypatch: pytest.MonkeyPatch, setting: bool
) -> None:
    """A request within a transaction would have no result."""
    ids = send()
    conf(wheel_transactional=setting)
    monkeypatch.setattr(type(celery_app._wheel_inbox), "in_transaction", True, raising=False)
    assert post(operator, "cancel", rows_of(ids)) == [("success", "1 task is cancelled.")]


@pytest.mark.django_db(transaction=True)
def test_no_transaction_of_a_view(client_of: MakeClient, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a store in the same SQLite file could not answer while a transaction is open."""
    client, ids = client_of("operator"), send()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    turn, during = project_wheel().turn, list[bool]()

    def watched() -> None:
        during.append(connection.in_atomic_block)
        assert turn is not None
        turn()

    monkeypatch.setattr(project_wheel(), "turn", watched)
    assert post(client, "cancel", rows_of(ids)) == [("success", "1 task is cancelled.")]
    assert during
    assert not any(during)


def test_a_rejected_task_is_requeued(operator: Client, holder: Holder, answer: BeginAnswering) -> None:
    row, other = (holder.accept(LATER, task_id=one)[0] for one in ("first", "other"))
    end(holder, row)
    end(holder, other)
    page = shown(operator, f"{ADMIN}/rejected/")
    assert f'name="row" value="{row.id}"' in page
    assert "Cancel" not in page
    assert "<h1>Requeue 2 tasks?</h1>" in text_of(operator.post(ACT, {"verb": "requeue", "row": [row.id, other.id]}))
    asked = answer({"first": "too_late"})
    done, late = post(operator, "requeue", [row.id, other.id], reason="the queue is there now")
    assert (done, late[0]) == (("success", "1 task is requeued."), "warning")
    assert late[1] == "1 task is not rejected any more (first)."
    assert {(one["kind"], one["actor"], one["reason"]) for one in asked} == {
        ("requeue", "operator", "the queue is there now")
    }


def test_each_kind_of_result_has_its_own_message(operator: Client, holder: Holder, answer: BeginAnswering) -> None:
    rows = [holder.accept(LATER, task_id=f"id{n}")[0].id for n in range(6)]
    answer({"id1": "too_late", "id4": "unknown", "id5": "unknown"})
    assert post(operator, "cancel", rows) == [
        ("success", "3 tasks are cancelled."),
        ("warning", "1 task was too late: it has been handed to the broker, or may have been (id1)."),
        (
            "warning",
            "2 tasks are unknown to the wheel; those that arrive within a day will not be dispatched (id4, id5).",
        ),
    ]


def test_a_second_cancel_of_a_task_results_in_already(operator: Client, wheel: VirtualWheel) -> None:
    first, second = send(2)
    assert post(operator, "cancel", rows_of([first])) == [("success", "1 task is cancelled.")]
    assert post(operator, "cancel", rows_of([first, second])) == [
        ("success", "1 task is cancelled."),
        ("info", "1 task was cancelled by an earlier request and will not be dispatched."),
    ]
    assert LogEntry.objects.first().change_message.startswith("Cancel: 1 already, 1 done; ")  # type: ignore[union-attr]


def test_two_hundred_tasks_are_cancelled_at_once(operator: Client, holder: Holder, answer: BeginAnswering) -> None:
    tasks = [holder.accept(LATER + n, task_id=f"id{n:03}")[0] for n in range(200)]
    rows = [one.id for one in reversed(tasks)]
    page = text_of(operator.post(ACT, {"verb": "cancel", "row": rows}))
    assert "<h1>Cancel 200 tasks?</h1>" in page
    assert re.findall(r"<code>(id\d+)</code>", page) == [f"id{n:03}" for n in range(20)]
    assert "… and 180 more tasks." in page
    assert page.count('name="row"') == 200
    answer(dict.fromkeys([f"id{n:03}" for n in range(7)], "too_late"))
    done, late = post(operator, "cancel", rows)
    assert done == ("success", "193 tasks are cancelled.")
    assert late[1].startswith("7 tasks were too late: they have been handed")
    assert late[1].endswith("(id000, id001, id002, id003, id004 …).")


@pytest.mark.usefixtures("silent")
def test_a_request_without_an_answer_is_reported(operator: Client, holder: Holder) -> None:
    row = holder.accept(LATER)[0].id
    for verb, more in (("cancel", {}), ("run_now", {}), ("reschedule", {"eta": "2040-01-01T00:00"}), ("requeue", {})):
        ((level, text),) = post(operator, verb, row, **more)
        assert level == "error"
        assert text.startswith("1 task had no answer: no scheduler answered for shard 0, 1 within 0.05 s: none runs")
        assert text.endswith("start a scheduler: celery -A proj beat -S wheel.")
    assert holder.store.read_inbox(0, 10) == holder.store.read_inbox(1, 10) == []
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("silent")
def test_tasks_of_a_silent_shard_are_named(operator: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [holder.accept(LATER, task_id=one)[0].id for one in ("mine", "elsewhere")]
    monkeypatch.setattr(project_wheel(), "turn", answering(holder, {"elsewhere": "unknown"}, []))
    done, failed = post(operator, "cancel", rows)
    assert done == ("success", "1 task is cancelled.")
    assert failed[0] == "error"
    assert failed[1].startswith("1 task had no answer: no scheduler answered for shard 1")
    assert "tasks: mine" in LogEntry.objects.get().change_message


def test_a_store_that_fails_is_reported(operator: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    row = holder.accept(LATER)[0].id

    def failing(*_: Any) -> list[int]:
        raise StoreError("the disk is <full>")

    monkeypatch.setattr(SqlStore, "put_commands", failing)
    ((level, text),) = post(operator, "cancel", row)
    assert level == "error"
    assert text.endswith("Cause: the disk is <full>; nothing of the request (cancel) will happen.")


@pytest.mark.usefixtures("nowhere")
def test_a_missing_store_is_reported(operator: Client) -> None:
    for more in ({}, {"sure": "yes"}):
        response = operator.post(ACT, {"verb": "cancel", "row": 1, **more}, follow=True)
        ((level, text),) = [(one.level_tag, str(one)) for one in response.context["messages"]]
        assert level == "error"
        assert "there is no store at" in text
        assert response.status_code == 503, "of the page to which it leads back"


def test_rows_that_are_not_in_the_store_are_left_out(operator: Client, holder: Holder, answer: BeginAnswering) -> None:
    answer({})
    row = holder.accept(LATER, task_id="real")[0].id
    forged = ["x", "-1", "9" * 18, "9" * 40, "٣", "1e3", "<b>", ""]
    (said,) = post(operator, "cancel", forged)
    assert said == ("warning", "Nothing was done. 8 selected tasks are not in the store any more.")
    assert post(operator, "cancel", [*forged, row, row]) == [
        ("success", "1 task is cancelled."),
        ("warning", "8 selected tasks are not in the store any more."),
    ]
    (said,) = post(operator, "cancel", [])
    assert said == ("warning", "Nothing was done, because no task was selected. Select tasks first.")
    (said,) = post(operator, "run_now", list(range(501)))
    assert said[1].startswith("Nothing was done, because at most 500 tasks can be selected at once, got 501.")
    assert said[1].endswith("celery -A proj wheel run-now")


def test_an_unreadable_message_cannot_be_changed(operator: Client, holder: Holder) -> None:
    bad = unreadable(holder)
    assert 'name="row"' not in shown(operator, f"{ADMIN}/rejected/")
    assert "Requeue" not in shown(operator, f"{ADMIN}/pending/{bad.id}/")
    (said,) = post(operator, "requeue", bad.id)
    assert said == ("warning", "Nothing was done. 1 selected task has no task id and cannot be changed.")


def test_an_unknown_action_is_refused(operator: Client, store: SqlStore) -> None:
    for verb in ("", "delete", "CANCEL", "complete"):
        assert operator.post(ACT, {"verb": verb, "row": 1, "sure": "yes"}).status_code == 400, verb


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "?x", "/\\evil", ""]
)
def test_a_redirect_leads_to_this_site_only(operator: Client, store: SqlStore, back: str) -> None:
    for verb, page in (("cancel", "pending"), ("requeue", "rejected")):
        assert operator.post(ACT, {"verb": verb, "back": back})["Location"] == f"{ADMIN}/{page}/"


@pytest.mark.parametrize(
    ("eta", "says"),
    [
        ("", "This field is required."),
        ("soon", "Enter a valid date/time."),
        ("2020-01-01T00:00", "The time is in the past."),
        ("0001-01-01T00:00", "The time is in the past."),
        ("9999-12-31T23:59", "The time must be before the year 9999."),
        ("2040-03-25T02:30", "it may be ambiguous or it may not exist"),
        ("2040-10-28T02:30", "it may be ambiguous or it may not exist"),
    ],
)
def test_an_invalid_time_is_requested_again(operator: Client, holder: Holder, eta: str, says: str) -> None:
    row = holder.accept(LATER)[0].id
    page = text_of(operator.post(ACT, {"verb": "reschedule", "row": row, "sure": "yes", "eta": eta, "reason": "why"}))
    assert says in unescape(page)
    assert 'value="why"' in page
    assert "Time zone: Europe/Berlin" in page
    assert holder.store.read_inbox(0, 10) == []


@pytest.mark.parametrize(("reason", "says"), [("r" * 501, "at most 500 characters"), ("\x00", "Null characters")])
def test_an_invalid_reason_is_requested_again(operator: Client, holder: Holder, reason: str, says: str) -> None:
    row = holder.accept(LATER)[0].id
    assert says in text_of(operator.post(ACT, {"verb": "cancel", "row": row, "sure": "yes", "reason": reason}))
    assert holder.store.read_inbox(0, 10) == []


def test_names_are_shown_as_text(operator: Client, holder: Holder, answer: BeginAnswering) -> None:
    nasty = "</td><script>alert(1)</script>\u202e\x07"
    row = holder.accept(LATER, task=nasty, task_id=nasty, queue=nasty)[0].id
    answer({nasty: "too_late"})
    page = text_of(operator.post(ACT, {"verb": "cancel", "row": row, "back": '/"><script>alert(2)</script>'}))
    response = operator.post(
        ACT, {"verb": "cancel", "row": row, "sure": "yes", "reason": "<script>alert(3)</script>"}, follow=True
    )
    for text in (page, text_of(response), text_of(operator.get("/admin/"))):
        assert "<script>alert" not in text
        assert "\x07" not in text
    assert "\\u202e" in text_of(response)


def test_the_page_of_a_task_offers_its_actions(operator: Client, holder: Holder) -> None:
    waits, gone, expired = holder.accept(LATER, LATER, LATER)
    end(holder, gone, "cancelled")
    end(holder, expired, "expired")
    offered = {}
    for row in (waits, gone, expired):
        page = text_of(operator.get(f"{ADMIN}/pending/{row.id}/"))
        offered[row.id] = re.findall(r'<button [^>]*name="verb" value="(\w+)"', page)
        assert (f'name="back" value="{ADMIN}/pending/{row.id}/?"' in page) is bool(offered[row.id])
    assert offered == {waits.id: ["cancel", "run_now", "reschedule"], gone.id: [], expired.id: ["requeue"]}


def test_all_lines_of_a_page_can_be_selected_without_a_script(operator: Client, holder: Holder) -> None:
    holder.accept(*range(LATER, LATER + 130))
    page = text_of(operator.get(f"{ADMIN}/pending/?shard=0"))
    assert page.count(" checked>") == 0
    (link,) = re.findall(r'href="(\?[^"]*selected=all)"', page)
    page = text_of(operator.get(f"{ADMIN}/pending/{link.replace('&amp;', '&')}"))
    assert page.count(" checked>") == 100
    assert f'name="back" value="{ADMIN}/pending/?shard=0"' in page
    (following,) = re.findall(r'href="(\?[^"]*)" rel="next"', page)
    assert "selected" not in following


def test_an_action_is_done_although_the_admins_log_cannot_be_written(
    operator: Client, holder: Holder, answer: BeginAnswering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer({})
    row = holder.accept(LATER)[0].id

    def failing(**_: Any) -> None:
        raise DatabaseError("read-only")

    monkeypatch.setattr(LogEntry.objects, "create", failing)
    assert post(operator, "cancel", row) == [
        ("success", "1 task is cancelled."),
        ("warning", "The action is done, but the admin's log has no entry of it: read-only."),
    ]


WHEEL = f"{ADMIN}/wheel/"
GATE = f"{WHEEL}gate/"


def post_gate(client: Client, verb: str, scope: str, name: str = "", **more: Any) -> list[tuple[str, str]]:
    response = client.post(GATE, {"verb": verb, "scope": scope, "name": name, **more}, follow=True)
    assert [one for one, _ in response.redirect_chain] == [WHEEL], text_of(response)
    return [(one.level_tag, str(one)) for one in response.context["messages"]]


@pytest.mark.parametrize(
    ("scope", "name"), [("queue", "mail"), ("task", "site.nothing"), ("group", "tenant:1"), ("all", "")]
)
def test_a_gate_is_paused_and_resumed(operator: Client, wheel: VirtualWheel, scope: str, name: str) -> None:
    celery_app.send_task("site.nothing", countdown=60, queue="mail", wheel={"group": "tenant:1"})
    what = f"{scope} {name}".strip() if name else "everything"
    said = post_gate(operator, "pause", scope, name, reason="provider")
    assert said == [("success", f"Paused: {what}. The pause holds until it is resumed, also after a restart.")]
    (gate,) = project_wheel().gates()
    assert (gate.what, gate.state, gate.actor, gate.reason) == (what, "paused", "operator", "provider")
    page = text_of(operator.get(WHEEL))
    assert f"Paused: {what}</strong> since" in page
    (link,) = re.findall(rf'href="{GATE}(\?verb=resume[^"]*)"', page)
    given = parse_qs(urlsplit(link.replace("&amp;", "&")).query, keep_blank_values=True)
    assert given == {"verb": ["resume"], "scope": [scope], "name": [name]}
    form = text_of(operator.get(GATE + link.replace("&amp;", "&")))
    assert f'<option value="{scope}" selected>' in form
    assert (f'name="name" value="{name}"' in form) is bool(name)
    assert ('name="over"' in form) is True
    assert post_gate(operator, "resume", scope, name) == [
        ("success", f"Resumed: {what}. The backlog is dispatched now.")
    ]
    assert len(wheel.advance(minutes=1)) == 1
    said = post_gate(operator, "resume", scope, name)
    assert said == [("warning", f"Nothing was done, because there was no pause of {what}.")]
    assert [one.object_repr for one in LogEntry.objects.order_by("pk")] == [f"Pause: {what}", f"Resume: {what}"]


def test_a_backlog_is_resumed_over_a_time(operator: Client, wheel: VirtualWheel) -> None:
    celery_app.send_task("site.nothing", countdown=60, queue="mail")
    post_gate(operator, "pause", "queue", "mail")
    said = post_gate(operator, "resume", "queue", "mail", over="10")
    assert said == [("success", "Resumed: queue mail. The backlog is dispatched evenly over 10 minutes.")]
    (gate,) = project_wheel().gates()
    assert gate.per_ms == 600_000
    assert "evenly over 10 min" in text_of(operator.get(GATE))


def test_a_name_without_pending_tasks_is_reported(operator: Client, wheel: VirtualWheel) -> None:
    celery_app.send_task("site.nothing", countdown=60)
    said = post_gate(operator, "pause", "queue", "<i>mial")[1]
    assert said == ("warning", "No task is pending for queue <i>mial at present. Check the name.")
    assert "<i>mial" not in text_of(operator.get(WHEEL)) + text_of(operator.get(GATE))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scope": "queue", "name": ""}, "Enter the name of the queue."),
        ({"scope": "task", "name": " "}, "Enter the name of the task."),
        ({"scope": "group", "name": ""}, "Enter the name of the group."),
        ({"scope": "all", "name": "mail"}, "Leave the name empty for everything."),
        ({"scope": "shard", "name": "0"}, "Select a valid choice."),
        ({}, "This field is required."),
        ({"scope": "queue", "name": "a\x00"}, "Null characters"),
        ({"scope": "queue", "name": "n" * 513}, "at most 512 characters"),
        ({"verb": "resume", "scope": "all", "over": "-1"}, "greater than or equal to 0"),
        ({"verb": "resume", "scope": "all", "over": "9" * 9}, "less than or equal to"),
        ({"verb": "resume", "scope": "all", "over": "soon"}, "Enter a whole number."),
    ],
)
def test_invalid_input_is_requested_again(operator: Client, holder: Holder, given: dict[str, str], says: str) -> None:
    response = operator.post(GATE, given)
    assert response.status_code == 200
    assert says in text_of(response)
    assert holder.store.read_inbox(0, 10) == []


@pytest.mark.usefixtures("silent")
def test_a_pause_without_an_answer_is_reported(operator: Client, holder: Holder) -> None:
    for verb in ("pause", "resume"):
        response = operator.post(GATE, {"verb": verb, "scope": "queue", "name": "mail", "reason": "provider"})
        assert f"the request ({verb}) was withdrawn" in text_of(response)
        assert response.context["form"]["reason"].value() == "provider", "the form keeps what was typed"
    assert holder.store.read_inbox(0, 10) == []
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("nowhere")
def test_a_pause_of_a_missing_store_is_reported(operator: Client) -> None:
    assert operator.get(GATE).status_code == 503
    assert "there is no store at" in text_of(operator.post(GATE, {"verb": "pause", "scope": "all"}))


def test_names_pass_through_links_and_forms_unchanged(operator: Client, holder: Holder) -> None:
    name = ' </a><script>alert(1)</script>"&x=1/ü '
    holder.apply(gates=[Gate("queue", name, "paused", 0, "<script>alert(2)</script>", "root", NOW)])
    for address in (WHEEL, GATE):
        page = text_of(operator.get(address))
        assert "<script>alert" not in page
        (link,) = re.findall(r'href="[^"?]*(\?verb=resume&amp;scope[^"]*)"', page)
        form = operator.get(GATE + link.replace("&amp;", "&"))
        assert form.context["form"]["name"].value() == name
        assert "<script>alert" not in text_of(form)
