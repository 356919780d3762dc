"""Messages that are far too large, on a real Redis: the edge holds two ends of each, and removes none but these."""

import json

import pytest
import redis

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import Message, Unreadable
from tests.contract.edges.peers import QUEUE
from tests.integration.redis_edge.conftest import Connect, adopted
from tests.kit.chunks import BIG, EPOCH, SHARD, raw
from tests.kit.patience import patience
from tests.kit.servers.redis import RedisServer

MOST, KEPT = 10_000, 2**16


def large(number: int, size: int = 200_000, end: str = "") -> bytes:
    """Return a message as kombu writes it, the body first."""
    message = json.loads(raw(number))
    properties = {**message["properties"], "delivery_tag": end or f"tag-{number}"}
    return json.dumps({"body": "x" * size, "headers": message["headers"], "properties": properties}).encode()


@pytest.fixture
def broker(server: RedisServer, connect: Connect) -> RedisBroker:
    return adopted(connect(server, reader=QueuedMessageReader(max_message_bytes=MOST)))


def peek(broker: RedisBroker, max_bytes: int = BIG) -> Peeked:
    return broker.peek(SHARD, 1_000, max_bytes)


def test_a_large_message_among_others_is_rejected_with_its_beginning_and_its_name(
    broker: RedisBroker, client: redis.Redis
) -> None:
    sent = [raw(1), large(2), raw(3), large(4, 5_000_000), raw(5)]
    client.lpush(QUEUE, *sent)
    found = peek(broker)
    assert [type(one) for one in found.arrivals] == [Message, Unreadable, Message, Unreadable, Message]
    for whole, one in zip(sent, found.arrivals, strict=True):
        if isinstance(one, Unreadable):
            assert one.raw == whole[:KEPT]
            assert one.of[1] in ("task-2", "task-4")
            assert (
                one.reason
                == f"message must be at most 10,000 bytes, not {len(whole):,}; the store has only its beginning"
            )
    client.lpush(QUEUE, raw(6))
    assert broker.trim(SHARD, EPOCH, found.token)
    assert [one.task_id for one in peek(broker).arrivals if isinstance(one, Message)] == ["task-6"]


def test_a_large_message_counts_with_its_whole_size(broker: RedisBroker, client: redis.Redis) -> None:
    client.lpush(QUEUE, raw(1), large(2), large(3), raw(4))
    counts = []
    while found := peek(broker, max_bytes=150_000).arrivals:
        counts.append((len(found), peek(broker, max_bytes=150_000).more))
        assert broker.trim(SHARD, EPOCH, peek(broker, max_bytes=150_000).token)
    assert counts == [(1, True), (1, True), (1, True), (1, False)]


def test_a_read_begins_with_what_the_one_before_lets_expect(broker: RedisBroker, client: redis.Redis) -> None:
    reads = []

    def read(*messages: bytes) -> None:
        client.delete(QUEUE)
        client.lpush(QUEUE, *messages)
        client.config_resetstat()
        peek(broker, max_bytes=150_000)
        reads.append(client.info("commandstats")["cmdstat_lrange"]["calls"])

    small = [raw(number) for number in range(100)]
    read(*small)
    read(*small)
    read(*[large(number) for number in range(5)])
    read(large(6), *small)
    assert reads == [7, 2, 1, 1]  # slices of 1, 2, 4, … messages; of 64 and 128; at last one alone fills the bound


def test_a_read_that_asks_for_too_much_is_not_repeated(broker: RedisBroker, client: redis.Redis) -> None:
    client.lpush(QUEUE, *map(raw, range(100)))
    peek(broker)
    client.delete(QUEUE)
    client.lpush(QUEUE, *map(large, range(64)))
    client.config_set("client-output-buffer-limit", "normal 5mb 0 0")
    try:
        with pytest.raises(BrokerError):
            peek(broker, max_bytes=150_000)
        assert len(peek(broker, max_bytes=150_000).arrivals) == 1
    finally:
        client.config_set("client-output-buffer-limit", "normal 0 0 0")


def test_a_shard_that_is_adopted_anew_is_read_from_one_message(broker: RedisBroker, client: redis.Redis) -> None:
    client.lpush(QUEUE, *map(raw, range(100)))
    peek(broker)
    broker.leave(SHARD, EPOCH)
    adopted(broker)
    client.config_resetstat()
    peek(broker)
    assert client.info("commandstats")["cmdstat_lrange"]["calls"] == 7


@pytest.mark.parametrize("other", [large(2, end="other"), large(2, 200_001), raw(2)], ids=["end", "size", "small"])
def test_another_message_in_the_place_of_a_large_one_is_not_removed(
    broker: RedisBroker, client: redis.Redis, other: bytes
) -> None:
    client.lpush(QUEUE, large(2))
    found, again = peek(broker), peek(broker)
    assert found.arrivals[0].envelope_id == again.arrivals[0].envelope_id
    client.lset(QUEUE, -1, other)
    assert not broker.trim(SHARD, EPOCH, found.token)
    assert client.lrange(QUEUE, 0, -1) == [other]
    replaced = peek(broker)
    assert replaced.arrivals[0].envelope_id != found.arrivals[0].envelope_id
    assert broker.trim(SHARD, EPOCH, replaced.token)


def test_a_large_message_is_awaited_and_shown_as_another(broker: RedisBroker, client: redis.Redis) -> None:
    client.lpush(QUEUE, large(1))
    assert broker.await_message(SHARD, int(patience(5_000)))
    shown = broker.oldest(SHARD)
    assert isinstance(shown, Unreadable)
    assert shown.envelope_id == peek(broker).arrivals[0].envelope_id
    assert broker.depth(SHARD) == 1
