"""Arguments, headers and bodies: read only for users who may view them, and masked for all."""

import json
from dataclasses import asdict, replace

import pytest
from django.test import Client

from celery_wheel.cli.status import report
from celery_wheel.operations.doctor import Installation, schedules
from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.ids import uuid7
from django_wheel.project import project_wheel
from django_wheel.views import payload
from tests.admin.conftest import Configure, MakeClient, end, shown, tallied, text_of
from tests.admin.test_schedules import SCHEDULE, definition, one, rows
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder
from tests.kit.schedules import create, revision
from tests.kit.site import celery_app

ADMIN = "/admin/django_wheel/"
SECRET = "hunter2"  # noqa: S105 - a value that no page may show

BODY = json.dumps([["positional"], {"user": 7, "password": SECRET}, {"chain": [{"kwargs": {"password": SECRET}}]}])
SHOWN_ARGUMENTS = f"{{'user': 7, 'password': '{SECRET}'}}"
HEADERS = json.dumps({"tenant": "acme", "Password": SECRET, "kwargsrepr": SHOWN_ARGUMENTS}).encode()

#: A column of bytes in a statement.
BYTES = "wheel_timer.message"


@pytest.fixture
def masked(conf: Configure) -> None:
    conf(wheel_mask=["password"])


@pytest.fixture
def row(holder: Holder) -> int:
    (found,) = tallied(holder, NOW, task_id="known", body=BODY.encode(), headers=HEADERS)
    end(holder, holder.accept(NOW, body=BODY.encode())[0])
    return int(found.id)


def pages(row: int) -> tuple[str, ...]:
    return ("wheel/", "pending/", "pending/?q=known", "history/", "rejected/", "settlement/", f"pending/{row}/")


@pytest.mark.parametrize("kind", ["observer", "dispatcher", "planner"])
def test_no_message_is_read_for_who_may_not_see(client_of: MakeClient, store: SqlStore, row: int, kind: str) -> None:
    client = client_of(kind)
    for page in pages(row):
        with reads_of(project_wheel().store) as said:  # type: ignore[arg-type]  # the site's own store is one of SQL
            text = shown(client, ADMIN + page)
        assert said, page
        assert not any(BYTES in one for one in said), page
        assert "acme" not in text, page
        assert "positional" not in text, page
        assert "/body/" not in text, page
    assert "you lack the permission" in shown(client, f"{ADMIN}pending/{row}/")
    assert client.get(f"{ADMIN}pending/{row}/body/").status_code == 403


@pytest.mark.parametrize("kind", ["reader", "viewer"])
def test_only_the_page_of_a_task_reads_its_bytes(client_of: MakeClient, row: int, kind: str) -> None:
    client = client_of(kind)
    for page in pages(row):
        with reads_of(project_wheel().store) as said:  # type: ignore[arg-type]
            text = shown(client, ADMIN + page)
        is_task = page == f"pending/{row}/"
        assert any(BYTES in one for one in said) is is_task, page
        assert ("acme" in text and "positional" in text) is is_task, page
    assert client.get(f"{ADMIN}pending/{row}/body/").content == BODY.encode()


def test_the_page_of_a_task_reads_no_more_than_it_shows(client_of: MakeClient, holder: Holder) -> None:
    [large] = holder.accept(NOW, body=b'["' + b"x" * payload.MOST_BYTES + b'"]')
    browse = project_wheel().store.browse
    found = browse.detail(large.id, payload.MOST_BYTES)
    assert found is not None
    assert (found.body, found.headers) == (b"", b"")
    text = shown(client_of("viewer"), f"{ADMIN}pending/{large.id}/")
    assert "too large to be shown" in text
    assert f"{large.id}/body/" in text
    whole = browse.detail(large.id)
    assert whole is not None
    assert len(whole.body) == payload.MOST_BYTES + 4


