"""A message or destination that RabbitMQ or AMQP does not accept fails alone."""

from __future__ import annotations

from typing import Any

import pytest
from amqp import spec
from kombu.utils import json as kombu_json

from celery_wheel.broker.amqp.publisher import AmqpPublisher
from celery_wheel.engine.port import Published
from celery_wheel.store.model import Row
from tests.integration.rabbit_edge.conftest import Yard, ids, row

DAY_MS = 86_400_000


def headers(row_id: int, **more: Any) -> bytes:
    return kombu_json.dumps({"id": f"task-{row_id}", "task": "t", **more}).encode()


def properties(**more: Any) -> bytes:
    return kombu_json.dumps({"content_type": "application/json", "content_encoding": "utf-8", **more}).encode()


def among_others(yard: Yard, bad: Row, others: int = 20) -> Published:
    """Publish a row in the middle of good rows, which arrive once each, and in order."""
    yard.queue("mail")
    good = [row(n) for n in range(100, 100 + others)]
    published = yard.publish(yard.edge(), [*good[: others // 2], bad, *good[others // 2 :]])
    arrived = [one for one in ids(yard.take("mail")) if one != f"task-{bad.id}"]
    assert arrived == [f"task-{one.id}" for one in good]
    assert published.refused == {}
    return published


@pytest.mark.parametrize(
    "bad",
    [
        row(1, "ü" * 200),
        row(1, exchange="x" * 300),
        row(1, headers=headers(1, much="x" * 200_000)),
        row(1, headers=headers(1, number=2**70)),
        row(1, headers=b'{"id": "task-1", "deep": [{"nan": NaN}]}'),
        row(1, headers=headers(1, **{"k" * 300: 1})),
        row(1, properties=properties(correlation_id="x" * 300)),
        row(1, properties=properties(delivery_mode="twice")),
        row(1, properties=properties(user_id="somebody-else")),
        row(1, headers=headers(1, CC="text")),
        row(1, body=b"x" * 1_500_000),
        row(1, exchange="nowhere"),
    ],
    ids=[
        "routing key of 400 bytes",
        "exchange of 300 bytes",
        "headers larger than a frame",
        "a number of 71 bits",
        "a number that is NaN",
        "a header's name of 300 bytes",
        "a property of 300 bytes",
        "delivery mode that is text",
        "another user's id",
        "CC that is no list",
        "larger than the server accepts",
        "no such exchange",
    ],
)
def test_an_unsendable_message_fails_alone_and_no_other_is_sent_twice(yard: Yard, bad: Row) -> None:
    assert among_others(yard, bad).failed.keys() == {1}


@pytest.mark.parametrize(
    "good",
    [
        row(1, body=b""),
        row(1, expires_ms=100 * DAY_MS),
        row(1, priority=255),
        row(1, properties=properties(delivery_mode=1)),
        row(1, headers=headers(1, deep={"a": [None, {"b": 1.5}], "n": -(2**63)})),
        row(1, headers=headers(1, much="x" * 100_000), body=b"y" * 300_000),
    ],
    ids=["no body", "expires in 100 days", "priority 255", "transient", "nested", "large headers and body"],
)
def test_unusual_messages_arrive(yard: Yard, good: Row) -> None:
    yard.queue("mail")
    assert yard.publish(yard.edge(), [row(0), good, row(2)]).failed == {}
    arrived = yard.take("mail")
    assert ids(arrived) == ["task-0", "task-1", "task-2"]
    body = arrived[1].body
    assert (body.encode() if isinstance(body, str) else body) == good.parts().body


@pytest.mark.parametrize("kind", ["forbidden", "internal", "missing"])
def test_an_exchange_that_accepts_nothing_costs_the_others_no_copy_and_no_time(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The time would go into new channels: the server closes the channel over each message to such an exchange."""
    opened: list[object] = []
    open_channel = AmqpPublisher._confirming
    monkeypatch.setattr(AmqpPublisher, "_confirming", lambda *args: opened.append(args) or open_channel(*args))
    yard.queue("mail")
    if kind != "missing":
        _declare(yard, kind, internal=kind == "internal")
    if kind == "forbidden":
        vhost = yard.url.rpartition("/")[2]
        yard.server.ctl("set_permissions", "-p", vhost, "guest", ".*", "^(?!forbidden).*", ".*")
    rows = [row(n, exchange=kind if n % 2 else "") for n in range(1_000)]
    published = yard.publish(yard.edge(), rows)
    assert published.failed.keys() == {n for n in range(1_000) if n % 2}
    assert all(kind in reason for reason in published.failed.values())
    assert len(opened) <= 3
    assert ids(yard.take("mail")) == [f"task-{n}" for n in range(0, 1_000, 2)]


def _declare(yard: Yard, name: str, internal: bool) -> None:
    """py-amqp's own call has no argument for it."""
    values = (0, name, "fanout", False, True, False, internal, False, {})
    yard.channel.send_method(spec.Exchange.Declare, "BssbbbbbF", values, wait=spec.Exchange.DeclareOk)


def test_among_messages_with_one_body_the_returned_one_is_the_one_that_failed(yard: Yard) -> None:
    yard.queue("mail")
    yard.channel.exchange_declare("house", "headers", durable=True, auto_delete=False)
    yard.channel.queue_bind("mail", "house", arguments={"x-match": "all", "floor": "3"})
    parts = {"exchange": "house", "body": b"[[], {}, {}]"}
    rows = [row(n, headers=headers(n, floor=str(n % 5), when=1.5, deep=[{"a": None}]), **parts) for n in range(50)]
    published = yard.publish(yard.edge(), rows)
    assert published.failed.keys() == {n for n in range(50) if n % 5 != 3}
    assert ids(yard.take("mail")) == [f"task-{n}" for n in range(50) if n % 5 == 3]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "utf-7", "binary", "rot13"])
def test_a_message_without_a_queue_is_noticed_whatever_its_encoding(yard: Yard, encoding: str) -> None:
    bad = row(1, "nowhere", body="a+ä".encode("utf-16"), properties=properties(content_encoding=encoding))
    assert yard.publish(yard.edge(), [bad]).failed.keys() == {1}


def test_a_message_refused_by_one_queue_of_an_exchange_is_in_the_other(yard: Yard) -> None:
    """For this reason the engine marks the message as redelivered when it tries again."""
    yard.queue("small", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    yard.queue("mail")
    yard.channel.exchange_declare("news", "fanout", durable=True, auto_delete=False)
    for queue in ("small", "mail"):
        yard.channel.queue_bind(queue, "news")
    edge = yard.edge()
    assert yard.publish(edge, [row(1, exchange="news")]).refused == {}
    assert yard.publish(edge, [row(2, exchange="news")]).refused.keys() == {2}
    assert ids(yard.take("mail")) == ["task-1", "task-2"]
