"""The place of a broker or a store: its address without user and password, however the URL is written."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from celery import Celery

from celery_wheel.broker.transport import broker_places
from celery_wheel.store.place import shown_place


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("redis://", {"redis://127.0.0.1:6379/0"}),
        ("redis://user:secret@localhost:6380/2", {"redis://127.0.0.1:6380/2"}),
        ("rediss://h/2", {"redis://h:6379/2"}),
        ("redis+socket:///run/redis.sock", {"redis://socket:///run/redis.sock:6379/0"}),
        ("sentinel://a:26379;sentinel://b:26379/0", {"redis://a:26379/0", "redis://b:26379/0"}),
        ("amqp://guest:guest@localhost//", {"amqp://127.0.0.1:5672/"}),
        ("pyamqp://h:5673", {"amqp://h:5673/"}),
        ("amqp://u:secret@a/shop;amqp://u:secret@b/shop", {"amqp://a:5672/shop", "amqp://b:5672/shop"}),
        ("memory://", {"memory://127.0.0.1/"}),
    ],
)
def test_a_place_has_no_user_and_no_password(url: str, places: set[str]) -> None:
    app: Any = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "shop"}
    assert broker_places(app) == places


def test_a_password_in_the_path_of_a_socket_is_masked() -> None:
    app: Any = Celery("shop", broker="redis+socket://:secret@/run/redis.sock", set_as_current=False)
    assert "secret" not in str(broker_places(app))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:secret@db:5432/shop?password=secret&sslmode=require", "postgresql://db:5432/shop"),
        ("postgresql://me:secret@h1:1,h2:2/shop", "postgresql:///shop?host=h1%3A1&host=h2%3A2"),
    ],
)
def test_a_database_is_named_without_user_and_password(url: str, place: str) -> None:
    assert shown_place(url) == place


def test_a_file_is_named_with_its_folder_and_its_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_place("sqlite:///wheel.sqlite3") == f"{tmp_path}/wheel.sqlite3 on {gethostname()}"