@pytest.mark.parametrize(
    ("kind", "acts", "manages"),
    [("observer", 403, 403), ("reader", 403, 403), ("dispatcher", 400, 403), ("planner", 403, 400)],
)
def test_each_permission_allows_its_own(client_of: MakeClient, row: int, kind: str, acts: int, manages: int) -> None:
    client = client_of(kind)
    assert shown(client, f"{ADMIN}pending/")
    assert client.post(f"{ADMIN}pending/act/").status_code == acts  # 400: it names no verb
    assert client.get(f"{ADMIN}wheel/gate/").status_code == (200 if acts == 400 else 403)
    assert client.post(f"{SCHEDULE}act/").status_code == manages
    assert client.get(f"{SCHEDULE}edit/").status_code == (200 if manages == 400 else 403)
    assert ("/pending/act/" in shown(client, f"{ADMIN}pending/")) is (acts == 400)
    assert ("/schedule/act/" in shown(client, SCHEDULE)) is (manages == 400)


def a_schedule(holder: Holder) -> None:
    options = {"queue": "mail", "headers": {"password": SECRET, "tenant": "acme"}}
    before = definition(args=["positional"], kwargs={"password": "earlier", "user": 7}, options=options)
    after = definition(args=["positional"], kwargs={"password": SECRET, "user": 8}, options=options)
    [made] = create(holder, "report", definition=before)
    changed = revision(made, "changed", before=json.dumps(asdict(made)))
    made.definition, made.revision = after, 2
    changed.number = 2
    holder.apply(schedules=[made], revisions=[changed])


def test_a_schedules_arguments_are_hidden_from_who_may_not_view_them(client_of: MakeClient, holder: Holder) -> None:
    a_schedule(holder)
    client = client_of("planner")
    text = one(client, "report")
    for word in (SECRET, "earlier", "acme", "positional"):
        assert word not in text, word
    assert "at 09:00" in text
    assert "mail" in text
    assert any("kwargs.user not shown" in line for line in rows(text, "wheel-revisions"))
    assert "/schedule/edit/" not in text
    assert client.get(f"{SCHEDULE}edit/", {"name": "report"}).status_code == 403


#: Definitions that cannot be read, whose errors quote them.
UNREADABLE = (
    f'{{"args": ["{SECRET}"',
    json.dumps([SECRET]),
    json.dumps({"task": "app.report", "args": SECRET}),
    json.dumps({"task": "app.report", "options": {"headers": [SECRET]}}),
)


@pytest.mark.parametrize("kind", ["observer", "planner"])
def test_an_error_is_shown_without_the_value_that_it_quotes_to_a_user_who_may_not_view_it(
    client_of: MakeClient, holder: Holder, kind: str
) -> None:
    error = f"args must be a list, got '{SECRET}'"
    rejected = holder.accept(NOW)[0]
    end(holder, rejected, reason=error)
    refused = AuditEntry(uuid7(), NOW, "api", "anna", "schedule_put", "she got it", "{}", None, "")
    refused.results = json.dumps({"report": {"result": "refused", "reason": error}, "other": "done"})
    holder.apply(audits=[refused])
    for number, text in enumerate(UNREADABLE):
        [made] = create(holder, f"broken{number}", next_ms=None, broken=True, note=error, definition=text)
        broken = json.dumps({"task": "app.report", "broken": error})
        changed = revision(replace(made, revision=2), "changed", before=json.dumps(asdict(made)))
        third = replace(made, revision=3)
        mended = revision(third, "changed", before=json.dumps({**asdict(made), "definition": broken}))
        holder.apply(schedules=[third], revisions=[changed, mended])
    create(holder, "held", next_ms=None, paused=True, note="the provider got slow")
    names = [f"schedule/one/?name=broken{number}" for number in range(len(UNREADABLE))]
    exports = ["audit/export/csv/", "audit/export/jsonl/"]
    client, reader = client_of(kind), client_of("superuser")
    for page in ("rejected/", f"pending/{rejected.id}/", "schedule/", "audit/", *names, *exports):
        text, whole = (b"".join(one.get(ADMIN + page)).decode() for one in (client, reader))
        assert SECRET not in text, page
        assert SECRET in whole, page
    assert "the provider got slow" in shown(client, f"{ADMIN}schedule/")
    assert "she got it" in shown(client, f"{ADMIN}audit/")


