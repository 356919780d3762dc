"""The site's admin over a store that a test fills itself; times stand still where a test compares them."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("DJANGO_SETTINGS_MODULE") != "tests.kit.site.settings":
    pytest.skip("needs --ds=tests.kit.site.settings, as the Makefile says it", allow_module_level=True)

from django.contrib.auth.models import Permission, User
from django.test import Client
from freezegun import freeze_time

from celery_wheel import overview
from celery_wheel.store import open_store
from celery_wheel.store.model import NewReject
from celery_wheel.store.sql.store import SqlStore
from django_wheel.views import requests, wheel
from tests.kit.holder import LEASE, NOW, Holder, hour_of
from tests.kit.new_stores import new_file
from tests.kit.patience import patience
from tests.kit.site import celery_app

ADMIN = "/admin/django_wheel"

#: NOW of the samples, as a moment.
MOMENT = "2027-01-15 08:00:00"

#: Kind of a user → codenames of its permissions; the last five have one each.
PERMISSIONS = {
    "viewer": ("view_wheel", "view_payload"),
    "operator": ("operate_wheel", "manage_schedules", "erase_data", "view_payload"),
    "observer": ("view_wheel",),
    "reader": ("view_payload",),
    "dispatcher": ("operate_wheel",),
    "planner": ("manage_schedules",),
    "eraser": ("erase_data",),
}

MakeClient = Callable[[str], Client]
Configure = Callable[..., None]


@pytest.fixture
def conf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Return a function that sets settings of the site's app until the test ends."""

    def change(**settings: Any) -> None:
        for name, value in settings.items():
            monkeypatch.setitem(celery_app.conf, name, value)
        for cached in ("amqp", "_pool"):
            celery_app.__dict__.pop(cached, None)

    yield change
    celery_app.__dict__.pop("amqp", None)


@pytest.fixture
def store(tmp_path: Path, conf: Configure) -> Iterator[SqlStore]:
    conf(wheel_store=new_file(tmp_path / "wheel.sqlite3", shards=2))
    made = open_store(celery_app.conf.wheel_store, shards=2)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page show what the test has just written."""
    monkeypatch.setattr(overview, "FRESH_S", 0)
    monkeypatch.setattr(wheel, "YEAR_MS", 0)
    monkeypatch.setattr(wheel, "SEARCH_S", patience())


@pytest.fixture
def still() -> Iterator[None]:
    with freeze_time(MOMENT):
        yield


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request that no holder answers end soon."""
    monkeypatch.setattr(requests, "TIMEOUT_S", 0.05)


@pytest.fixture
def holder(store: SqlStore) -> Holder:
    return Holder(store)


@pytest.fixture
def client_of(db: None) -> MakeClient:
    """Return a client of ``anonymous``, ``staff`` (no permission), ``superuser``, or a kind in PERMISSIONS."""

    def make(kind: str) -> Client:
        client = Client()
        if kind == "anonymous":
            return client
        user = User.objects.create_user(kind, password=kind, is_staff=True, is_superuser=kind == "superuser")
        user.user_permissions.add(*Permission.objects.filter(codename__in=PERMISSIONS.get(kind, ())))
        client.force_login(user)
        return client

    return make


@pytest.fixture
def viewer(client_of: MakeClient) -> Client:
    return client_of("viewer")


@pytest.fixture
def operator(client_of: MakeClient) -> Client:
    return client_of("operator")


def text_of(response: Any) -> str:
    found: str = response.content.decode()
    return found


@pytest.fixture
def nowhere(tmp_path: Path, conf: Configure) -> Path:
    conf(wheel_store=f"sqlite:///{tmp_path}/nowhere.sqlite3")
    return tmp_path / "nowhere.sqlite3"


@pytest.fixture
def folder(tmp_path: Path, conf: Configure) -> Path:
    conf(wheel_results=str(tmp_path))
    return tmp_path


def shown(client: Client, address: str, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status
    return text_of(response)


def snapshot(**changes: Any) -> dict[str, Any]:
    bucket = {"index": 17, "expiration_ms": NOW + 340, "pending": 3}
    return {
        "at_ms": NOW,
        "clock_disputed_ms": 0,
        "clock_skew_ms": 0,
        "window_count": 3,
        "window_bytes": 300,
        "next_due_ms": NOW + 340,
        "dispatched": 1_234,
        "rejected": 1,
        "late_ms_max": 5,
        "late": {"count": 1, "p50_ms": 40, "p99_ms": 40, "max_ms": 40},
        "levels": [
            {"level": 0, "tick_ms": 1, "interval_ms": 512, "current_time_ms": NOW, "pending": 3, "buckets": [bucket]},
            {"level": 1, "tick_ms": 512, "interval_ms": 262_144, "current_time_ms": NOW, "pending": 0, "buckets": []},
        ],
        **changes,
    }


def renew(holder: Holder, at_ms: int = NOW, **changes: Any) -> None:
    holder.store.renew(0, holder.epoch, at_ms, LEASE, snapshot(**changes))


def tallied(holder: Holder, *due_ms: int, **parts: Any) -> list[Any]:
    """Accept messages, and count them as the engine does."""
    rows = holder.accept(*due_ms, **parts)
    for row in rows:
        holder.apply(tally={hour_of(row): 1})
    return rows


def end(holder: Holder, row: Any, kind: str = "rejected", reason: str = "asked for") -> None:
    outcome = replace(holder.outcome(row.id, kind), reason=reason)
    holder.apply(moves=[holder.stop(row)], outcomes=[outcome])


def unreadable(holder: Holder, raw: bytes = b"\x80", reason: str = "asked for") -> NewReject:
    bad = holder.reject(raw)
    holder.apply(rejects=[bad], outcomes=[replace(holder.outcome(bad.id, "rejected"), reason=reason)])
    return bad
