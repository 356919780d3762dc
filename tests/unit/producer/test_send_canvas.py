"""Retries and canvas: all delayed steps wait in the wheel, and run one by one. tests/unit/testing has whole chains."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group
from freezegun import freeze_time

from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp, dispatched_form, run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture(autouse=True)
def _frozen() -> Any:
    with freeze_time(NOW, ignore=["_pytest"]):
        yield


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app(result_backend="cache+memory://")


def delay(message: Message) -> float:
    """Return the seconds until a message is due."""
    return (message.eta_ms - NOW_MS) / 1000


def steps(app: Any, broker: Broker, count: int) -> list[Message]:
    """Run the one pending message, and the one that it leaves, and so on; returns all of them."""
    found = []
    for _ in range(count):
        found.append(broker.one_waiting())
        run(app, dispatched_form(found[-1]))
    return found


def test_a_retry_keeps_id_destination_and_headers(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.flaky", shared=False)
    def flaky(self: Any, x: int) -> None:
        raise self.retry(countdown=0.4)

    flaky.apply_async((1,), queue="emails", headers={"tenant": "a"}, priority=5, expires=3600, task_id="t")
    run(app, broker.one_sent("emails"))
    message = broker.one_waiting()
    assert (message.task_id, message.queue, delay(message)) == ("t", "emails", 0.4)
    assert b'"retries": 1' in message.headers
    assert b'"tenant": "a"' in message.headers
    assert message.expires_ms == NOW_MS + 3_600_000


def test_a_released_retry_retries_again_under_a_new_envelope(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.flaky", shared=False, max_retries=5)
    def flaky(self: Any) -> None:
        raise self.retry(countdown=2**self.request.retries)

    flaky.apply_async(countdown=10)
    seen = steps(app, broker, 4)
    assert [delay(m) for m in seen] == [10, 1, 2, 4]
    assert len({m.task_id for m in seen}) == 1
    assert len({m.envelope_id for m in seen}) == 4
    assert not any(b"wheel" in m.headers + m.properties + m.body for m in seen)


def test_an_autoretry_with_backoff_waits_in_the_wheel(app: Any, broker: Broker) -> None:
    @app.task(
        name="proj.auto", shared=False, autoretry_for=(KeyError,), retry_backoff=3, retry_jitter=False, max_retries=9
    )
    def auto() -> None:
        raise KeyError

    auto.delay()
    run(app, broker.one_sent())
    assert [delay(m) for m in steps(app, broker, 3)] == [3, 6, 12]


def test_groups_and_skew_keep_their_delays(app: Any, broker: Broker) -> None:
    add = app.tasks["proj.add"]
    group(add.s(i, i) for i in range(3)).apply_async(countdown=7)
    assert [delay(m) for m in broker.waiting()] == [7, 7, 7]
    group(add.s(i, i) for i in range(3)).skew(start=1, stop=10)()
    assert [delay(m) for m in broker.waiting()] == [1, 2, 3]


def test_a_chord_on_a_backend_without_join_unlocks_by_way_of_the_wheel(
    make_app: MakeApp, broker: Broker, tmp_path: Path
) -> None:
    app = make_app(result_backend=f"file://{tmp_path}")
    add = app.tasks["proj.add"]
    chord([add.s(1, 2), add.s(3, 4)])(app.tasks["proj.touch"].s())
    [unlock] = broker.waiting()
    run(app, dispatched_form(unlock))  # not ready: it retries
    assert [(m.task, delay(m)) for m in (unlock, *broker.waiting())] == [("celery.chord_unlock", 1)] * 2
    for message in broker.sent():
        run(app, message)
    run(app, dispatched_form(unlock))
    assert broker.one_sent()["headers"]["task"] == "proj.touch"
