"""Received messages: those that stay with Celery, and those that go to the wheel."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu import Exchange, Queue
from kombu.message import Message

from celery_wheel import Celery
from celery_wheel.broker.envelope import HEADER, NATIVE
from celery_wheel.producer.rescue import ReceivedMessage, ReceivedMessageReader, _may_get

QUEUES = [Queue("celery", Exchange("celery"), "celery"), Queue("golf", Exchange("news", "topic"), "news.golf")]


@pytest.fixture
def app() -> Iterator[Any]:
    found = Celery("proj", broker="memory://", set_as_current=False)
    yield found
    found.close()


@pytest.fixture
def reader(app: Any) -> ReceivedMessageReader:
    return reader_of(app)


def reader_of(app: Any) -> ReceivedMessageReader:
    return ReceivedMessageReader(SimpleNamespace(app=app, task_consumer=SimpleNamespace(queues=QUEUES)))


def message(seconds: float = 60, headers: dict[str, Any] | None = None, **parts: Any) -> Message:
    eta = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    values: dict[str, Any] = {
        "body": b"[[], {}, {}]",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"task": "t", "id": "1", "eta": eta, "retries": 0, **(headers or {})},
        "properties": {"correlation_id": "1", "priority": 3, "expiration": "1000", "delivery_mode": 2},
        "delivery_info": {"exchange": "", "routing_key": "celery"},
    }
    return Message(**{**values, **parts})


def read(reader: ReceivedMessageReader, one: Message, payload: Any = None) -> ReceivedMessage:
    found = reader.read(one, payload)
    assert found is not None
    return found


def test_a_message_returns_to_its_queue_unchanged(reader: ReceivedMessageReader) -> None:
    one = message(headers={"expires": "2098-01-01T00:00:00+00:00"})
    found = read(reader, one)
    envelope = found.envelope
    assert (envelope.exchange, envelope.routing_key, envelope.queue, envelope.priority) == ("", "celery", "celery", 3)
    assert envelope.expires_ms == 4_039_372_800_000
    assert found.properties == {"correlation_id": "1", "delivery_mode": 2}
    assert {name: value for name, value in found.headers.items() if name != HEADER} == one.headers
    assert found.body == one.body


def test_the_same_message_has_the_same_id_and_another_has_another(reader: ReceivedMessageReader) -> None:
    one = message()
    ids = [read(reader, again).envelope.id for again in (one, one, message(61), message(headers={"id": "2"}))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (message(-5), "past"),
        (message(0.5), "near"),
        (message(headers={"eta": None}), "no eta"),
        (message(headers={NATIVE: True}), "the wheel has had it"),
        (message(headers={"expires": "2020-01-01T00:00:00+00:00"}), "expired"),
        (message(headers={HEADER: {"v": 1, "eta_ms": 5}}), "out of the wheel queue"),
        (message(headers={"compression": "no such"}), "cannot be unpacked"),
        (message(content_type=None), "unknown content"),
        (message(delivery_info={"exchange": "", "routing_key": "elsewhere"}), "by no queue of this worker"),
        (message(delivery_info={"exchange": "news", "routing_key": "news.chess"}), "by no queue of this worker"),
    ],
)
def test_a_message_stays_with_celery(reader: ReceivedMessageReader, one: Message, why: str) -> None:
    assert reader.read(one, None) is None, why


def test_a_message_of_a_queue_that_the_list_lacks_stays_with_its_worker(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler would reject it when it is due, and would not return it to the queue."""
    app.conf.wheel_destinations = ["mail"]
    assert reader_of(app).read(message(), None) is None
    assert "wheel_destinations does not name its queue, 'celery'" in caplog.text
    app.conf.wheel_destinations = ["@app"]
    assert reader_of(app).read(message(), None) is not None
    app.conf.update(wheel_destinations=["mail"], wheel_signing_keys=["a secret of thirty-two characters"])
    assert reader_of(app).read(message(), None) is not None, "the worker signs what it forwards"
    app.conf.wheel_signing_keys = ["", "a secret of thirty-two characters"]
    assert reader_of(app).read(message(), None) is None, "it signs no more"


@pytest.mark.parametrize(
    "headers",
    [
        {"eta": "tomorrow"},
        {"eta": "9999-12-31T00:00:00+00:00"},
        {"id": "x" * 2_000},
        {"expires": "never"},
        {"task": "\0"},
    ],
)
def test_an_unreadable_message_raises_an_error_that_the_step_handles(
    reader: ReceivedMessageReader, headers: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError)):
        reader.read(message(headers=headers), None)


def test_a_naive_eta_is_utc_whatever_the_time_zone(app: Any) -> None:
    app.conf.update(timezone="America/New_York", enable_utc=False)
    found = read(reader_of(app), message(headers={"eta": "2099-01-01T00:00:00"}))
    assert found.envelope.eta_ms == 4_070_908_800_000


def test_protocol_1_is_read_from_its_body_and_marked_because_it_keeps_its_eta(reader: ReceivedMessageReader) -> None:
    body = {"task": "t", "id": "7", "eta": "2099-01-01T00:00:00+00:00", "retries": 1, "utc": True}
    one = message()
    one.headers = {}
    found = read(reader, one, body)
    assert (found.envelope.task_id, found.headers[NATIVE]) == ("7", True)


def test_revoked_messages_stay_with_celery(reader: ReceivedMessageReader) -> None:
    def stamped(*by: str) -> Message:
        return message(headers={"id": "2", "stamped_headers": ["batch"], "stamps": {"batch": [*by]}})

    state.revoked.add("1")
    state.revoked_stamps["batch"] = ["b-1"]
    try:
        assert [reader.read(one, None) for one in (message(), stamped("b-1"))] == [None, None]
        assert reader.read(stamped("b-2"), None) is not None
    finally:
        state.revoked.clear()
        state.revoked_stamps.clear()


def test_wheel_min_delay_counts_where_it_is_longer(app: Any) -> None:
    app.conf.wheel_min_delay = 120
    assert reader_of(app).read(message(), None) is None


@pytest.mark.parametrize(
    ("kind", "key", "routing_key", "expected"),
    [
        ("topic", "news.#", "news.a.b", True),
        ("topic", "news.#", "news", True),
        ("topic", "*.golf", "news.golf", True),
        ("topic", "*.golf", "news.chess", False),
        ("topic", "a[b]", "ab", False),
        ("direct", "order", "order", True),
        ("direct", "order", "orders", False),
        ("fanout", "", "anything", True),
    ],
)
def test_bindings_decide_which_queues_may_get_a_message(kind: str, key: str, routing_key: str, expected: bool) -> None:
    assert _may_get(Queue("q", Exchange("e", kind), key), "e", routing_key) is expected
    assert not _may_get(Queue("q", Exchange("other", kind), key), "e", routing_key)
