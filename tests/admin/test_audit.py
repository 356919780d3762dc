"""The audit log: each request of a person with its result, wherever it was made; the page, and the exports."""

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIHandler
from django.test import AsyncClient, Client

from celery_wheel.store.audit_model import AuditedRequest, process_name
from celery_wheel.testing import VirtualWheel
from django_wheel.project import project_wheel
from django_wheel.views import audit
from tests.admin.conftest import MakeClient, shown
from tests.admin.test_acting import post, rows_of, send
from tests.admin.test_schedules import SCHEDULE, rows
from tests.kit.holder import Holder
from tests.kit.site import celery_app

LOG = "/admin/django_wheel/audit/"
GATE = "/admin/django_wheel/wheel/gate/"


def log(**criteria: Any) -> list[AuditedRequest]:
    return project_wheel().audit(**criteria).items


def told(one: AuditedRequest) -> tuple[str, str, str, str, dict[str, Any]]:
    return one.origin, one.actor, one.action, one.reason, one.results


def test_each_action_on_tasks_is_in_the_log(operator: Client, wheel: VirtualWheel) -> None:
    first, second, third = send(3)
    post(operator, "cancel", rows_of([first]), reason="sent twice")
    post(operator, "cancel", rows_of([first]))
    post(operator, "run_now", rows_of([second, third]))
    assert [told(one) for one in log()] == [
        ("admin", "operator", "run_now", "", {second: "done", third: "done"}),
        ("admin", "operator", "cancel", "", {first: "already"}),
        ("admin", "operator", "cancel", "sent twice", {first: "done"}),
    ]
    assert log(name=second) == log(action="run_now")


def test_pauses_and_resumes_are_in_the_log(operator: Client, wheel: VirtualWheel) -> None:
    operator.post(GATE, {"verb": "pause", "scope": "queue", "name": "mail", "reason": "incident 42"})
    operator.post(GATE, {"verb": "resume", "scope": "queue", "name": "mail", "over": "2"})
    resumed, paused = log()
    assert told(paused) == ("admin", "operator", "pause", "incident 42", {"queue:mail": "done"})
    assert told(resumed) == ("admin", "operator", "resume", "", {"queue:mail": "done"})
    assert resumed.details == {"per_ms": 120_000}


def test_changes_of_schedules_are_in_the_log_without_their_arguments(operator: Client, wheel: VirtualWheel) -> None:
    schedules = celery_app.wheel.schedules
    how = {"actor": "anna", "check_task": False}
    schedules.create("report", 60.0, "elsewhere.report", kwargs={"password": "hunter2"}, **how)
    for verb in ("pause", "resume", "trigger", "delete"):
        operator.post(f"{SCHEDULE}act/", {"verb": verb, "row": "report", "sure": "yes"})
    found = log(name="report")
    assert [(one.action, one.actor, one.origin) for one in reversed(found)] == [
        ("schedule_create", "anna", "api"),
        *[(f"schedule_{verb}", "operator", "admin") for verb in ("pause", "resume", "trigger", "delete")],
    ]
    assert found[1].results == {"report": {"result": "done", "task_ids": 1}}
    assert "hunter2" not in repr(found)


def test_a_call_that_names_no_person_is_one_of_a_program(operator: Client, wheel: VirtualWheel) -> None:
    first, second = send(2)
    celery_app.wheel.cancel(first)
    celery_app.wheel.cancel(first)
    celery_app.wheel.complete("order:42")
    assert [told(one) for one in log()] == [("program", process_name(), "cancel", "", {first: "done"})]
    celery_app.wheel.cancel(second, actor="anna", reason="asked by phone")
    assert [told(one) for one in log(origin="people")] == [
        ("api", "anna", "cancel", "asked by phone", {second: "done"})
    ]
    assert [len(log_rows(operator, f"origin={origin}")) for origin in ("people", "program")] == [1, 1]
    celery_app.wheel.pause(everything=True)  # rare, and never a part of a program's work
    assert log(origin="api")[0].action == "pause"


