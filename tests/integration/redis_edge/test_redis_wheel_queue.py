"""A trim removes exactly the peeked messages, whatever happens in between."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError, OffsetLost
from celery_wheel.store.model import Unreadable
from tests.integration.redis_edge.rows import EPOCH, SHARD, Connect, adopted
from tests.kit.patience import patience, wait_until
from tests.kit.servers.redis import RedisServer

QUEUE = f"wheel.{SHARD}"
MEGABYTE = 2**20


def raws(peeked: Peeked) -> list[bytes]:
    """A reader that returns bytes unchanged, since these tests push bytes that are no messages."""
    assert all(isinstance(arrival, Unreadable) for arrival in peeked.arrivals)
    return [arrival.raw for arrival in peeked.arrivals if isinstance(arrival, Unreadable)]


def push(client: redis.Redis, *messages: bytes) -> None:
    client.lpush(QUEUE, *messages)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 255, 256, 257, 511, 1_000, 1_500])
def test_any_count_is_peeked_in_order_and_trimmed_exactly(broker: RedisBroker, client: redis.Redis, count: int) -> None:
    messages = [str(n).encode() for n in range(1_200)]
    push(client, *messages)
    peeked = broker.peek(SHARD, count, MEGABYTE)
    assert raws(peeked) == messages[:count]
    assert peeked.more == (count < len(messages))
    assert broker.trim(SHARD, EPOCH, peeked.token)
    assert client.lrange(QUEUE, 0, -1) == messages[count:][::-1]


def test_a_message_ends_the_wait_for_it_and_stays_where_it_is(broker: RedisBroker, client: redis.Redis) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(broker.await_message, SHARD, 60_000)
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "the call to wait")
        push(client, b"1", b"2")
        assert waiting.result(patience(5)) is True
    assert client.lrange(QUEUE, 0, -1) == [b"2", b"1"]


@pytest.mark.parametrize(("max_bytes", "expected"), [(1, 1), (100, 1), (199, 1), (200, 2), (399, 3), (1_000, 10)])
def test_the_bytes_are_bounded_but_for_one_message(
    broker: RedisBroker, client: redis.Redis, max_bytes: int, expected: int
) -> None:
    push(client, *[bytes([65 + n]) * 100 for n in range(20)])
    peeked = broker.peek(SHARD, 50, max_bytes)
    assert [raw[:1] for raw in raws(peeked)] == [bytes([65 + n]) for n in range(expected)]
    assert peeked.more


def test_a_large_message_ends_a_peek_and_is_alone_in_the_next(broker: RedisBroker, client: redis.Redis) -> None:
    large = b"x" * (10 * MEGABYTE)
    push(client, b"1", b"2", large, b"3")
    first = broker.peek(SHARD, 100, MEGABYTE)
    assert raws(first) == [b"1", b"2"]
    assert broker.trim(SHARD, EPOCH, first.token)
    second = broker.peek(SHARD, 100, MEGABYTE)
    assert raws(second) == [large]
    assert second.more
    assert broker.trim(SHARD, EPOCH, second.token)
    assert raws(broker.peek(SHARD, 100, MEGABYTE)) == [b"3"]


def test_a_message_over_the_limit_is_unreadable_and_whole(
    server: RedisServer, client: redis.Redis, connect: Connect
) -> None:
    broker = adopted(connect(server, reader=QueuedMessageReader(max_message_bytes=100)))
    push(client, b"x" * 101)
    (arrival,) = broker.peek(SHARD, 10, 1_000).arrivals
    assert isinstance(arrival, Unreadable)
    assert arrival.raw == b"x" * 101
    assert "100" in arrival.reason


@pytest.mark.parametrize(
    "changed",
    [
        [b"1", b"2"],  # one is gone
        [],
        [b"1", b"2", b"x"],  # another content
        [b"2", b"1", b"3"],  # another order
        [b"12", b"", b"3"],  # the same bytes, cut differently
        [b"1", b"2", b"3", b"0"],  # something older than all of it
    ],
)
def test_another_head_is_not_trimmed(broker: RedisBroker, client: redis.Redis, changed: list[bytes]) -> None:
    push(client, b"1", b"2", b"3")
    peeked = broker.peek(SHARD, 3, 1000)
    client.delete(QUEUE)
    if changed == [b"1", b"2", b"3", b"0"]:
        push(client, b"0", b"1", b"2", b"3")
    elif changed:
        push(client, *changed)
    before = client.lrange(QUEUE, 0, -1)
    assert not broker.trim(SHARD, EPOCH, peeked.token)
    assert client.lrange(QUEUE, 0, -1) == before


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_a_shard_that_is_not_adopted_is_not_trimmed(broker: RedisBroker, client: redis.Redis, epoch: int) -> None:
    push(client, b"1")
    peeked = broker.peek(SHARD, 1, 1000)
    if epoch == EPOCH:
        client.delete(f"wheel.offset.{SHARD}")
    with pytest.raises(OffsetLost, match="must be adopted anew"):
        broker.trim(SHARD, epoch, peeked.token)
    assert client.llen(QUEUE) == 1


def test_shards_and_namespaces_have_queues_of_their_own(
    server: RedisServer, client: redis.Redis, connect: Connect
) -> None:
    client.lpush("night.1", b"1")
    broker = connect(server, reader=QueuedMessageReader("night"))
    for shard in (1, 2):
        broker.adopt(shard, EPOCH)
    assert raws(broker.peek(1, 10, 1000)) == [b"1"]
    assert broker.peek(2, 10, 1000).arrivals == []


def test_a_wheel_queue_that_is_not_a_list_is_an_error(broker: RedisBroker, client: redis.Redis) -> None:
    client.set(QUEUE, "somebody's")
    with pytest.raises(BrokerError, match="choose another wheel_namespace"):
        broker.peek(SHARD, 1, 1000)
