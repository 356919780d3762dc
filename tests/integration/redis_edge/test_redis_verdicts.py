"""The compare-and-set and the trim on a real server: numbers of any size, late requests, lost or changed data.

The tests of every result, of adoption and of fencing are in ``tests/contract/edges``.
"""

import logging
import time
from collections.abc import Callable

import pytest
import redis

from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import BrokerOffset, Peeked, Published, PublishResult
from celery_wheel.errors import BrokerError, Fenced, OffsetLost
from celery_wheel.store.model import MAX_SEQ, ORIGIN, Position, Unreadable
from tests.integration.redis_edge.conftest import OFFSETS, Connect, adopted, publish_rows, pushed
from tests.kit.chunks import EPOCH, NOW_MS, SHARD, at, make_row
from tests.kit.servers.redis import RedisServer

QUEUE = f"wheel.{SHARD}"
MEGABYTE = 2**20
FIELDS = {b"uuid", b"address", b"place", b"epoch", b"seen", b"last", b"serial", b"lane:0", b"failed:0", b"since:0"}


def publish(broker: RedisBroker, after: Position, upto: Position, *numbers: int, epoch: int = EPOCH) -> Published:
    return publish_rows(broker, after, upto, [make_row(n) for n in numbers], epoch=epoch)


def test_an_offset_inside_the_chunk_is_logged(broker: RedisBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.set_offset(SHARD, EPOCH, 0, at(5))
    with caplog.at_level(logging.ERROR):
        assert publish(broker, at(3), at(9), 9).result is PublishResult.ROLLED_BACK
    assert "inside the chunk" in caplog.text


def test_epochs_are_compared_as_numbers(broker: RedisBroker) -> None:
    broker.adopt(SHARD, 9)
    broker.adopt(SHARD, 10)
    broker.adopt(SHARD, 2**53 + 1)
    assert publish(broker, ORIGIN, at(1), 1, epoch=2**53).result is PublishResult.FENCED
    assert publish(broker, ORIGIN, at(1), 1, epoch=2**53 + 1).result is PublishResult.PUBLISHED


def test_positions_are_compared_as_numbers_of_all_63_bits(broker: RedisBroker) -> None:
    last = Position(NOW_MS, MAX_SEQ - 1)
    assert publish(broker, ORIGIN, last, 1).result is PublishResult.PUBLISHED
    assert publish(broker, last, Position(NOW_MS, MAX_SEQ), 2).result is PublishResult.PUBLISHED
    assert publish(broker, last, Position(NOW_MS, MAX_SEQ), 2).result is PublishResult.ALREADY
    assert publish(broker, Position(NOW_MS + 1, 1), Position(NOW_MS + 1, 2), 2).result is PublishResult.ROLLED_BACK


@pytest.mark.parametrize("lost", ["hash", "uuid", "epoch", "lane:0"])
def test_without_its_offset_a_lane_must_be_adopted_first(broker: RedisBroker, client: redis.Redis, lost: str) -> None:
    client.delete(OFFSETS) if lost == "hash" else client.hdel(OFFSETS, lost)
    assert publish(broker, ORIGIN, at(1), 1) == Published(PublishResult.MISSING, {})
    assert pushed(client) == []


@pytest.mark.parametrize("lost", ["hash", "uuid", "epoch", "last"])
def test_verify_notices_every_loss(broker: RedisBroker, client: redis.Redis, lost: str) -> None:
    publish(broker, ORIGIN, at(1), 1)
    broker.verify(SHARD, EPOCH, 1)
    client.delete(OFFSETS) if lost == "hash" else client.hdel(OFFSETS, lost)
    with pytest.raises(OffsetLost, match="must be adopted anew"):
        broker.verify(SHARD, EPOCH, 1)


def test_verify_says_that_the_holder_lives(broker: RedisBroker, client: redis.Redis) -> None:
    client.hset(OFFSETS, "seen", 5)
    broker.verify(SHARD, EPOCH, 0)
    owner = broker.owner(SHARD)
    assert 0 <= owner.silent_ms < 60_000


def test_verify_reads_as_little_where_there_are_thousands_of_lanes(broker: RedisBroker, client: redis.Redis) -> None:
    client.hset(OFFSETS, mapping={f"lane:{lane}": f"{0:019d}:{0:019d}" for lane in range(1, 5_001)})
    client.config_resetstat()
    for _ in range(10):
        broker.verify(SHARD, EPOCH, 0)
    calls = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}
    assert calls["hmget"] == 10
    assert "hgetall" not in calls
    broker.drop_lanes(SHARD, EPOCH, range(1, 5_001))
    assert set(client.hkeys(OFFSETS)) == FIELDS | {b"accepted"}
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(ORIGIN, {})}


