"""Publishing to a real RabbitMQ: messages that arrive, are returned or refused, fail alone; connections that end."""

import time
from typing import Any

import amqp
import pytest
from amqp import spec
from kombu.utils import json as kombu_json

from celery_wheel.broker.amqp import publisher
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Row
from tests.integration.rabbit_edge.conftest import Yard, ids
from tests.kit.chunks import make_row as row
from tests.kit.patience import patience


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_chunk_arrives_whole_and_in_order(yard: Yard, kind: str) -> None:
    yard.queue("mail", **{"x-queue-type": kind})
    published = yard.publish(yard.edge(), [row(n) for n in range(1_200)])
    assert (published.failed, published.refused) == ({}, {})
    assert ids(yard.take("mail", 2_000)) == [f"task-{n}" for n in range(1_200)]


def test_a_deleted_exchange_concerns_its_rows_alone(yard: Yard) -> None:
    yard.queue("mail")
    yard.channel.exchange_declare("news", "fanout", durable=True, auto_delete=False)
    yard.channel.queue_bind("mail", "news")
    edge = yard.edge()
    assert yard.publish(edge, [row(1, exchange="news")]).failed == {}
    yard.channel.exchange_delete("news")
    published = yard.publish(edge, [row(2), row(3, exchange="news"), row(4)])
    assert published.failed.keys() == {3}
    arrived = yard.take("mail")
    assert set(ids(arrived)) == {"task-1", "task-2", "task-4"}
    twice = [one for one in arrived if ids(arrived).count(ids([one])[0]) > 1]
    assert sum("wheel_redelivered" in one.properties["application_headers"] for one in twice) >= len(twice) // 2


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_every_kind_of_exchange_routes(yard: Yard, kind: str) -> None:
    yard.queue("mail")
    yard.channel.exchange_declare("house", kind, durable=True, auto_delete=False)
    arguments = {"x-match": "all", "floor": "3"} if kind == "headers" else None
    key = {"topic": "mail.#", "direct": "mail.in"}.get(kind, "")
    yard.channel.queue_bind("mail", "house", key, arguments=arguments)
    headers = b'{"id": "task-1", "task": "t", "floor": "3"}'
    published = yard.publish(yard.edge(), [row(1, exchange="house", routing_key="mail.in", headers=headers)])
    assert published.failed == {}
    assert ids(yard.take("mail")) == ["task-1"]


