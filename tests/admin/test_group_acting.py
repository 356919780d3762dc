"""An operator sets and clears the limits of a group by a form, and cancels all of its pending tasks."""

from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from celery_wheel.store.model import GroupLimit
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from django_wheel.views.query import LINES
from tests.admin.conftest import ADMIN, shown, text_of
from tests.kit.holder import NOW, Holder
from tests.kit.site import celery_app

GROUPS = f"{ADMIN}/group/"
NASTY = "<b>tenant</b>:1"
LIMITS = f"{GROUPS}limits/"


def post(client: Client, verb: str, group: str, **more: Any) -> list[tuple[str, str]]:
    response = client.post(LIMITS, {"verb": verb, "group": group, **more}, follow=True)
    assert [one for one, _ in response.redirect_chain] == [GROUPS], text_of(response)
    return [(one.level_tag, str(one)) for one in response.context["messages"]]


def test_limits_of_a_group_are_set_shown_and_cleared(operator: Client, wheel: VirtualWheel) -> None:
    runtime = {"max_runtime_0": "2", "max_runtime_1": "3600000"}
    said = post(operator, "set", NASTY, concurrency="5", rate="100/m", weight="3", reason="storm", **runtime)
    assert said == [("success", f"The limits of group {NASTY} are in force.")]
    found = project_wheel().limits.get(NASTY)
    assert (found.concurrency, found.rate, found.weight, found.max_runtime, found.actor) == (
        5,
        "100/m",
        3,
        7_200,
        "operator",
    )
    (entry,) = project_wheel().audit(action="set_limits").items
    assert (entry.origin, entry.actor, entry.reason) == ("admin", "operator", "storm")
    page = text_of(operator.get(LIMITS, {"group": NASTY}))
    assert NASTY not in page
    assert "in force: at most 5 in flight, at most 100 in 1 min, weight 3, a run is over after 2 h" in page
    assert 'name="rate" value="100/m"' in page
    assert 'name="max_runtime_0" value="2"' in page
    assert post(operator, "set", NASTY, weight="2") == said
    assert project_wheel().limits.get(NASTY).concurrency is None, "a set replaces all"
    cleared = f"Group {NASTY} has no limits of its own any more. It is limited as its class is."
    assert post(operator, "clear", NASTY) == [("success", cleared)]
    nothing = f"Nothing was done, because group {NASTY} had no limits of its own."
    assert post(operator, "clear", NASTY) == [("warning", nothing)]
    titles = [one.object_repr for one in LogEntry.objects.order_by("pk")]
    assert titles == [f"Set limits: {NASTY}", f"Set limits: {NASTY}", f"Clear limits: {NASTY}"]
    assert "No group has limits of its own." in text_of(operator.get(LIMITS))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "This field is required."),
        ({"group": "a"}, "Enter at least one limit."),
        ({"group": "a", "rate": "often"}, "Enter a rate like 100/m"),
        ({"group": "a", "concurrency": "0"}, "greater than or equal to 1"),
        ({"group": "a", "weight": "1001"}, "less than or equal to"),
        ({"group": "a", "max_runtime_0": "40", "max_runtime_1": "86400000"}, "from 1 second to 30 days"),
        ({"group": "€" * 512, "weight": "1"}, "bytes"),
        ({"group": "g" * 513, "weight": "1"}, "at most 512 characters"),
    ],
)
def test_wrong_limits_are_requested_again(operator: Client, holder: Holder, given: dict[str, str], says: str) -> None:
    response = operator.post(LIMITS, {"verb": "set", **given})
    assert response.status_code == 200
    assert says in unescape(text_of(response))
    assert holder.store.read_inbox(0, 10) == []


def test_the_form_lists_the_first_groups_of_many(operator: Client, holder: Holder) -> None:
    names = [f"tenant:{n:03}" for n in range(LINES + 1)]
    holder.apply(limits=[GroupLimit(name, 5, None, None, None, None, "api", NOW) for name in names[:-1]])
    assert "celery wheel limits list" not in text_of(operator.get(LIMITS))
    holder.apply(limits=[GroupLimit(names[-1], 5, None, None, None, None, "api", NOW)])
    page = text_of(operator.get(LIMITS))
    assert "More groups have limits of their own; the command <code>celery wheel limits list</code> names all." in page
    assert names[-2] in page
    assert names[-1] not in page


@pytest.mark.usefixtures("silent")
def test_limits_without_an_answer_are_reported(operator: Client, holder: Holder) -> None:
    response = operator.post(LIMITS, {"verb": "set", "group": "tenant:1", "weight": "2"})
    assert "the request (limit) was withdrawn" in text_of(response)
    assert 'name="group" value="tenant:1"' in text_of(response), "the form keeps what was typed"
    assert holder.store.read_inbox(0, 10) == []


def test_only_operators_set_limits(viewer: Client, holder: Holder) -> None:
    assert viewer.get(LIMITS).status_code == 403
    assert viewer.post(LIMITS, {"verb": "set", "group": "a", "weight": "1"}).status_code == 403


def test_all_pending_tasks_of_a_group_are_cancelled(operator: Client, wheel: VirtualWheel) -> None:
    for n in range(3):
        celery_app.send_task("site.nothing", countdown=60 + n, wheel={"group": "tenant:1"})
    celery_app.send_task("site.nothing", countdown=60, wheel={"group": "tenant:2"})
    listed = shown(operator, f"{ADMIN}/pending/?group=tenant:1")
    assert listed.count('<td class="" data-label="Group">tenant:1</td>') == 3
    sent = {"verb": "cancel", "all": "yes", "filter": "group=tenant:1"}
    asked = operator.post(f"{ADMIN}/pending/act/", sent)
    assert "Cancel all 3 tasks?" in text_of(asked)
    operator.post(f"{ADMIN}/pending/act/", {**sent, "sure": "yes", "reason": "gone"})
    for _ in range(5):
        celery_app.wheel.turn()
    assert [one.group for one in project_wheel().pending().items] == ["tenant:2"]
