"""The site's admin over a store that a test fills itself; times stand still where a test compares them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("DJANGO_SETTINGS_MODULE") != "tests.kit.site.settings":
    pytest.skip("needs --ds=tests.kit.site.settings, as `make test` says it", allow_module_level=True)

from django.contrib.auth.models import Permission, User
from django.test import Client

from celery_wheel import overview
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from django_wheel.views import wheel
from tests.kit.holder import Holder
from tests.kit.site import celery_app

SHARDS = 2

#: Kind of a user → codenames of its permissions; the last four have one each.
PERMISSIONS = {
    "viewer": ("view_wheel", "view_payload"),
    "operator": ("operate_wheel", "manage_schedules", "view_payload"),
    "observer": ("view_wheel",),
    "reader": ("view_payload",),
    "dispatcher": ("operate_wheel",),
    "planner": ("manage_schedules",),
}

MakeClient = Callable[[str], Client]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """Return a new store of the site's app."""
    before = celery_app.conf.wheel_store
    celery_app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    made = open_store(celery_app.conf.wheel_store, shards=SHARDS)
    yield made
    made.close()
    celery_app.conf.wheel_store = before


@pytest.fixture(autouse=True)
def always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page show what the test has just written."""
    monkeypatch.setattr(overview, "FRESH_S", 0)
    monkeypatch.setattr(wheel, "YEAR_MS", 0)


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
def nowhere() -> Iterator[None]:
    """Name a store that does not exist in the settings of the site's app."""
    before = celery_app.conf.wheel_store
    celery_app.conf.wheel_store = "sqlite:////nowhere/wheel.sqlite3"
    yield
    celery_app.conf.wheel_store = before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the jobs of the pipeline write their results."""
    monkeypatch.setitem(celery_app.conf, "wheel_results", str(tmp_path))
    return tmp_path


def shown(client: Client, address: str, status: int = 200) -> str:
    """Return the text of a page."""
    response = client.get(address)
    assert response.status_code == status
    return text_of(response)