def test_a_full_queue_refuses_and_accepts_again_when_there_is_room(yard: Yard) -> None:
    yard.queue("small", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    yard.queue("mail")
    edge = yard.edge()
    rows = [row(n, "small") for n in range(4)] + [row(9)]
    published = yard.publish(edge, rows)
    assert published.failed == {}
    assert len(published.refused) >= 1
    assert 9 not in published.refused
    assert ids(yard.take("mail")) == ["task-9"]
    taken = ids(yard.take("small"))
    left = [one for one in rows if one.id in published.refused]
    assert len(taken) + len(left) == 4
    assert yard.publish(edge, left[:2]).refused == {}
    assert ids(yard.take("small")) == [f"task-{one.id}" for one in left[:2]]


@pytest.mark.slow
def test_a_connection_that_ends_in_a_chunk_reports_confirmed_rows(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WINDOW", 20)
    yard.queue("mail")
    edge = yard.edge()
    write, written = publisher.encode, 0

    def write_until_it_ends(one: Row, now_ms: int, redelivered: bool, message_id: str) -> object:
        nonlocal written
        written += 1
        if written == 150:
            yard.cut_all()
        return write(one, now_ms, redelivered, message_id)

    monkeypatch.setattr(publisher, "encode", write_until_it_ends)
    rows = [row(n) for n in range(400)]
    with pytest.raises(PublishInterrupted) as caught:
        yard.publish(edge, rows)
    confirmed = caught.value.confirmed
    assert 0 < len(confirmed) < 150
    left = [one for one in rows if one.id not in confirmed]
    assert yard.publish(edge, left, redelivered=True).failed == {}
    arrived = yard.take("mail")
    assert {f"task-{n}" for n in range(400)} == set(ids(arrived))
    for task_id in {one for one in ids(arrived) if ids(arrived).count(one) > 1}:
        marks = [
            "wheel_redelivered" in one.properties["application_headers"] for one in arrived if ids([one]) == [task_id]
        ]
        assert marks == [False, True]


@pytest.mark.slow
def test_a_server_that_hangs_is_not_waited_for(yard: Yard) -> None:
    yard.queue("mail")
    edge = yard.edge()
    yard.publish(edge, [row(1)])
    yard.server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(BrokerError):
            yard.publish(edge, [row(2)])
        assert time.monotonic() - began < patience(10)
    finally:
        yard.server.resume()


def headers(row_id: int, **more: Any) -> bytes:
    return kombu_json.dumps({"id": f"task-{row_id}", "task": "t", **more}).encode()


def properties(**more: Any) -> bytes:
    return kombu_json.dumps({"content_type": "application/json", "content_encoding": "utf-8", **more}).encode()


UNSENDABLE = {
    "routing key of 400 bytes": row(1, "ü" * 200),
    "exchange of 300 bytes": row(1, exchange="x" * 300),
    "headers larger than a frame": row(1, headers=headers(1, much="x" * 200_000)),
    "a number of 71 bits": row(1, headers=headers(1, number=2**70)),
    "headers that are no JSON": row(1, headers=b"{"),
    "a number that is NaN": row(1, headers=b'{"id": "task-1", "deep": [{"nan": NaN}]}'),
    "a header's name of 300 bytes": row(1, headers=headers(1, **{"k" * 300: 1})),
    "a property of 300 bytes": row(1, properties=properties(correlation_id="x" * 300)),
    "delivery mode that is text": row(1, properties=properties(delivery_mode="twice")),
    "another user's id": row(1, properties=properties(user_id="somebody-else")),
    "CC that is no list": row(1, headers=headers(1, CC="text")),
    "larger than the server accepts": row(1, body=b"x" * 1_500_000),
    "no such exchange": row(1, exchange="nowhere"),
}


@pytest.mark.parametrize("bad", UNSENDABLE.values(), ids=UNSENDABLE)
def test_an_unsendable_message_fails_alone_and_no_other_is_sent_twice(yard: Yard, bad: Row) -> None:
    """It is in the middle of good rows, which arrive once each, and in order."""
    yard.queue("mail")
    good = [row(n) for n in range(100, 120)]
    published = yard.publish(yard.edge(), [*good[:10], bad, *good[10:]])
    assert (published.failed.keys(), published.refused) == ({1}, {})
    assert [one for one in ids(yard.take("mail")) if one != "task-1"] == [f"task-{one.id}" for one in good]


UNUSUAL = {
    "no body": row(1, body=b""),
    "expires in 100 days": row(1, expires_ms=100 * 86_400_000),
    "priority 255": row(1, priority=255),
    "transient": row(1, properties=properties(delivery_mode=1)),
    "nested": row(1, headers=headers(1, deep={"a": [None, {"b": 1.5}], "n": -(2**63)})),
    "large headers and body": row(1, headers=headers(1, much="x" * 100_000), body=b"y" * 300_000),
}


@pytest.mark.parametrize("good", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_messages_arrive(yard: Yard, good: Row) -> None:
    yard.queue("mail")
    assert yard.publish(yard.edge(), [row(0), good, row(2)]).failed == {}
    arrived = yard.take("mail")
    assert ids(arrived) == ["task-0", "task-1", "task-2"]
    body = arrived[1].body
    assert (body.encode() if isinstance(body, str) else body) == good.parts().body


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forbidden", "internal", "missing"])
def test_an_exchange_that_accepts_nothing_costs_the_others_little(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The time would go into new channels: the server closes the channel over each message to such an exchange."""
    opened: list[object] = []
    select = amqp.Channel.confirm_select
    monkeypatch.setattr(amqp.Channel, "confirm_select", lambda *args: opened.append(args) or select(*args))
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
