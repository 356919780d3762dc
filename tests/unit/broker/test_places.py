"""The place of a broker: its address, without user and password, however the URL is written."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_wheel.broker.owner import broker_places


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