def test_lanes_shards_and_namespaces_have_offsets(broker: RedisBroker, server: RedisServer, connect: Connect) -> None:
    broker.set_offset(SHARD, EPOCH, 12, at(4))
    publish(broker, ORIGIN, at(1), 1)
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(1), {}), 12: BrokerOffset(at(4), {})}
    assert broker.adopt(SHARD + 1, 1) == {}
    assert connect(server, reader=QueuedMessageReader(Destinations("other"))).adopt(SHARD, 1) == {}
    assert connect(server, transport_options={"global_keyprefix": "app:"}).adopt(SHARD, 1) == {}


CHANGES: dict[str, Callable[[RedisBroker, int], None]] = {
    "set_offset": lambda broker, epoch: broker.set_offset(SHARD, epoch, 0, at(1)),
    "drop_lanes": lambda broker, epoch: broker.drop_lanes(SHARD, epoch, [0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_offsets_that_comes_late_is_refused(
    broker: RedisBroker,
    server: RedisServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    broker.set_offset(SHARD, EPOCH, 0, at(1))  # the repetition, after the answer to the first was lost
    publish(broker, at(1), at(2), 2)
    late = connect(server)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    with pytest.raises(Fenced, match="a later request came before"):
        CHANGES[change](late, EPOCH)
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(2), {})}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_holder_may_come_from_a_host_with_a_younger_clock(
    server: RedisServer,
    connect: Connect,
    broker: RedisBroker,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    younger = connect(server)
    younger.adopt(SHARD, EPOCH + 1)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    CHANGES[change](younger, EPOCH + 1)
    assert younger.adopt(SHARD, EPOCH + 1) == ({0: BrokerOffset(at(1), {})} if change == "set_offset" else {})


def test_a_chunk_with_an_empty_range_is_a_defect_of_the_caller(broker: RedisBroker) -> None:
    with pytest.raises(ValueError, match="upto must be after"):
        publish(broker, at(1), at(1), 1)


def test_many_chunks_after_each_other_leave_one_hash_of_constant_size(broker: RedisBroker, client: redis.Redis) -> None:
    for n in range(50):
        publish(broker, at(n), at(n + 1), n + 1)
    assert set(client.hkeys(OFFSETS)) == FIELDS
    assert pushed(client) == list(range(1, 51))


def test_the_clock_is_the_servers(broker: RedisBroker, client: redis.Redis) -> None:
    before = client.time()
    now_ms = broker.now_ms()
    after = client.time()
    assert before[0] * 1000 + before[1] // 1000 <= now_ms <= after[0] * 1000 + after[1] // 1000


def test_a_broker_may_be_used_again_after_close(broker: RedisBroker) -> None:
    broker.close()
    assert publish(adopted(broker), ORIGIN, at(1), 1).result is PublishResult.PUBLISHED


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


@pytest.mark.parametrize(("max_bytes", "expected"), [(1, 1), (100, 1), (199, 1), (200, 2), (399, 3), (1_000, 10)])
def test_bytes_are_bounded_for_all_but_one(
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


def test_shards_and_namespaces_have_their_own_queues(
    server: RedisServer, client: redis.Redis, connect: Connect
) -> None:
    client.lpush("night.1", b"1")
    broker = connect(server, reader=QueuedMessageReader(Destinations("night")))
    for shard in (1, 2):
        broker.adopt(shard, EPOCH)
    assert raws(broker.peek(1, 10, 1000)) == [b"1"]
    assert broker.peek(2, 10, 1000).arrivals == []


def test_a_wheel_queue_that_is_not_a_list_is_an_error(broker: RedisBroker, client: redis.Redis) -> None:
    client.set(QUEUE, "somebody's")
    with pytest.raises(BrokerError, match="choose another wheel_namespace"):
        broker.peek(SHARD, 1, 1000)
