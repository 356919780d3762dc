"""Signals and events name the true destination and see a plain eta; changes by receivers count."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import celery
import pytest
from celery import signals
from kombu import Connection, Exchange, Queue

from tests.unit.producer.memory_broker import Broker, MakeApp, Send

ETA = datetime(2099, 1, 1, 12, 0, tzinfo=UTC)


@contextmanager
def receiving(signal: Any, receiver: Callable[..., Any] = lambda **_: None) -> Iterator[list[dict[str, Any]]]:
    """Celery logs and ignores a receiver's errors, so the test itself has the assertions."""
    seen: list[dict[str, Any]] = []

    def note(sender: Any = None, **named: Any) -> None:
        seen.append({"sender": sender, **named})
        receiver(**named)

    signal.connect(note, weak=False)
    try:
        yield seen
    finally:
        signal.disconnect(note)


@pytest.mark.parametrize("protocol", [1, 2])
def test_receivers_see_the_true_destination_and_a_plain_eta(make_app: MakeApp, broker: Broker, protocol: int) -> None:
    app = make_app(task_protocol=protocol)
    with receiving(signals.before_task_publish) as before, receiving(signals.after_task_publish) as after:
        app.send_task("proj.add", (1, 2), eta=ETA, queue="emails")
    assert broker.waiting()
    for call in (before[0], after[0]):
        assert (call["sender"], call["exchange"], call["routing_key"]) == ("proj.add", "", "emails")
        eta = (call["body"] if protocol == 1 else call["headers"])["eta"]
        assert eta == ETA.isoformat()
        assert type(eta) is str, "one that is true"
        assert "wheel" not in call["headers"]
    assert [queue.name for queue in before[0]["declare"]] == ["emails"]


def test_after_publishing_compression_is_in_the_headers(add: Any) -> None:
    with receiving(signals.after_task_publish) as after:
        add.apply_async((1, 2), eta=ETA, compression="zlib")
        add.apply_async((1, 2), compression="zlib")
    assert after[0]["headers"]["compression"] == after[1]["headers"]["compression"] == "application/x-gzip"


def test_receivers_changes_of_headers_and_properties_are_sent(send: Send) -> None:
    def change(headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = "a"
        properties["priority"] = 4
        properties["reply_to"] = "elsewhere"

    with receiving(signals.before_task_publish, change):
        message = send()
    assert b'"tenant": "a"' in message.headers
    assert b'"reply_to": "elsewhere"' in message.properties
    assert message.priority == 4


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_receivers_change_of_the_eta_counts(make_app: MakeApp, broker: Broker, protocol: int) -> None:
    def postpone(headers: dict[str, Any], body: Any, **_: Any) -> None:
        (body if protocol == 1 else headers)["eta"] = "2099-01-02T12:00:00"

    with receiving(signals.before_task_publish, postpone):
        make_app(task_protocol=protocol).send_task("proj.add", (1, 2), eta=ETA)
    assert broker.one_waiting().eta_ms == (ETA.timestamp() + 86_400) * 1000


def test_a_receiver_may_remove_the_eta(add: Any, broker: Broker) -> None:
    def at_once(headers: dict[str, Any], **_: Any) -> None:
        headers["eta"] = None

    with receiving(signals.before_task_publish, at_once):
        add.apply_async((1, 2), eta=ETA, priority=3)
    message = broker.one_sent()
    assert "wheel" not in message["headers"]
    assert message["properties"]["priority"] == 3


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery no longer sees a new receiver once it removed a dead one")
def test_a_receivers_own_message_does_not_inherit_the_delay(make_app: MakeApp, broker: Broker) -> None:
    app = make_app()
    other = make_app(wheel_namespace="other")

    def send_more(headers: dict[str, Any], **_: Any) -> None:
        if headers["task"] == "proj.add":
            app.send_task("proj.touch", ("now",))
            app.send_task("proj.touch", ("later",), eta="2100-01-01T00:00:00Z")
            other.send_task("proj.touch", ("there",))

    for signal in (signals.before_task_publish, signals.after_task_publish):
        with receiving(signal, send_more):
            app.send_task("proj.add", (1, 2), eta=ETA)
        waiting = {message.task: message.eta_ms for message in broker.waiting()}
        assert waiting == {"proj.add": ETA.timestamp() * 1000, "proj.touch": 4102444800000}
        sent = [message["headers"] for message in broker.sent()]
        assert [(headers["task"], headers["eta"]) for headers in sent] == [("proj.touch", None)] * 2
        assert not broker.waiting(namespace="other")


def test_a_router_that_sends_does_not_pass_the_delay_on(make_app: MakeApp, broker: Broker) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, Any]:
        if name == "proj.add":
            app.send_task("proj.touch")
        return {"queue": "celery"}

    app = make_app(task_routes=(route,))
    app.send_task("proj.add", (1, 2), eta=ETA)
    assert [message.task for message in broker.waiting()] == ["proj.add"]
    assert [message["headers"]["task"] for message in broker.sent()] == ["proj.touch"]


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_task_sent_event_goes_where_events_go_and_names_the_true_destination(
    make_app: MakeApp, broker: Broker, protocol: int
) -> None:
    app = make_app(task_send_sent_event=True, task_protocol=protocol)
    with Connection("memory://") as connection:
        Queue("events", Exchange("celeryev", "topic"), "#")(connection.default_channel).declare()
        app.send_task("proj.add", (1, 2), eta=ETA, queue="emails", task_id="t")
    (event,) = broker.sent("events")
    assert event["headers"] == {"hostname": event["headers"]["hostname"]}
    expected = {"uuid": "t", "queue": "emails", "exchange": "", "routing_key": "emails", "eta": ETA.isoformat()}
    assert {**json.loads(base64.b64decode(event["body"])), **expected} == json.loads(base64.b64decode(event["body"]))
    assert broker.waiting()
