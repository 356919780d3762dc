"""The wheel queue of a real RabbitMQ: its messages are read, acknowledged and returned."""

from __future__ import annotations

import pytest

from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.values.ids import dispatched_ms
from tests.integration.rabbit_edge.conftest import Yard
from tests.kit.chunks import chunk_of
from tests.kit.patience import wait_until

BIG = 2**30


def send(yard: Yard, count: int, **options: object) -> list[str]:
    return [
        yard.app.send_task("tasks.add", (n,), countdown=60, queue="mail", **options).id  # type: ignore[arg-type]
        for n in range(count)
    ]


def peek(edge: AmqpBroker, at_least: int, max_count: int = 1_000, max_bytes: int = BIG) -> Peeked:
    found: list[Peeked] = []

    def look() -> bool:
        found.append(edge.peek(0, max_count, max_bytes))
        return len(found[-1].arrivals) >= at_least

    wait_until(look, f"{at_least} messages")
    return found[-1]


def is_lost(edge: AmqpBroker) -> bool:
    try:
        edge.peek(0, 10, BIG)
    except BrokerError:
        return True
    return False


def task_ids(peeked: Peeked) -> list[str]:
    return [one.task_id for one in peeked.arrivals if isinstance(one, Message)]


def test_a_token_of_a_connection_that_died_trims_nothing(yard: Yard) -> None:
    sent = send(yard, 3)
    edge = yard.edge()
    edge.adopt(0, 1)
    old = peek(edge, 3)
    yard.cut_all()
    wait_until(lambda: is_lost(edge), "the edge notices")
    again = peek(edge, 3)
    assert task_ids(again) == sent
    assert not edge.trim(0, 1, old.token)
    assert edge.trim(0, 1, again.token)
    assert edge.peek(0, 10, BIG).arrivals == []


def test_a_queue_with_other_arguments_is_used_as_it_is(yard: Yard) -> None:
    yard.queue("wheel.0", **{"x-queue-type": "quorum"})
    edge = yard.edge()
    edge.adopt(0, 1)
    assert edge.peek(0, 10, BIG).arrivals == []


def test_an_unreadable_message_is_kept_with_its_bytes_and_the_others_go_on(yard: Yard) -> None:
    edge = yard.edge()
    edge.adopt(0, 1)
    import amqp

    for bad in (amqp.Message(b"\xff\x00"), amqp.Message("[]", application_headers={"wheel": {"v": 99}})):
        yard.channel.basic_publish(bad, routing_key="wheel.0")
    sent = send(yard, 1)
    found = peek(edge, 3)
    one, other, good = found.arrivals
    assert isinstance(one, Unreadable)
    assert isinstance(other, Unreadable)
    assert "headers must be an object" in one.reason
    assert "version" in other.reason
    assert b"/wA=" in one.raw, "the body, in base64"
    assert isinstance(good, Message)
    assert good.task_id == sent[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 5},
        {"compression": "zlib"},
        {"serializer": "pickle"},
        {"expires": 3_600},
        {"headers": {"mine": [1, {"a": None}], "when": 1.5}},
        {"reply_to": "somewhere", "task_id": "chosen"},
        {"ignore_result": True, "stamps": {"a": "b"}},
    ],
    ids=str,
)
def test_a_worker_gets_what_celery_would_have_sent_without_a_delay(yard: Yard, options: dict[str, object]) -> None:
    """All properties are compared, except those that differ between two calls: the expiry differs by milliseconds.

    The wheel's message has a dispatch id, which plain Celery's has not.
    """
    yard.queue("mail")
    options = {"task_id": "same", **options}
    yard.app.send_task("tasks.add", (1, 2), {"k": "v"}, queue="mail", **options)  # type: ignore[arg-type]
    (native,) = yard.take("mail")
    yard.app.send_task("tasks.add", (1, 2), {"k": "v"}, queue="mail", countdown=60, **options)  # type: ignore[arg-type]
    edge = yard.edge()
    edge.adopt(0, 1)
    (message,) = peek(edge, 1).arrivals
    assert isinstance(message, Message)
    row = Row.of(message, 1, 0, message.eta_ms, 1)
    chunk = chunk_of(row.position.previous(), row.position, [row], now_ms=message.created_ms)
    assert edge.publish(chunk, lambda: True).failed == {}
    (mine,) = yard.take("mail")
    assert mine.body == native.body
    expiries = [int(one.properties.pop("expiration", 0)) for one in (mine, native)]
    assert abs(expiries[0] - expiries[1]) < 2_000
    for one in (mine, native):
        one.properties["application_headers"].pop("expires", None)  # an instant that depends on the call's
    assert dispatched_ms(mine.properties.pop("message_id")) == message.created_ms  # the time of the publish
    assert mine.properties == native.properties
