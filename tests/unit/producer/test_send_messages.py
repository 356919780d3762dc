"""A dispatched message equals the message of the same call without a delay, for receivers of signals and events too."""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import celery
import pytest
from celery import signals
from freezegun import freeze_time
from kombu import Connection, Exchange, Queue
from kombu.utils.json import dumps

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError
from tests.unit.producer.memory_broker import Broker, MakeApp, Send, dispatched_form, read_message

SEALED = {f"wheel_{name}_keys": ["a secret of thirty-two characters"] for name in ("encryption", "signing")}

NEVER = datetime.max  # noqa: DTZ901  # people write it for "never"

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 7},
    "expires in seconds": {"expires": 3600},
    "expires at": {"expires": datetime(2099, 1, 1, tzinfo=UTC)},
    "compressed": {"compression": "zlib"},
    "pickled": {"serializer": "pickle"},
    "headers": {
        "headers": {"tenant": "a", "nested": {"x": [1, None]}, "when": datetime(2026, 1, 1, tzinfo=UTC), "é": "\ud800"}
    },
    "a header called wheel": {"headers": {"wheel": {"spokes": 32}, "other": 1}},
    "no result": {"ignore_result": True},
    "limits": {"time_limit": 10, "soft_time_limit": 5},
    "shadow": {"shadow": "another name"},
    "not persistent": {"delivery_mode": 1},
    "reply_to": {"reply_to": "somewhere"},
    "custom property": {"app_id": "billing"},
    "stamps": {"stamped_headers": ["order"], "order": "42"},
    "retries": {"retries": 2, "root_id": "r", "parent_id": "p"},
    "link": {"link": {"task": "proj.touch", "args": [], "kwargs": {}, "options": {}, "subtask_type": None}},
}


def comparable(wire: dict[str, Any]) -> dict[str, Any]:
    """Return a message without values that differ between any two sends, and without its relative time."""
    for name in ("delivery_tag", "body_encoding", "expiration"):
        wire["properties"].pop(name, None)
    return wire


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("protocol", "keys"), [(1, {}), (2, {}), (2, SEALED)], ids=["protocol 1", "protocol 2", "sealed"]
)
def test_a_dispatched_message_equals_the_native_one(
    make_app: MakeApp, broker: Broker, call: str, protocol: int, keys: dict[str, Any]
) -> None:
    app = make_app(task_protocol=protocol, task_send_sent_event=True, **keys)
    options = {"task_id": "the-id", **CALLS[call]}
    with freeze_time("2026-03-28 12:00", ignore=["_pytest"]):  # an expiry in seconds counts from now
        app.send_task("proj.touch", ("ü", 1), {"k": None}, **options)
        native = broker.one_sent()
        app.send_task("proj.touch", ("ü", 1), {"k": None}, countdown=60, **options)
    message = broker.one_waiting(MessageSeal.of(Conf(app)))
    assert protocol == 1 or call.startswith("expires") or message.headers == dumps(native["headers"]).encode()
    waiting = dispatched_form(message)
    if protocol == 1 and call != "pickled":  # the eta of protocol 1 is inside the body, which is not opened
        for wire in (native, waiting):
            body = base64.b64decode(wire["body"])
            body = zlib.decompress(body) if call == "compressed" else body
            wire["body"] = {k: v for k, v in json.loads(body).items() if k not in ("eta", "expires")}
    elif protocol == 1:
        native["body"] = waiting["body"] = ""
    assert comparable(waiting) == comparable(native)


def test_the_eta_stays_with_wheel_keep_eta(add: Any, broker: Broker) -> None:
    eta = datetime(2099, 1, 1, tzinfo=UTC)
    add.apply_async((1, 2), eta=eta)
    (raw,) = broker.raw("wheel.0")
    message = QueuedMessageReader(max_message_bytes=10_000, keep_eta=True).decode(raw)
    assert json.loads(message.headers)["eta"] == eta.isoformat()  # type: ignore[union-attr]


