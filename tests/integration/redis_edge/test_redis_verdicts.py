"""The compare-and-set on a real server: numbers of any size, late requests, and data that a server loses.

The tests of every result, of adoption and of fencing are in ``tests/contract/edges``.
"""

import logging
import time
from collections.abc import Callable

import pytest
import redis

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import BrokerOffset, Published, PublishResult
from celery_wheel.errors import Fenced, OffsetLost
from celery_wheel.store.model import MAX_SEQ, ORIGIN, Position
from tests.integration.redis_edge.rows import EPOCH, NOW_MS, SHARD, Connect, adopted, at, make_row, publish_rows, pushed
from tests.kit.servers.redis import RedisServer

OFFSETS = f"wheel.offset.{SHARD}"
FIELDS = {"uuid", "address", "place", "epoch", "seen", "last", "serial", "lane:0", "failed:0", "since:0"}


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
    assert owner is not None
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
    assert client.hkeys(OFFSETS) == [field.encode() for field in _ordered(client)]
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(ORIGIN, {})}


def _ordered(client: redis.Redis) -> list[str]:
    found = [field.decode() for field in client.hkeys(OFFSETS)]
    assert set(found) == FIELDS
    return found


def test_lanes_shards_and_namespaces_have_offsets_of_their_own(
    broker: RedisBroker, server: RedisServer, connect: Connect
) -> None:
    broker.set_offset(SHARD, EPOCH, 12, at(4))
    publish(broker, ORIGIN, at(1), 1)
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(1), {}), 12: BrokerOffset(at(4), {})}
    assert broker.adopt(SHARD + 1, 1) == {}
    assert connect(server, reader=QueuedMessageReader("other")).adopt(SHARD, 1) == {}
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
    assert {field.decode() for field in client.hkeys(OFFSETS)} == FIELDS
    assert pushed(client) == list(range(1, 51))


def test_the_clock_is_the_servers(broker: RedisBroker, client: redis.Redis) -> None:
    before = client.time()
    now_ms = broker.now_ms()
    after = client.time()
    assert before[0] * 1000 + before[1] // 1000 <= now_ms <= after[0] * 1000 + after[1] // 1000


def test_a_broker_may_be_used_again_after_close(broker: RedisBroker) -> None:
    broker.close()
    assert publish(adopted(broker), ORIGIN, at(1), 1).result is PublishResult.PUBLISHED
