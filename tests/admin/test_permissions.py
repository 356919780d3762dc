"""Permissions at every address and method; nothing changes without a confirmation."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib import admin
from django.urls import URLPattern, URLResolver, get_resolver
from sqlalchemy import select

from celery_wheel.store.model import Gate
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from tests.admin.conftest import ADMIN, MakeClient, end, shown, tallied, text_of, unreadable
from tests.kit.holder import NOW, Holder

NASTY = "</td><script>alert(1)</script>\u202e\x07"


def patterns(resolver: Any = None, prefix: str = "/") -> Iterator[str]:
    for one in (resolver or get_resolver()).url_patterns:
        here = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from patterns(one, here)
        elif isinstance(one, URLPattern):
            yield here


#: Every address of django_wheel; the test finds them, so that a new one is tested too.
ADDRESSES = [one for one in patterns() if "/django_wheel/" in one]


#: Addresses that keep something in the session of every viewer.
MARKING = {f"{ADMIN}/wheel/seen/": ("POST",)}

#: Addresses that act, and their methods; all other addresses only read.
ACTING = {
    f"{ADMIN}/pending/act/": ("POST",),
    f"{ADMIN}/pending/bulk/": ("GET", "HEAD"),
    f"{ADMIN}/pending/bulk/<uuid:bulk>/": ("GET", "HEAD", "POST"),
    f"{ADMIN}/group/limits/": ("GET", "HEAD", "POST"),
    f"{ADMIN}/wheel/gate/": ("GET", "HEAD", "POST"),
    f"{ADMIN}/audit/erase/": ("GET", "HEAD", "POST"),
    f"{ADMIN}/schedule/act/": ("POST",),
    f"{ADMIN}/schedule/edit/": ("GET", "HEAD", "POST"),
    f"{ADMIN}/schedule/preview/": ("POST",),
}
#: The status of an action without a verb, of a page without a name, and without a bulk action.
INCOMPLETE = {
    (f"{ADMIN}/wheel/seen/", "POST"): 400,
    (f"{ADMIN}/pending/act/", "POST"): 400,
    (f"{ADMIN}/pending/bulk/<uuid:bulk>/", "GET"): 404,
    (f"{ADMIN}/pending/bulk/<uuid:bulk>/", "HEAD"): 404,
    (f"{ADMIN}/pending/bulk/<uuid:bulk>/", "POST"): 302,
    (f"{ADMIN}/schedule/act/", "POST"): 400,
    (f"{ADMIN}/schedule/one/", "GET"): 404,
    (f"{ADMIN}/schedule/one/", "HEAD"): 404,
}


@pytest.fixture
def row(holder: Holder) -> int:
    parts = {"task": NASTY, "task_id": NASTY, "queue": NASTY, "body": NASTY.encode(), "headers": b'{"a": "<i>"}'}
    (found,) = tallied(holder, NOW, **parts)
    return int(found.id)


def path_of(address: str, row: int) -> str:
    return address.replace("<int:timer_id>", str(row)).replace("<uuid:bulk>", str(UUID(int=1)))


def contents(store: SqlStore) -> dict[str, list[Any]]:
    with store.database.reading() as connection:
        return {
            table.name: [tuple(one) for one in connection.execute(select(table))]
            for table in schema.metadata.sorted_tables
        }


def test_the_addresses_are_found() -> None:
    assert len(ADDRESSES) == 27
    assert set(ACTING) < set(ADDRESSES)
    assert {type(admin.site._registry[one]).__module__ for one in admin.site._registry} >= {"django_wheel.views.lists"}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    ("kind", "status"),
    [("anonymous", 302), ("staff", 403), ("viewer", 200), ("operator", 200), ("superuser", 200)],
)
def test_every_address_allows_only_its_methods_and_users(
    client_of: MakeClient, store: SqlStore, row: int, address: str, kind: str, status: int
) -> None:
    client, before = client_of(kind), contents(store)
    methods = ACTING.get(address) or MARKING.get(address, ("GET", "HEAD"))
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        response = client.generic(method, path_of(address, row), "x=1")
        wanted = status
        if status == 200 and address in ACTING and kind not in ("operator", "superuser"):
            wanted = 403
        elif status == 200 and method not in methods:
            wanted = 405
        elif status == 200:
            wanted = INCOMPLETE.get((address, method), 200)
        assert response.status_code == wanted, method
        if status == 302:
            assert response["Location"].startswith("/admin/login/")
    assert contents(store) == before


@pytest.mark.parametrize(("kind", "status"), [("anonymous", 302), ("staff", 403), ("viewer", 403)])
def test_a_user_without_the_permission_changes_nothing(
    client_of: MakeClient, store: SqlStore, row: int, kind: str, status: int
) -> None:
    client, before = client_of(kind), contents(store)
    for verb in ("cancel", "run_now", "reschedule", "requeue"):
        data = {"verb": verb, "row": row, "sure": "yes", "eta": "2030-01-01T00:00"}
        for every in ({}, {"all": "yes"}):
            assert client.post(f"{ADMIN}/pending/act/", {**data, **every}).status_code == status
    for verb in ("pause", "resume"):
        data = {"verb": verb, "scope": "all"}
        assert client.post(f"{ADMIN}/wheel/gate/", data).status_code == status
    for verb in ("pause", "resume", "trigger", "delete", "backfill", "rollback", "change"):
        data = {"verb": verb, "row": "report", "sure": "yes", "revision": "1", "zone": "UTC"}
        assert client.post(f"{ADMIN}/schedule/act/", data).status_code == status
    for page in ("edit", "preview"):
        assert client.post(f"{ADMIN}/schedule/{page}/", {"name": "report"}).status_code == status
    data = {"scope": "task_id", "name": NASTY, "sure": "on"}
    assert client.post(f"{ADMIN}/audit/erase/", data).status_code == status
    assert contents(store) == before


@pytest.mark.parametrize(
    "address",
    ["pending/act/", "wheel/gate/", "audit/erase/", *(f"schedule/{one}/" for one in ("act", "edit", "preview"))],
)
def test_another_site_cannot_act_in_an_operators_name(client_of: MakeClient, address: str) -> None:
    client = client_of("operator")
    client.handler.enforce_csrf_checks = True
    data = {"verb": "pause", "scope": "all", "row": 1, "sure": "yes"}
    assert client.post(f"{ADMIN}/{address}", data).status_code == 403


@pytest.mark.parametrize("kind", ["viewer", "operator"])
def test_only_operators_are_offered_actions(client_of: MakeClient, holder: Holder, row: int, kind: str) -> None:
    holder.apply(gates=[Gate("queue", "mail", "paused", 0, "", "root", NOW)])
    end(holder, holder.accept(NOW)[0])
    client = client_of(kind)
    for address in ("wheel/", "wheel/live/", "pending/", f"pending/{row}/", "rejected/"):
        text = text_of(client.get(f"{ADMIN}/{address}"))
        offered = "/wheel/gate/" in text or "/pending/act/" in text
        assert offered is (kind == "operator"), address
        assert ('type="checkbox" name="row"' in text) is (kind == "operator" and address in ("pending/", "rejected/"))


@pytest.mark.parametrize("kind", ["viewer", "operator", "superuser"])
def test_djangos_own_forms_are_not_reachable(client_of: MakeClient, store: SqlStore, row: int, kind: str) -> None:
    client, before = client_of(kind), contents(store)
    for page in ("wheel", "pending", "history", "rejected", "settlement", "shard", "lateness", "forecast", "schedule"):
        for form in ("add", f"{row}/change", f"{row}/delete", f"{row}/history"):
            for method in ("GET", "POST"):
                assert client.generic(method, f"{ADMIN}/{page}/{form}/").status_code == 404
        data = {"action": "delete_selected", "_selected_action": row, "post": "yes"}
        assert client.post(f"{ADMIN}/{page}/", data).status_code == 405
    assert contents(store) == before


@pytest.mark.parametrize(("kind", "sees"), [("staff", False), ("viewer", True), ("operator", True)])
def test_the_admins_index_offers_the_pages_to_those_who_may(client_of: MakeClient, kind: str, sees: bool) -> None:
    text = text_of(client_of(kind).get("/admin/"))
    assert (f"{ADMIN}/pending/" in text) is sees
    assert f"{ADMIN}/pending/add/" not in text


@pytest.mark.parametrize("kind", ["viewer", "operator"])
def test_no_message_reaches_a_page_unescaped(client_of: MakeClient, holder: Holder, row: int, kind: str) -> None:
    holder.apply(moves=[holder.stop(holder.accept(NOW)[0])])
    bad = unreadable(holder, NASTY.encode(), NASTY)
    client = client_of(kind)
    pages = ["wheel/", "pending/", "rejected/", f"pending/{row}/", f"pending/{bad.id}/"]
    for address in [*pages, *(f"pending/?{name}={NASTY}" for name in ("q", "task")), f"history/?from={NASTY}"]:
        text = shown(client, f"{ADMIN}/{address}")
        assert "<script>alert" not in text, address
        assert "<i>" not in text, address
        assert "\u202e" not in text.replace("value=", "").split("<form")[-1].split("</form>")[-1], address


def test_long_names_are_truncated(client_of: MakeClient, holder: Holder) -> None:
    holder.accept(NOW, task="t" * 100_000, task_id="i" * 100_000, body=b"b" * 90_000)
    client = client_of("viewer")
    assert len(client.get(f"{ADMIN}/pending/").content) < 50_000
    one = client.get(f"{ADMIN}/pending/{holder.ids()[0]}/")
    assert len(one.content) < 50_000
    assert "more characters" in text_of(one)


def test_a_browser_does_not_cache_pages(client_of: MakeClient, row: int) -> None:
    assert "no-store" in client_of("viewer").get(f"{ADMIN}/pending/")["Cache-Control"]
