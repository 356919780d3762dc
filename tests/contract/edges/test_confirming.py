"""Brokers that confirm message by message: sent, refused and failed rows, and the end of sending."""

import threading
from typing import Any

import pytest

from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import PublishInterrupted
from tests.kit.chunks import BIG, EPOCH, SHARD, make_chunk, make_row


def always() -> bool:
    return True


def test_adoption_returns_nothing_and_nothing_is_fenced(confirming: Any) -> None:
    edge = confirming.edge()
    assert edge.fences is False
    assert edge.adopt(SHARD, EPOCH) is None
    assert edge.publish(make_chunk(0, 1, epoch=EPOCH - 1), always) == Confirmed()


def test_a_chunk_is_there_in_order_when_the_call_returns(confirming: Any) -> None:
    edge = confirming.edge()
    assert edge.publish(make_chunk(0, 700), always) == Confirmed()
    assert confirming.dispatched() == list(range(1, 701))
    assert edge.publish(make_chunk(700, 709, []), lambda: False) == Confirmed(), "an empty chunk sends nothing"


def test_a_repeated_chunk_is_in_the_queue_twice(confirming: Any) -> None:
    edge = confirming.edge()
    for _ in range(2):
        edge.publish(make_chunk(0, 2), always)
    assert confirming.dispatched() == [1, 2, 1, 2]


def test_a_row_without_a_queue_fails_alone(confirming: Any) -> None:
    answer = confirming.edge().publish(make_chunk(0, 3, [make_row(1), confirming.broken_row(2), make_row(3)]), always)
    assert answer.failed.keys() == {2}
    assert answer.refused == {}
    assert confirming.dispatched() == [1, 3]


def test_a_full_queue_refuses_and_the_others_accept(confirming: Any) -> None:
    if not hasattr(confirming, "fill"):
        return  # kombu's own transports have no limits
    full = confirming.fill()
    answer = confirming.edge().publish(make_chunk(0, 3, [make_row(1), make_row(2, full), make_row(3)]), always)
    assert answer.failed == {}
    assert answer.refused.keys() == {2}
    assert confirming.dispatched() == [1, 3]


@pytest.mark.parametrize("allowed", [0, 1, 60])
def test_nothing_more_is_sent_once_sending_is_forbidden(confirming: Any, allowed: int) -> None:
    asked = 0

    def may_send() -> bool:
        nonlocal asked
        asked += 1
        return asked <= allowed

    edge = confirming.edge()
    with pytest.raises(PublishInterrupted) as caught:
        edge.publish(make_chunk(0, 100), may_send)
    assert asked == allowed + 1
    assert caught.value.confirmed <= set(range(1, allowed + 1))
    assert edge.publish(make_chunk(100, 101), always) == Confirmed(), "the edge can be used again"
    sent = confirming.dispatched()
    assert sent == [*range(1, len(sent)), 101]
    assert caught.value.confirmed <= set(sent)
    assert len(sent) <= allowed + 1


def test_threads_may_publish_and_read_at_once(confirming: Any) -> None:
    edge = confirming.edge()
    edge.adopt(SHARD, EPOCH)
    threads = [threading.Thread(target=edge.publish, args=(make_chunk(0, 300), always)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        edge.peek(SHARD, 10, BIG)
        edge.keep_alive()
    assert sorted(confirming.dispatched()) == sorted([*range(1, 301)] * 2)


def test_a_row_that_may_be_there_already_is_marked(confirming: Any) -> None:
    confirming.edge().publish(make_chunk(0, 1, redelivered=True), always)
    assert confirming.marks() == [True]
