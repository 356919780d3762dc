"""Publishing to a real RabbitMQ: messages that arrive, are returned or are refused, and connections that end."""

from __future__ import annotations

import time

import pytest

from celery_wheel.broker.amqp import publisher
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Row
from tests.integration.rabbit_edge.conftest import Yard, ids, row
from tests.kit.patience import patience, wait_until


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_chunk_arrives_whole_and_in_order(yard: Yard, kind: str) -> None:
    yard.queue("mail", **{"x-queue-type": kind})
    published = yard.publish(yard.edge(), [row(n) for n in range(1_200)])
    assert (published.failed, published.refused) == ({}, {})
    assert ids(yard.take("mail", 2_000)) == [f"task-{n}" for n in range(1_200)]


def test_a_missing_exchange_in_the_middle_of_a_chunk_concerns_its_rows_alone(yard: Yard) -> None:
    yard.queue("mail")
    edge = yard.edge()
    lost = row(2, exchange="gone", routing_key="x")
    published = yard.publish(edge, [row(1), lost, row(3)])
    assert published.failed == {2: "exchange 'gone' does not exist"}
    assert ids(yard.take("mail")) == ["task-1", "task-3"]
    assert yard.publish(edge, [row(4)]).failed == {}


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


def test_a_message_that_kills_the_channel_is_found_and_the_others_arrive(yard: Yard) -> None:
    yard.queue("mail")
    poison = row(5, body=b"x" * 1_500_000)
    rows = [row(n) for n in range(5)] + [poison] + [row(n) for n in range(6, 10)]
    published = yard.publish(yard.edge(), rows)
    assert published.failed.keys() == {5}
    assert "closes the channel" in published.failed[5]
    arrived = yard.take("mail")
    assert set(ids(arrived)) == {f"task-{n}" for n in range(10) if n != 5}
    firsts = {ids([one])[0] for one in arrived if "wheel_redelivered" not in one.properties["application_headers"]}
    seconds = [ids([one])[0] for one in arrived if "wheel_redelivered" in one.properties["application_headers"]]
    assert len(arrived) - len(set(ids(arrived))) <= len(seconds), "a second copy is marked"
    assert firsts | set(seconds) == set(ids(arrived))


def test_an_unencodable_or_unroutable_message_fails_alone(yard: Yard) -> None:
    yard.queue("mail")
    published = yard.publish(yard.edge(), [row(1), row(2, headers=b"{"), row(4, "nowhere"), row(3)])
    assert published.failed.keys() == {2, 4}
    assert "no queue is bound" in published.failed[4]
    assert ids(yard.take("mail")) == ["task-1", "task-3"]


def test_the_expiry_is_the_remaining_time_and_the_priority_is_the_rows_own(yard: Yard) -> None:
    yard.queue("mail", **{"x-max-priority": 9})
    yard.publish(yard.edge(), [row(1, expires_ms=61_000, priority=7)])
    (message,) = yard.take("mail")
    assert message.properties["expiration"] == "60000"
    assert message.properties["priority"] == 7


# -- trouble ----------------------------------------------------------------------------------------------


def test_a_connection_that_ends_within_a_chunk_reports_the_confirmed_rows(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_alarm_is_noticed_and_dispatch_goes_on_after_it(yard: Yard) -> None:
    yard.queue("mail")
    edge = yard.edge()
    yard.publish(edge, [row(1)])
    yard.limit_memory("0.0000001", edge)
    try:
        began = time.monotonic()
        with pytest.raises(BrokerError, match=r"alarm|confirm"):
            yard.publish(edge, [row(2)])
        assert time.monotonic() - began < patience(10)
    finally:
        yard.limit_memory("0.6")

    def goes_on() -> bool:
        try:
            return not yard.publish(edge, [row(2)], redelivered=True).failed
        except BrokerError:
            return False

    wait_until(goes_on, "dispatch goes on")
    assert set(ids(yard.take("mail"))) == {"task-1", "task-2"}


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
