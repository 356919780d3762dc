"""``self.request.wheel`` is the occurrence of the running task, and None for any other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery.app.task import Context

from celery_wheel.store.schedule_model import OCCURRENCE
from celery_wheel.worker import CurrentOccurrence
from tests.unit.producer.conftest import app, broker, make_app
from tests.unit.worker.test_run_reports import HEADER

__all__ = ["app", "broker", "make_app"]

pytestmark = pytest.mark.usefixtures("app")


def test_a_request_has_the_occurrence_of_its_header() -> None:
    request = Context({OCCURRENCE: {**HEADER, "previous": 500}, "retries": 2})
    first, second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert request.wheel == CurrentOccurrence("report", first, second, 3)
    assert Context({OCCURRENCE: HEADER}).wheel == CurrentOccurrence("report", first, None, 1)


@pytest.mark.parametrize(
    "header", ["text", 5, {}, {"schedule": "a"}, {**HEADER, "scheduled_for": "soon"}, {**HEADER, "previous": 10**30}]
)
def test_a_header_that_no_scheduler_wrote_is_no_occurrence(header: Any) -> None:
    assert Context({OCCURRENCE: header}).wheel is None


def test_other_requests_have_none(app: Any) -> None:
    @app.task(bind=True)
    def see(self: Any) -> Any:
        return self.request.wheel

    assert see() is None
    assert see.apply().get() is None
    assert Context().get("wheel", "default") is None


def test_a_request_is_otherwise_as_before() -> None:
    request = Context({OCCURRENCE: HEADER, "tenant": "acme", "wheel": "own"})
    assert request.headers == {OCCURRENCE: HEADER, "tenant": "acme", "wheel": "own"}, "a retry keeps them"
    assert request.wheel == "own"
    with pytest.raises(AttributeError, match="'Context' object has no attribute 'wheels'"):
        _ = request.wheels
