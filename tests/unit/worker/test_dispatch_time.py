"""A worker's events and headers have the time of dispatch, and the worker itself waits for nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import celery
import pytest
from celery.worker.request import Request
from kombu.message import Message

from celery_wheel.values.ids import dispatch_ids
from celery_wheel.worker.dispatch_time import SENTRY_ENQUEUED, pass_dispatch_time

DISPATCHED_MS = 1_800_000_000_123
DISPATCHED = datetime.fromtimestamp(DISPATCHED_MS / 1_000, UTC).isoformat()
OWN_TAG = "0e4b6f43-8a1b-4c1c-a7cf-2bb1ec5a2b3e"


@pytest.fixture
def app() -> Any:
    app = celery.Celery("proj", set_as_current=False)

    @app.task(name="note", shared=False)
    def note() -> None: ...

    return app


def request_of(app: Any, eta: str | None = None, headers: Any = None, **properties: Any) -> Request:
    own = {"id": "a", "task": "note", "eta": eta, "headers": headers, "lang": "py"}
    message = Message(  # type: ignore[no-untyped-call]
        body=json.dumps([[], {}, {}]), headers=own, properties=properties, content_type="application/json"
    )
    return Request(message, app=app, task=app.tasks["note"], headers=own, decoded=True, body=([], {}, {}))


@pytest.mark.parametrize("name", ["delivery_tag", "message_id"])
def test_the_event_shows_the_time_of_dispatch_as_eta_and_the_worker_delays_nothing(app: Any, name: str) -> None:
    request = request_of(app, **{"delivery_tag": OWN_TAG, name: next(dispatch_ids(DISPATCHED_MS)).decode()})
    pass_dispatch_time(request)
    assert not request.eta
    assert json.loads(json.dumps(request.eta and request.eta.isoformat())) == DISPATCHED
    assert request.eta.isoformat() == DISPATCHED
    assert request.request_dict["eta"] is None


def test_the_latency_of_sentry_begins_at_the_dispatch(app: Any) -> None:
    headers = {SENTRY_ENQUEUED: 17.5, "own": 1}
    pass_dispatch_time(request_of(app, headers=headers, delivery_tag=next(dispatch_ids(DISPATCHED_MS)).decode()))
    assert headers == {SENTRY_ENQUEUED: DISPATCHED_MS / 1_000, "own": 1}
    without: dict[str, Any] = {"own": 1}
    pass_dispatch_time(request_of(app, headers=without, delivery_tag=next(dispatch_ids(DISPATCHED_MS)).decode()))
    assert without == {"own": 1}


def test_a_message_that_was_not_delayed_stays_as_it_is(app: Any) -> None:
    headers = {SENTRY_ENQUEUED: 17.5}
    request = request_of(app, headers=headers, delivery_tag=OWN_TAG)
    pass_dispatch_time(request)
    assert (request.eta, headers) == (None, {SENTRY_ENQUEUED: 17.5})


def test_an_eta_of_the_message_itself_stays(app: Any) -> None:
    """With ``wheel_keep_eta`` the task reads its own eta."""
    request = request_of(app, eta="2027-01-15T08:00:00+00:00", delivery_tag=next(dispatch_ids(DISPATCHED_MS)).decode())
    pass_dispatch_time(request)
    assert request.eta.isoformat() == "2027-01-15T08:00:00+00:00"
    assert request.eta
