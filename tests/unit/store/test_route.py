"""Routes: one object for equal values, and a bounded number of them in memory."""

from __future__ import annotations

import pytest

from celery_wheel.store import model
from celery_wheel.store.model import Route
from tests.kit.holder import message


def test_messages_of_equal_destinations_have_one_route() -> None:
    assert Route.of(message(queue="mail")) is Route.of(message(queue="mail"))
    assert Route.of(message(queue="mail")) is not Route.of(message(queue="sms"))


def test_routes_in_memory_are_bounded_also_where_threads_have_made_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ROUTES", {})
    for number in range(5):
        Route.of(message(queue=f"queue-{number}"))
    monkeypatch.setattr(model, "MAX_ROUTES", 3)
    for number in range(5, 20):
        Route.of(message(queue=f"queue-{number}"))
        assert len(model._ROUTES) <= 3