def test_a_request_of_all_shards_is_one_line_with_the_best_result(wheel: VirtualWheel) -> None:
    ids = [*send(4), "never-sent"]
    celery_app.wheel.cancel(ids, actor="anna")
    (one,) = log()
    assert one.results == {**dict.fromkeys(ids, "done"), "never-sent": "unknown"}
    with project_wheel().store.database.reading() as connection:  # type: ignore[attr-defined]  # the store is one of SQL
        stored = connection.exec_driver_sql("SELECT chain, results FROM wheel_audit ORDER BY chain").all()
    assert sum(text.count("unknown") for _, text in stored) <= len(ids), "one shard has the unknown names"


@pytest.mark.usefixtures("store", "silent")
def test_a_withdrawn_request_is_not_in_the_log(operator: Client) -> None:
    operator.post(GATE, {"verb": "pause", "scope": "all"})
    assert log() == []


def test_the_page_shows_and_filters_the_log(operator: Client, wheel: VirtualWheel) -> None:
    first, *others = send(30)
    post(operator, "cancel", rows_of([first]), reason="<b>twice</b>")
    celery_app.wheel.run_now(others, actor="anna")
    page = shown(operator, LOG)
    run, cancelled = rows(page, "wheel-audit")
    assert "anna api run now 29 done 29 names" in run
    assert "and 9 more, which an export has" in run
    assert f"operator admin cancel 1 done {first}" in cancelled
    assert "&lt;b&gt;twice" in page
    for query, count in (("actor=ANN", 1), ("action=cancel", 1), ("origin=cli", 0), (f"name={first}", 1)):
        assert len(log_rows(operator, query)) == count, query
    assert len(log_rows(operator, "from=2099-01-01 00:00")) == 0
    assert "action must be one of" in shown(operator, f"{LOG}?action=nothing")
    assert "a cursor must be" in shown(operator, f"{LOG}?after_name=nothing")


def log_rows(client: Client, query: str) -> list[str]:
    return [row for row in rows(shown(client, f"{LOG}?{query}"), "wheel-audit") if "No request matches" not in row]