def test_protocol_1_has_its_eta_in_the_body(make_app: MakeApp, broker: Broker) -> None:
    eta = datetime(2099, 1, 1, tzinfo=UTC)
    make_app(task_protocol=1).send_task("proj.add", (1, 2), eta=eta)
    message = broker.one_waiting()
    assert message.headers == b"{}"
    assert json.loads(message.body)["eta"] == eta.isoformat()
    assert (message.task, message.eta_ms) == ("proj.add", int(eta.timestamp() * 1000))


def test_priority_and_expiration_do_not_touch_the_wheel_queue(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=60, priority=9, expires=90)
    (raw,) = broker.raw("wheel.0")
    properties = json.loads(raw)["properties"]
    assert properties["priority"] == 0
    assert "expiration" not in properties
    message = read_message(raw)
    assert message.priority == 9
    expires = datetime.fromisoformat(json.loads(message.headers)["expires"])
    assert message.expires_ms == (expires - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("asked", "priority"), [(None, None), (0, 0), ("3", 3), (-1, 0), (999, 255), ("high", None), (2.9, 2)]
)
def test_a_priority_is_read_as_in_kombu(send: Send, asked: Any, priority: int | None) -> None:
    assert send(priority=asked).priority == priority


@pytest.mark.parametrize("expires", [NEVER, datetime(9999, 12, 31, tzinfo=UTC)])
def test_an_expiry_at_the_end_of_time_is_none(send: Send, expires: datetime) -> None:
    assert send(expires=expires).expires_ms is None


def test_an_expiry_in_the_past_is_kept_for_the_worker_to_see(send: Send) -> None:
    message = send(expires=-100)
    assert message.expires_ms is not None
    assert message.expires_ms < message.created_ms


def test_delayed_tasks_without_a_chosen_id_get_a_uuid7(add: Any, broker: Broker) -> None:
    result = add.apply_async((1, 2), countdown=60)
    message = broker.one_waiting()
    assert message.task_id == result.id
    assert UUID(message.task_id).version == UUID(message.envelope_id).version == 7
    assert UUID(add.delay(1, 2).id).version == 4


def test_an_id_that_no_store_can_hold_is_refused_at_the_call(add: Any, broker: Broker) -> None:
    for task_id in ("x" * 513, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match=r"task_id|surrogates"):
            add.apply_async((1, 2), countdown=60, task_id=task_id)
    assert not broker.waiting()


def test_each_call_has_its_own_envelope(send: Send) -> None:
    messages = [send(task_id="same") for _ in range(3)]
    assert {message.task_id for message in messages} == {"same"}
    assert len({message.envelope_id for message in messages}) == 3


def test_an_envelope_that_a_worker_of_a_wheel_queue_resends_is_replaced(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=60)
    (raw,) = broker.raw("wheel.0")
    add.apply_async((1, 2), countdown=60, headers={"wheel": json.loads(raw)["headers"]["wheel"]})
    assert "wheel" not in json.loads(broker.one_waiting().headers)


@pytest.mark.parametrize("call", ["plain", "compressed", "pickled"])
def test_a_message_that_the_scheduler_would_reject_for_its_size_is_refused_here(
    make_app: MakeApp, broker: Broker, call: str
) -> None:
    options, data = {"countdown": 60, **CALLS[call]}, "".join(map(chr, range(33, 120))) * 50
    make_app().send_task("proj.touch", (data,), **options)
    size = len(broker.one_waiting().body)
    make_app(wheel_max_message_bytes=size).send_task("proj.touch", (data,), **options)
    assert len(broker.one_waiting().body) == size
    with pytest.raises(ArgumentError, match=rf"at most {size - 1:,} bytes \(wheel_max_message_bytes\), got {size:,}"):
        make_app(wheel_max_message_bytes=size - 1).send_task("proj.touch", (data,), **options)
    assert broker.waiting() == []


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
