"""Actions on all tasks that match a filter: the count, the confirmation, the progress, and each task's result."""

import csv
import io
import json
from collections import Counter
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from celery_wheel.errors import WheelUnavailable
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from django_wheel.views import bulk
from tests.admin.conftest import shown, text_of
from tests.admin.test_acting import ACT, ADMIN, Said, post, rows_of, send
from tests.kit.holder import NOW, Holder
from tests.kit.site import celery_app

BULK = f"{ADMIN}/pending/bulk/"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STEP_S", 0.0)
    monkeypatch.setattr(bulk, "MAX_TASKS", 10)


def ask(client: Client, verb: str, filter_: str = "", **more: Any) -> Any:
    return client.post(ACT, {"verb": verb, "all": "yes", "filter": filter_, **more})


def begin(client: Client, verb: str, filter_: str = "", **more: Any) -> None:
    response = ask(client, verb, filter_, sure="yes", **more)
    assert response.status_code == 302, text_of(response)
    assert response["Location"] == BULK, said(client)


def said(client: Client) -> Said:
    return [(one.level_tag, str(one)) for one in client.get(f"{ADMIN}/history/").context["messages"]]


def step(client: Client, number: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.post(BULK, {"step": number, **more}, headers={"Accept": "application/json"}).json()
    return found


def run(client: Client, steps: int = 0) -> str:
    while step(client, steps)["goes_on"]:
        steps += 1
        assert steps < 100
    return unescape(shown(client, BULK))


def results() -> Counter[str]:
    items = project_wheel().audit(limit=1_000).items
    return Counter(result for one in items if one.bulk for result in one.results.values())


def test_the_tasks_are_counted_before_anything_happens(operator: Client, wheel: VirtualWheel) -> None:
    send(25, queue="mail")
    send(3)
    page = unescape(text_of(ask(operator, "cancel", "queue=mail")))
    assert "<h1>Cancel all 25 tasks?</h1>" in page
    assert "25 tasks match." in page
    assert "<td>mail</td>" in page
    assert "Cancel all 28 tasks?" in text_of(everything := ask(operator, "cancel"))
    assert "the action is for every task of the list" in text_of(everything)
    assert len(wheel.pending) == 28
    assert "wheel_bulk" not in operator.session


def test_a_filter_within_an_hour_counts_whole_hours(operator: Client, wheel: VirtualWheel) -> None:
    send(5)
    until = project_wheel().pending().items[0].due_ms  # the first instant that is not before it
    assert "At most 5 tasks match" in text_of(ask(operator, "cancel", f"to={until}"))
    begin(operator, "cancel", f"to={until}")
    assert run(operator)
    assert len(wheel.pending) == 5


def test_a_filter_that_a_list_would_ignore_is_refused(operator: Client, wheel: VirtualWheel) -> None:
    send(5)
    for filter_ in ("shard=all", "to=tomorrow", "from=x"):
        assert ask(operator, "cancel", filter_, sure="yes")["Location"] == f"{ADMIN}/pending/"
        assert "the filter has an error" in said(operator)[0][1]
    assert ask(operator, "cancel", "queue=nobody").status_code == 302
    assert said(operator) == [("warning", "Nothing was done, because no task matches the filter.")]
    assert len(wheel.pending) == 5


def test_the_list_offers_all_tasks_of_its_filter(operator: Client, wheel: VirtualWheel) -> None:
    send(1, queue="mail")
    page = shown(operator, f"{ADMIN}/pending/?queue=mail&from=2020-01-01 00:00")
    assert '<input type="checkbox" name="all" value="yes"> All tasks that match the filter' in page
    assert '<input type="hidden" name="filter" value="queue=mail&amp;from=2020-01-01+00%3A00">' in page
    assert "All tasks of the list" in shown(operator, f"{ADMIN}/pending/")


def test_all_matching_tasks_are_cancelled_step_by_step(operator: Client, wheel: VirtualWheel) -> None:
    ids, others = send(25, queue="mail"), send(3)
    begin(operator, "cancel", "queue=mail", reason="campaign is over")
    page = unescape(shown(operator, BULK))
    assert '<progress max="25" value="0">' in page
    assert "waits for the scheduler to answer" in page
    assert len(wheel.pending) == 28
    first = step(operator, 0)
    assert (first["goes_on"], first["step"], "waits for" in first["html"]) == (True, 1, False)
    assert 'value="10"' in first["html"]
    assert len(wheel.pending) == 18, "a step is a chunk"
    assert step(operator, 0)["step"] == 1, "a second page of the browser repeats nothing"
    page = run(operator, 1)
    assert '<progress max="25" value="25">' in page
    assert "<strong>over</strong>" in page
    assert ">done</th><td>25</td>" in page
    assert {one.id for one in wheel.pending} == set(others)
    assert results() == {"done": 25}
    outcome = project_wheel().find(ids[0])[0].outcomes[-1]
    assert (outcome.actor, outcome.reason) == ("operator", "campaign is over")
    entry = LogEntry.objects.get()
    assert entry.object_repr == "Cancel: 25 tasks"
    assert entry.change_message == "Cancel: 25 done; reason: campaign is over; filter: queue=mail"


def test_the_result_of_each_task_is_in_the_audit_log(operator: Client, wheel: VirtualWheel) -> None:
    ids = send(15, queue="mail")
    begin(operator, "cancel", "queue=mail")
    step(operator, 0)
    wheel.advance(hours=2)  # five tasks run meanwhile
    page = run(operator, 1)
    assert "<strong>over</strong>" in page
    number = operator.session["wheel_bulk"]["id"]
    assert f"/audit/?bulk={number}" in page
    content = b"".join(operator.get(f"{ADMIN}/audit/export/csv/?bulk={number}").streaming_content).decode()  # type: ignore[arg-type]
    told = {line["name"]: line["result"] for line in csv.DictReader(io.StringIO(content))}
    assert told == dict.fromkeys(ids[:10], "done"), "the tasks that ran match no more"
    assert json.loads(next(csv.DictReader(io.StringIO(content)))["details"]) == {}


def test_tasks_that_are_gone_are_named(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = send(5)
    begin(operator, "cancel")
    real = type(project_wheel()).cancel

    def late(wheel_: Any, tasks: Any, **how: Any) -> Any:
        real(wheel_, ids[0])
        wheel_.run_now(ids[1])
        wheel.run_due()
        return real(wheel_, tasks, **how)

    monkeypatch.setattr(type(project_wheel()), "cancel", late)
    page = run(operator)
    assert results() == {"done": 3, "already": 1, "too_late": 1}
    assert f"<code>{ids[1]}</code> too late" in page
    assert ">too late</th><td>1</td>" in page


def test_moved_tasks_are_not_met_again(operator: Client, wheel: VirtualWheel) -> None:
    send(25)
    begin(operator, "reschedule", eta="2040-01-15T09:00")
    assert ">done</th><td>25</td>" in run(operator)
    assert {f"{one.eta:%Y-%m-%d}" for one in wheel.pending} == {"2040-01-15"}
    begin(operator, "run_now")
    run(operator)
    assert len(wheel.run_due()) == 25


def test_tasks_that_are_sent_meanwhile_are_left_out(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    begin(operator, "cancel")
    step(operator, 0)
    later = send(5)
    run(operator, 1)
    assert {one.id for one in wheel.pending} == set(later)


def test_all_rejected_tasks_are_requeued(operator: Client, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = holder.accept(*range(NOW, NOW + 12))
    outcomes = [holder.outcome(row.id, "rejected", NOW + number) for number, row in enumerate(rows)]
    holder.apply(moves=[holder.stop(row) for row in rows], outcomes=outcomes)
    asked: list[str] = []

    def requeue(_wheel: Any, ids: list[str], **how: Any) -> dict[str, Any]:
        asked.extend(ids)
        return {}

    monkeypatch.setattr(type(project_wheel()), "requeue", requeue)
    assert "Requeue all 12 tasks?" in text_of(ask(operator, "requeue"))
    assert ask(operator, "requeue", "kind=expired").status_code == 302, "none is expired"
    begin(operator, "requeue")
    run(operator)
    assert sorted(asked) == sorted(row.message.task_id for row in rows)


def test_a_closed_page_is_opened_again_and_goes_on(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    begin(operator, "cancel")
    step(operator, 0)
    assert ask(operator, "cancel", sure="yes")["Location"] == BULK, "one action at a time"
    assert "is not over" in said(operator)[0][1]
    assert f'<a href="{BULK}">An action on all matching tasks is not over' in shown(operator, f"{ADMIN}/pending/")
    page = unescape(shown(operator, BULK))
    assert '<input type="hidden" name="step" value="1">' in page
    assert 'value="10"' in page
    response = operator.post(BULK, {"step": "1", "go": "yes"})  # without a script
    assert response["Location"] == BULK
    run(operator, 2)
    assert wheel.pending == []
    send(1)
    assert BULK not in shown(operator, f"{ADMIN}/pending/")


def test_an_action_is_stopped(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    begin(operator, "cancel")
    step(operator, 0)
    assert operator.post(BULK, {"step": "1", "stop": "yes"})["Location"] == BULK
    page = shown(operator, BULK)
    assert "<strong>stopped</strong>" in page
    assert 'id="wheel-bulk"' not in page
    assert step(operator, 1)["goes_on"] is False
    assert len(wheel.pending) == 5
    begin(operator, "cancel")


def test_an_action_is_stopped_in_a_step(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    send(15)
    begin(operator, "cancel")
    real = type(project_wheel()).cancel

    def stopped(wheel_: Any, tasks: Any, **how: Any) -> Any:
        """The browser sends the button while the script's request is carried out."""
        assert operator.post(BULK, {"step": "0", "stop": "yes"})["Location"] == BULK
        return real(wheel_, tasks, **how)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(type(project_wheel()), "cancel", stopped)
        assert step(operator, 0)["goes_on"] is False
    page = unescape(shown(operator, BULK))
    assert "<strong>stopped</strong>" in page
    assert ">done</th><td>10</td>" in page
    assert step(operator, 1)["goes_on"] is False
    assert len(wheel.pending) == 5


def test_a_step_of_two_pages_is_one(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    send(15)
    begin(operator, "cancel")
    real = type(project_wheel()).cancel
    pages = iter([False])

    def at_once(wheel_: Any, tasks: Any, **how: Any) -> Any:
        """The second page asks for the step while the first waits for its answer."""
        if not next(pages, True):
            assert step(operator, 0)["step"] == 0
        return real(wheel_, tasks, **how)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(type(project_wheel()), "cancel", at_once)
        assert step(operator, 0)["step"] == 1
    page = run(operator, 1)
    assert ">done</th><td>15</td>" in page
    assert "already" not in page


def test_an_action_goes_on_after_a_step_without_an_answer(
    operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = send(15)
    begin(operator, "cancel")
    answered: dict[str, Any] = {}
    real = type(project_wheel()).cancel

    def unavailable(*_: Any, **__: Any) -> None:
        raise WheelUnavailable("no scheduler answered", answered)

    with monkeypatch.context() as away:
        away.setattr(type(project_wheel()), "cancel", unavailable)
        failed = step(operator, 0)
        assert (failed["goes_on"], failed["step"]) == (False, 0)
        assert "no scheduler answered" in failed["html"]
        answered |= real(project_wheel(), ids[:4])  # the holder of another shard has answered
        assert "no scheduler answered" in text_of(operator.post(BULK, {"step": "0"}))
    page = run(operator)
    assert wheel.pending == []
    assert ">done</th><td>15</td>" in page


def test_the_state_does_not_grow_with_the_tasks(operator: Client, wheel: VirtualWheel) -> None:
    send(100)
    begin(operator, "cancel")
    celery_app.wheel.cancel([one.id for one in wheel.pending])
    run(operator)
    assert len(json.dumps(operator.session["wheel_bulk"])) < 3_000


def test_there_is_no_page_without_an_action(operator: Client, wheel: VirtualWheel) -> None:
    assert operator.get(BULK)["Location"] == f"{ADMIN}/pending/"
    assert operator.post(BULK, {"step": "0"}).status_code == 302


def test_selected_rows_do_not_matter_where_all_are_meant(operator: Client, wheel: VirtualWheel) -> None:
    ids = send(3)
    assert "Cancel all 3 tasks?" in text_of(ask(operator, "cancel", row=rows_of(ids[:1])))
    assert post(operator, "cancel", rows_of(ids[:1])) == [("success", "1 task is cancelled.")]