def test_a_change_names_no_key_within_an_argument_to_who_may_not_view_it(client_of: MakeClient, holder: Holder) -> None:
    create(holder, "report", definition=definition(kwargs={"limits": {SECRET: 1, "other": 2}}))
    lines = rows(one(client_of("planner"), "report"), "wheel-revisions")
    assert any("kwargs.limits not shown" in line for line in lines)
    assert SECRET not in one(client_of("observer"), "report")
    assert SECRET in one(client_of("superuser"), "report")


@pytest.mark.usefixtures("masked")
def test_nobody_sees_a_masked_value(client_of: MakeClient, row: int) -> None:
    client = client_of("superuser")
    for page in pages(row):
        assert SECRET not in shown(client, ADMIN + page), page
    text = shown(client, f"{ADMIN}pending/{row}/")
    assert "********" in text
    assert "acme" in text
    body = client.get(f"{ADMIN}pending/{row}/body/").content.decode()
    assert SECRET not in body
    assert json.loads(body)[0] == ["positional"]


@pytest.mark.usefixtures("masked")
def test_a_body_that_cannot_be_masked_is_not_shown(client_of: MakeClient, holder: Holder) -> None:
    [pickled] = holder.accept(NOW, body=b"\x80\x05password hunter2")
    client = client_of("superuser")
    text = shown(client, f"{ADMIN}pending/{pickled.id}/")
    assert "no JSON" in text
    assert SECRET not in text
    assert SECRET.encode() not in client.get(f"{ADMIN}pending/{pickled.id}/body/").content


@pytest.mark.usefixtures("masked")
def test_nobody_sees_a_masked_value_of_a_schedule(client_of: MakeClient, holder: Holder) -> None:
    a_schedule(holder)
    client = client_of("superuser")
    text = one(client, "report")
    assert SECRET not in text
    assert "earlier" not in text
    assert any("kwargs.password ********" in line for line in rows(text, "wheel-revisions"))
    form = text_of(client.get(f"{SCHEDULE}edit/", {"name": "report"}))
    assert SECRET not in form
    assert "********" in form


@pytest.mark.usefixtures("masked")
def test_a_reason_quotes_no_masked_value(client_of: MakeClient, holder: Holder) -> None:
    rejected = holder.accept(NOW)[0]
    end(holder, rejected, reason=f"headers must be a list, got {{'password': '{SECRET}")
    note = f"kwargs must be a list, got {{'password': '{SECRET}'}}"
    [broken] = create(holder, "broken", next_ms=None, broken=True, note=note)
    earlier = json.dumps({**asdict(broken), "definition": json.dumps({"task": "app.report", "broken": note})})
    mended = revision(replace(broken, revision=2), "changed", before=earlier)
    holder.apply(schedules=[replace(broken, revision=2)], revisions=[mended])
    client = client_of("superuser")
    for page in ("rejected/", f"pending/{rejected.id}/", "schedule/", "schedule/one/?name=broken"):
        text = shown(client, ADMIN + page)
        assert SECRET not in text, page
        assert "must be a list, got" in text, page


@pytest.mark.usefixtures("masked")
def test_status_and_doctor_quote_no_masked_value(holder: Holder) -> None:
    create(holder, "broken", next_ms=None, broken=True, note=f"kwargs must be a list, got {{'password': '{SECRET}'}}")
    found = [report(project_wheel(), as_json=as_json)[0] for as_json in (True, False)]
    with Installation(celery_app) as site:
        site.store = holder.store  # type: ignore[assignment]  # the store is one of SQL
        found.append(" ".join(one.text for one in schedules.check(site)))
    for text in found:
        assert SECRET not in text
        assert "kwargs must be a list" in text


@pytest.mark.usefixtures("masked")
def test_no_error_quotes_masked_values(client_of: MakeClient, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_wheel.errors import StoreError
    from celery_wheel.store.sql.browse import Browse

    def fail(*_: object, **__: object) -> None:
        raise StoreError(f"kwargs.password must be a number, got '{SECRET}'")

    for name in ("pending", "detail"):
        monkeypatch.setattr(Browse, name, fail)
    client: Client = client_of("superuser")
    for page in ("pending/", "pending/1/", "pending/1/body/"):
        text = shown(client, f"{ADMIN}{page}", 503)
        assert SECRET not in text
        assert "must be a number, got ********" in text
