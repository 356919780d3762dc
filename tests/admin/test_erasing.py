"""A user with the permission to erase gets a receipt; the links lead to the form; the logs name nobody."""

from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from tests.admin.conftest import ADMIN, MakeClient, text_of
from tests.kit.holder import Holder
from tests.kit.site import celery_app

ERASE = f"{ADMIN}/audit/erase/"
ANNA = "tenant:Anna"


@pytest.fixture
def eraser(client_of: MakeClient) -> Client:
    return client_of("eraser")


def data(**changes: Any) -> dict[str, Any]:
    return {"scope": "group", "name": ANNA, "reason": "ticket 17", "sure": "on", **changes}


def test_a_group_is_erased_with_a_receipt(eraser: Client, wheel: VirtualWheel) -> None:
    for _ in "ab":
        celery_app.send_task("app.add", (1, 2), countdown=60, wheel={"group": ANNA})
    response = eraser.post(ERASE, data())
    receipt = response.context["receipt"]
    assert receipt.matches(ANNA)
    assert (receipt.actor, receipt.counts["pending"]) == ("eraser", 2)
    page = text_of(response)
    assert f"Receipt {receipt.id}" in page
    assert "2 pending tasks, which will not be dispatched" in page
    assert "Anna" not in page
    (entry,) = project_wheel().audit(action="erase").items
    assert (entry.origin, entry.actor, entry.reason, list(entry.results)) == (
        "admin",
        "eraser",
        "ticket 17",
        [receipt.digest],
    )
    (logged,) = LogEntry.objects.all()
    assert logged.object_repr == f"Erased: group {receipt.digest}"
    assert "Anna" not in logged.change_message
    assert wheel.run_all() == []
    assert "done" in text_of(eraser.get(f"{ADMIN}/audit/"))


def test_a_receipt_says_that_the_admins_log_keeps_names(client_of: MakeClient, wheel: VirtualWheel) -> None:
    operator = client_of("operator")
    operator.post(f"{ADMIN}/wheel/gate/", {"verb": "pause", "scope": "group", "name": ANNA})
    page = unescape(text_of(operator.post(ERASE, data())))
    assert ANNA in LogEntry.objects.order_by("pk")[0].object_repr
    assert "Django's admin log" in page.split("not covered:")[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sure": ""}, "This field is required."),
        ({"name": ""}, "This field is required."),
        ({"scope": "queue"}, "Select a valid choice."),
        ({"name": "a\0b"}, "Null characters are not allowed."),
    ],
)
def test_an_incomplete_form_erases_nothing(eraser: Client, wheel: VirtualWheel, changes: Any, says: str) -> None:
    celery_app.send_task("app.add", (1, 2), countdown=60, wheel={"group": ANNA})
    assert says in text_of(eraser.post(ERASE, data(**changes)))
    assert len(wheel.pending) == 1


def test_a_schedule_that_exists_is_refused(eraser: Client, wheel: VirtualWheel) -> None:
    project_wheel().schedules.create("daily", 60, "app.add", (1, 2))
    page = text_of(eraser.post(ERASE, data(scope="schedule", name="daily")))
    assert "would go on making tasks; nothing was erased; delete it first" in page
    assert ERASE not in text_of(eraser.get(f"{ADMIN}/schedule/one/?name=daily"))
    project_wheel().schedules.delete("daily")
    assert f'{ERASE}?scope=schedule&name=daily"' in unescape(text_of(eraser.get(f"{ADMIN}/schedule/one/?name=daily")))
    assert "revisions of the schedule" in text_of(eraser.post(ERASE, data(scope="schedule", name="daily")))


@pytest.mark.usefixtures("silent")
def test_an_erasure_without_an_answer_is_reported(eraser: Client, holder: Holder) -> None:
    assert "the request (erase) was withdrawn, and nothing will happen" in text_of(eraser.post(ERASE, data()))
    assert holder.store.read_inbox(0, 10) == []


def test_links_lead_to_the_form_for_those_who_may(client_of: MakeClient, eraser: Client, wheel: VirtualWheel) -> None:
    sent = celery_app.send_task("app.add", (1, 2), countdown=60, wheel={"group": ANNA})
    (row,) = project_wheel().pending().items
    for client, offers in ((eraser, True), (client_of("dispatcher"), False)):
        link = f'{ERASE}?scope=task_id&name={sent.id}"'
        assert (link in unescape(text_of(client.get(f"{ADMIN}/pending/{row.id}/")))) is offers
        assert (f'"{ERASE}"' in text_of(client.get(f"{ADMIN}/audit/"))) is offers
        assert client.get(ERASE).status_code == (200 if offers else 403)
    form = text_of(eraser.get(ERASE, {"scope": "task_id", "name": sent.id}))
    assert f'value="{sent.id}"' in form
    assert '<option value="task_id" selected>' in form