def test_the_page_pages(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LINES", 2)
    for number in range(5):
        celery_app.wheel.pause(queue=f"q{number}", actor="anna")
    seen, address = [], LOG
    while address:
        page = shown(operator, address)
        seen += [row.split("queue ")[1].split()[0].partition("<")[0] for row in rows(page, "wheel-audit")]
        link = page.partition('rel="next"')[0].rpartition('href="')[2] if 'rel="next"' in page else ""
        address = LOG + link.split('"')[0].replace("&amp;", "&") if link else ""
    assert seen == ["q4", "q3", "q2", "q1", "q0"]


@pytest.mark.parametrize(("kind", "status"), [("staff", 403), ("observer", 200)])
def test_viewers_read_and_export_the_log(client_of: MakeClient, wheel: VirtualWheel, kind: str, status: int) -> None:
    client = client_of(kind)
    for page in ("", "export/csv/", "export/jsonl/"):
        assert client.get(LOG + page).status_code == status


def export(client: Client, form: str, query: str = "") -> str:
    response = client.get(f"{LOG}export/{form}/?{query}")
    assert response.streaming
    assert response["Content-Disposition"] == f'attachment; filename="wheel-audit.{form}"'
    return b"".join(response.streaming_content).decode()  # type: ignore[arg-type]


def test_an_export_tells_each_result(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "EXPORT_PAGE", 2)
    ids = send(30)
    for task_id in ids[:5]:
        celery_app.wheel.cancel(task_id, actor="anna", reason="=1+1")
    celery_app.wheel.run_now(ids, actor="\uff1d1+1")
    found = list(csv.DictReader(io.StringIO(export(operator, "csv"))))
    assert len(found) == 35
    assert [line["result"] for line in found[:30]] == ["too_late"] * 5 + ["done"] * 25
    assert found[-1]["reason"] == "'=1+1", "no program for tables takes it for a formula"
    assert found[0]["person"] == "'\uff1d1+1", "nor with signs of full width"
    assert (found[-1]["name"], found[-1]["person"], found[-1]["origin"]) == (ids[0], "anna", "api")
    first, *lines = [json.loads(line) for line in export(operator, "jsonl", f"name={ids[0]}").splitlines()]
    said = [(line["action"], json.loads(line["results"])[ids[0]]) for line in lines]
    assert said == [("cancel", "done"), ("run_now", "too_late")]
    assert not first["whole"]
    assert found[-1]["entries"] == ":".join(str(lines[0][name]) for name in ("chain", "number", "digest"))


@pytest.fixture
def reads(wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the reads of the log by an export of six entries, two a page."""
    monkeypatch.setattr(audit, "EXPORT_PAGE", 2)
    for number in range(6):
        celery_app.wheel.pause(queue=f"q{number}", actor="anna")
    found: list[Any] = []
    browse = project_wheel().store.browse
    real = type(browse).audit
    monkeypatch.setattr(type(browse), "audit", lambda *args: found.append(args) or real(*args))
    return found


def test_an_export_reads_page_by_page(operator: Client, reads: list[Any]) -> None:
    response = operator.get(f"{LOG}export/csv/")
    assert len(reads) == 1
    lines = iter(response.streaming_content)
    next(lines)
    assert b"q5" in next(lines)
    assert len(reads) == 1
    assert b"q0" in list(lines)[-1]
    assert len(reads) == 3


def test_an_export_begins_under_asgi_before_all_is_read(operator: Client, reads: list[Any]) -> None:
    client = AsyncClient()
    client.cookies = operator.cookies

    async def received() -> list[tuple[int, bytes]]:
        response = await client.get(f"{LOG}export/csv/")
        return [(len(reads), part) async for part in response.streaming_content]

    parts = async_to_sync(received)()
    assert [read for read, _ in parts] == [1, 2, 3, 3]
    assert b"".join(part for _, part in parts).decode() == export(operator, "csv")


def test_a_server_gets_the_first_bytes_before_the_last_are_read(operator: Client, reads: list[Any]) -> None:
    cookies = "; ".join(f"{name}={one.value}" for name, one in operator.cookies.items())
    headers = [(b"host", b"testserver"), (b"cookie", cookies.encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": f"{LOG}export/csv/", "headers": headers}
    sent: list[tuple[int, int]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append((len(reads), len(message.get("body", b""))))

    async def serve() -> None:
        waits: list[dict[str, Any]] = [{"type": "http.request", "body": b""}]

        async def receive() -> dict[str, Any]:
            if waits:
                return waits.pop()
            await asyncio.Event().wait()
            raise AssertionError("the client stays")

        await ASGIHandler()({**scope, "query_string": b""}, receive, send)  # type: ignore[arg-type]

    async_to_sync(serve)()
    with_bytes = [read for read, size in sent if size]
    assert with_bytes[0] < with_bytes[-1], "a part is sent before the last one is read"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("from=garbage", "from must be a date and time"),
        ("to=2027-02-30 08:00", "to must be a date and time"),
        ("action=nothing", "action must be one of"),
        ("actor=a%00b", "actor must be text"),
    ],
)
def test_an_export_with_a_wrong_filter_hands_nothing_out(
    operator: Client, holder: Holder, query: str, says: str
) -> None:
    for form in ("csv", "jsonl"):
        assert says in shown(operator, f"{LOG}export/{form}/?{query}", 400)


@pytest.mark.usefixtures("nowhere")
def test_an_export_of_a_store_that_cannot_be_read_is_an_error(operator: Client) -> None:
    assert "nowhere" in shown(operator, f"{LOG}export/csv/", 503)
