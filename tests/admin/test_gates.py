"""The admin pauses and resumes queues, tasks and everything."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from celery_wheel.store.model import Gate
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from tests.admin.conftest import ADMIN, text_of
from tests.kit.holder import NOW, Holder
from tests.kit.site import celery_app

WHEEL = f"{ADMIN}/wheel/"
GATE = f"{WHEEL}gate/"


def post(client: Client, verb: str, scope: str, name: str = "", **more: Any) -> list[tuple[str, str]]:
    response = client.post(GATE, {"verb": verb, "scope": scope, "name": name, **more}, follow=True)
    assert [one for one, _ in response.redirect_chain] == [WHEEL], text_of(response)
    return [(one.level_tag, str(one)) for one in response.context["messages"]]


@pytest.mark.parametrize(("scope", "name"), [("queue", "mail"), ("task", "site.nothing"), ("all", "")])
def test_a_gate_is_paused_and_resumed(operator: Client, wheel: VirtualWheel, scope: str, name: str) -> None:
    celery_app.send_task("site.nothing", countdown=60, queue="mail")
    what = f"{scope} {name}".strip() if name else "everything"
    said = post(operator, "pause", scope, name, reason="provider")
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
    assert post(operator, "resume", scope, name) == [("success", f"Resumed: {what}. The backlog is dispatched now.")]
    assert len(wheel.advance(minutes=1)) == 1
    said = post(operator, "resume", scope, name)
    assert said == [("warning", f"Nothing was done, because there was no pause of {what}.")]
    assert [one.object_repr for one in LogEntry.objects.order_by("pk")] == [f"Pause: {what}", f"Resume: {what}"]


def test_a_backlog_is_resumed_over_a_time(operator: Client, wheel: VirtualWheel) -> None:
    celery_app.send_task("site.nothing", countdown=60, queue="mail")
    post(operator, "pause", "queue", "mail")
    said = post(operator, "resume", "queue", "mail", over="10")
    assert said == [("success", "Resumed: queue mail. The backlog is dispatched evenly over 10 minutes.")]
    (gate,) = project_wheel().gates()
    assert gate.per_ms == 600_000
    assert "evenly over 10 min" in text_of(operator.get(GATE))


def test_a_name_without_pending_tasks_is_reported(operator: Client, wheel: VirtualWheel) -> None:
    celery_app.send_task("site.nothing", countdown=60)
    said = post(operator, "pause", "queue", "<i>mial")[1]
    assert said == ("warning", "No task is pending for queue <i>mial at present. Check the name.")
    assert "<i>mial" not in text_of(operator.get(WHEEL)) + text_of(operator.get(GATE))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scope": "queue", "name": ""}, "Enter the name of the queue."),
        ({"scope": "task", "name": " "}, "Enter the name of the task."),
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
def test_a_request_without_an_answer_is_reported(operator: Client, holder: Holder) -> None:
    for verb in ("pause", "resume"):
        ((level, text),) = post(operator, verb, "all")
        assert level == "error"
        assert f"the request ({verb}) was withdrawn" in text
    assert holder.store.read_inbox(0, 10) == []
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("nowhere")
def test_a_missing_store_is_reported(operator: Client) -> None:
    assert operator.get(GATE).status_code == 503
    ((level, text),) = post(operator, "pause", "all")
    assert level == "error"
    assert "there is no store at" in text


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
