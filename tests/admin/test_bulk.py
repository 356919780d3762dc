"""Actions on all tasks that match a filter: the count, the confirmation, the progress, and each task's result."""

import csv
import io
import json
from collections import Counter
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from celery_wheel.engine import bulk_action
from celery_wheel.errors import ArgumentError, WheelUnavailable
from celery_wheel.requests import bulk as requests_bulk
from celery_wheel.store.bulk_model import KEPT_MS
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.browse import pages as browse_pages
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from django_wheel.views import bulk
from tests.admin.conftest import PERMISSIONS, MakeClient, shown, text_of
from tests.admin.test_acting import ACT, ADMIN, Said, post, rows_of, send
from tests.kit.holder import NOW, Holder
from tests.kit.site import celery_app

BULK = f"{ADMIN}/pending/bulk/"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_action, "ROWS_AT_ONCE", 10)


@pytest.fixture(autouse=True)
def ever_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel of a test gives a sign of life only where its time passes."""
    monkeypatch.setattr(requests_bulk, "SILENT_MS", 2**62)


def ask(client: Client, verb: str, filter_: str = "", **more: Any) -> Any:
    return client.post(ACT, {"verb": verb, "all": "yes", "filter": filter_, **more})


def begin(client: Client, verb: str, filter_: str = "", **more: Any) -> str:
    """Begin an action; return the address of its page."""
    response = ask(client, verb, filter_, sure="yes", **more)
    assert response.status_code == 302, text_of(response)
    assert response["Location"].startswith(BULK), said(client)
    return str(response["Location"])


def all_of(count: int) -> dict[str, str]:
    return {"typed": f"{count}", "shown": f"{count}"}


def said(client: Client) -> Said:
    return [(one.level_tag, str(one)) for one in client.get(f"{ADMIN}/history/").context["messages"]]


def polled(client: Client, page: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(page, headers={"Accept": "application/json"}).json()
    return found


def turn(rounds: int = 1) -> None:
    """Let the scheduler carry out some rounds: the first one counts, the last one finds no more tasks."""
    for _ in range(rounds):
        celery_app.wheel.turn()


def run(client: Client, page: str) -> str:
    for _ in range(100):
        turn()
        if polled(client, page)["over"]:
            return unescape(shown(client, page))
    raise AssertionError("the action does not end")


def results() -> Counter[str]:
    items = project_wheel().audit(limit=1_000).items
    return Counter(result for one in items if one.bulk for result in one.results.values() if isinstance(result, str))


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
    assert project_wheel().bulk.latest() == []


def test_to_cancel_every_task_their_number_is_typed(operator: Client, wheel: VirtualWheel) -> None:
    send(3)
    page = text_of(ask(operator, "cancel"))
    assert '<input type="hidden" name="shown" value="3">' in page
    assert "Type the number of tasks, 3," in page
    for typed in ({}, {"shown": "3"}, {"shown": "3", "typed": ""}, {"shown": "3", "typed": "30"}):
        answer = ask(operator, "cancel", sure="yes", **typed)
        assert answer.status_code == 200
        assert "another number was typed" in text_of(answer)
    assert project_wheel().bulk.latest() == []
    assert "wheel-typed" not in text_of(ask(operator, "cancel", "shard=0"))
    assert "wheel-typed" not in text_of(ask(operator, "run_now"))
    send(1)  # another task came since the page was shown
    run(operator, begin(operator, "cancel", typed="3", shown="3"))
    assert wheel.pending == []


def test_a_filter_within_an_hour_counts_whole_hours(operator: Client, wheel: VirtualWheel) -> None:
    send(5)
    until = project_wheel().pending().items[0].due_ms  # the first instant that is not before it
    assert "At most 5 tasks match" in text_of(ask(operator, "cancel", f"to={until}"))
    page = run(operator, begin(operator, "cancel", f"to={until}"))
    assert "0 of 0" in page
    assert "<strong>over</strong>" in page
    assert len(wheel.pending) == 5


def test_the_confirmation_of_a_rare_group_reads_some_pages_of_the_store_alone(
    operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("SCAN", "SCAN_LEAST"):
        monkeypatch.setattr(browse_pages, bound, 10)
    monkeypatch.setattr(bulk, "PAGES", 2)
    send(40)
    ids = send(3, countdown=7_200, wheel={"group": "rare"})
    page = unescape(text_of(ask(operator, "cancel", "group=rare")))
    assert "<h1>Cancel: all matching tasks</h1>" in page
    assert "At least 0 tasks match." in page
    assert "3 of 3" in run(operator, begin(operator, "cancel", "group=rare"))
    assert not {one.id for one in wheel.pending} & set(ids)


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


def test_all_matching_tasks_are_cancelled_while_nobody_looks_on(operator: Client, wheel: VirtualWheel) -> None:
    ids, others = send(25, queue="mail"), send(3)
    page = begin(operator, "cancel", "queue=mail", reason="campaign is over")
    first = unescape(shown(operator, page))
    assert "<progress></progress>" in first
    assert "<strong>waits for the scheduler</strong>" in first
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in first
    assert len(wheel.pending) == 28
    turn()
    assert "the tasks are counted" in polled(operator, page)["html"]
    turn(2)
    second = polled(operator, page)
    assert '<progress max="25" value="10">' in second["html"]
    assert (second["over"], second["doings"]) == (False, {"stop": True, "continue": False, "discard": False})
    assert len(wheel.pending) == 18, "a step is a commit"
    turn(3)
    over = unescape(shown(operator, page))
    assert '<progress max="25" value="25">' in over
    assert "<strong>over</strong>" in over
    assert "http-equiv" not in over
    assert ">done</th><td>25</td>" in over
    assert {one.id for one in wheel.pending} == set(others)
    assert results() == {"done": 26}, "and the beginning"
    outcome = project_wheel().find(ids[0])[0].outcomes[-1]
    assert (outcome.actor, outcome.reason) == ("operator", "campaign is over")
    entry = LogEntry.objects.get()
    assert entry.object_repr == "Cancel: all matching tasks"
    assert "reason: campaign is over; filter: queue=mail" in entry.change_message


def test_the_audit_log_has_each_task_and_each_act(operator: Client, wheel: VirtualWheel) -> None:
    ids = send(25, queue="mail")
    page = begin(operator, "cancel", "queue=mail", reason="over")
    turn(3)
    operator.post(page, {"do": "stop"})
    turn()
    operator.post(page, {"do": "continue"})
    over = run(operator, page)
    number = page.removesuffix("/").rpartition("/")[2]
    assert f"/audit/?bulk={number}" in over
    content = b"".join(operator.get(f"{ADMIN}/audit/export/csv/?bulk={number}").streaming_content).decode()  # type: ignore[arg-type]
    lines = list(csv.DictReader(io.StringIO(content)))
    assert {line["name"]: line["result"] for line in lines if line["action"] == "cancel"} == dict.fromkeys(ids, "done")
    acts = [(line["action"], line["person"], line["result"]) for line in reversed(lines) if line["action"] != "cancel"]
    assert acts == [
        ("bulk_begin", "operator", "done"),
        ("bulk_stop", "operator", "done"),
        ("bulk_continue", "operator", "done"),
        ("bulk_end", "operator", "done found 25, done 25, shard 0"),
    ]
    begun = json.loads(next(line["details"] for line in lines if line["action"] == "bulk_begin"))
    assert begun == {"verb": "cancel", "criteria": {"queue": "mail"}}
    assert "end of a bulk action" in shown(operator, f"{ADMIN}/audit/").lower()


def test_tasks_that_are_gone_are_told(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    page = begin(operator, "cancel", **all_of(15))
    turn(3)
    wheel.advance(hours=2)  # five tasks run meanwhile
    turn(2)
    over = unescape(shown(operator, page))
    assert "5 tasks did not match any more when their turn came" in over
    assert '<progress max="10" value="10">' in over
    assert "10 of 15" in over


def test_moved_tasks_are_not_met_again(operator: Client, wheel: VirtualWheel) -> None:
    send(25)
    page = run(operator, begin(operator, "reschedule", eta="2040-01-15T09:00"))
    assert ">done</th><td>25</td>" in page
    assert "2040-01-15 09:00" in page
    assert {f"{one.eta:%Y-%m-%d}" for one in wheel.pending} == {"2040-01-15"}
    assert ">done</th><td>25</td>" in run(operator, begin(operator, "run_now"))
    assert len(wheel.run_due()) == 25


def test_tasks_that_are_sent_meanwhile_are_left_out(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    page = begin(operator, "cancel", **all_of(15))
    turn(3)
    later = send(5)
    assert "15 of 15" in run(operator, page)
    assert {one.id for one in wheel.pending} == set(later)


def test_an_action_is_stopped_continued_and_discarded(operator: Client, wheel: VirtualWheel) -> None:
    send(35)
    page = begin(operator, "cancel", **all_of(35))
    turn(3)
    operator.post(page, {"do": "stop"})
    assert "The scheduler has not carried out yet: Stop." in shown(operator, page)
    turn(5)
    stopped = unescape(shown(operator, page))
    assert "<strong>stopped</strong>" in stopped
    assert '<progress max="35" value="10">' in stopped
    assert "10 of 35" in stopped
    assert len(wheel.pending) == 25
    assert polled(operator, page)["doings"] == {"stop": False, "continue": True, "discard": True}
    operator.post(page, {"do": "continue"})
    turn()
    assert '<progress max="35" value="20">' in shown(operator, page)
    operator.post(page, {"do": "stop"})
    turn()
    operator.post(page, {"do": "discard"})
    turn(5)
    assert "<strong>discarded</strong>" in shown(operator, page)
    assert len(wheel.pending) == 15, "the counts are those of the store"
    operator.post(page, {"do": "continue"})
    assert said(operator)[-1] == ("warning", "Nothing was done, because the action is: discarded.")
    operator.post(page, {"do": "burn"})
    assert "is not known any more" in said(operator)[-1][1]
    turn(5)
    assert len(wheel.pending) == 15


def test_two_tabs_that_stop_and_continue_do_so_once(operator: Client, wheel: VirtualWheel) -> None:
    send(25)
    page = begin(operator, "cancel", **all_of(25))
    turn(3)
    for _ in range(2):
        operator.post(page, {"do": "stop"})
    turn()
    for _ in range(2):
        operator.post(page, {"do": "continue"})
    assert "25 of 25" in run(operator, page)
    told = [one.results for one in project_wheel().audit(action="bulk_continue").items]
    assert sorted(result for one in told for result in one.values()) == ["done", "too_late"]


def test_two_operators_have_actions_at_once(operator: Client, wheel: VirtualWheel, client_of: MakeClient) -> None:
    send(45, queue="mail")
    send(45, queue="other")
    other = client_of("dispatcher")
    pages = [begin(operator, "cancel", "queue=mail"), begin(other, "cancel", "queue=other")]
    counts = [0, 0]
    while not all(counts):
        turn()
        wheel.advance(seconds=0.01)
        found = map(project_wheel().bulk.get, (page.split("/")[-2] for page in pages))
        counts = [one.count for one in found if one is not None]
        assert max(counts) < 45, "they take turns"
    listed = unescape(shown(other, BULK))
    assert listed.index("dispatcher") < listed.index("operator"), "the latest is the first"
    for page in pages:
        assert page in listed
    assert listed.count("of 45") == 2
    other.post(pages[0], {"do": "stop"})
    turn(9)
    assert polled(operator, pages[1])["over"], "the other action goes on"
    assert [one.actor for one in project_wheel().audit(action="bulk_stop").items] == ["dispatcher"]


def test_an_action_on_the_same_tasks_finds_none(operator: Client, wheel: VirtualWheel) -> None:
    send(15)
    pages = [begin(operator, "cancel", **all_of(15)) for _ in range(2)]
    texts = [run(operator, page) for page in pages]
    done = [int(text.partition(">done</th><td>")[2].partition("<")[0] or 0) for text in texts]
    assert sum(done) == 15, "each task is cancelled once, and counted once"
    assert wheel.pending == []


def test_an_action_waits_for_a_scheduler_and_says_so(
    operator: Client, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_bulk, "SILENT_MS", 5_000)
    holder = Holder(store)
    holder.accept(NOW)
    page = begin(operator, "cancel", "queue=celery")
    text = unescape(shown(operator, page))
    assert "<strong>waits for the scheduler</strong>" in text
    assert "No scheduler holds the shards 0, 1: their tasks wait until a scheduler does." in text
    assert "No scheduler holds the shards 0, 1" in unescape(shown(operator, BULK))
    operator.post(page, {"do": "stop"})
    assert "has not carried out yet: Stop" in polled(operator, page)["html"]


def test_an_asker_that_no_longer_waits_stops_the_action(store: SqlStore) -> None:
    bulk = project_wheel().bulk
    action = bulk.begin("cancel", Criteria(queue="celery"), actor="anna")
    with pytest.raises(WheelUnavailable, match=f"no scheduler went on with the bulk action {action} in shard 0, 1"):
        bulk.result(action, 0.01)
    found = bulk.get(action)
    assert found is not None
    assert found.asked == {"begin", "stop"}
    with pytest.raises(WheelUnavailable, match="nothing will happen there"):
        project_wheel().cancel_all(queue="celery", timeout=0.01)
    assert [one.id for one in bulk.latest()] == [action], "what was withdrawn is gone"
    for wrong in (("erase", Criteria()), ("requeue", Criteria()), ("cancel", Criteria(key="\0"))):
        with pytest.raises(ArgumentError):
            bulk.begin(*wrong)


def test_a_page_that_is_open_costs_one_statement(
    operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(15)
    page = begin(operator, "cancel", **all_of(15))
    asked: list[str] = []
    real = SqlStore.bulk_shards
    monkeypatch.setattr(SqlStore, "bulk_shards", lambda self, action: asked.append(action) or real(self, action))  # type: ignore[func-returns-value]
    monkeypatch.setattr(type(project_wheel().store.browse), "overview", None)
    polled(operator, page)
    assert len(asked) == 1


def test_all_expired_tasks_are_requeued(operator: Client, wheel: VirtualWheel) -> None:
    for n in range(12):
        celery_app.send_task("site.nothing", countdown=60 + n, wheel={"misfire": 30})
    project_wheel().pause(everything=True)
    wheel.advance(minutes=5)
    project_wheel().resume(everything=True)
    wheel.run_due()
    assert "Requeue all 12 tasks?" in text_of(ask(operator, "requeue", "kind=expired"))
    assert ask(operator, "requeue").status_code == 302, "none is rejected"
    page = run(operator, begin(operator, "requeue", "kind=expired"))
    assert ">done</th><td>12</td>" in page
    assert "12 of 12" in page
    assert len(wheel.advance(seconds=1)) == 12
    assert "0 of 0" in run(operator, f"{BULK}{celery_app.wheel.bulk.begin('requeue', Criteria(), outcome='expired')}/")


def test_an_action_is_forgotten_after_a_week(operator: Client, wheel: VirtualWheel) -> None:
    send(5)
    page = begin(operator, "cancel", **all_of(5))
    run(operator, page)
    store = project_wheel().store
    [shard] = store.bulk_shards(page.removesuffix("/").rpartition("/")[2])
    assert shard.part is not None
    for at_ms, known in ((shard.part.changed_ms + KEPT_MS, 200), (shard.part.changed_ms + KEPT_MS + 1, 404)):
        store.expire(0, store.state(0).epoch, at_ms, 0)
        assert operator.get(page).status_code == known
    assert "There is none." in shown(operator, BULK)
    assert operator.get(f"{BULK}nonsense/").status_code == 404


def test_only_operators_have_the_pages(wheel: VirtualWheel, operator: Client, client_of: MakeClient) -> None:
    send(5)
    page = begin(operator, "cancel", "shard=0")
    for kind in set(PERMISSIONS) - {"operator", "dispatcher"}:
        client = client_of(kind)
        assert [client.get(page).status_code, client.post(page, {"do": "stop"}).status_code] == [403, 403], kind
    assert User.objects.filter(username="operator").exists()
    assert "5 of 5" in run(operator, page)


def test_selected_rows_do_not_matter_where_all_are_meant(operator: Client, wheel: VirtualWheel) -> None:
    ids = send(3)
    assert "Cancel all 3 tasks?" in text_of(ask(operator, "cancel", row=rows_of(ids[:1])))
    assert post(operator, "cancel", rows_of(ids[:1])) == [("success", "1 task is cancelled.")]
