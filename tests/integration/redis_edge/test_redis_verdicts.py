"""The compare-and-set: every verdict, adoption, fencing, and that nothing else moves an offset."""

import logging
from collections.abc import Callable

import pytest
import redis

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.broker.redis.edge import OCCUPIED_MS
from celery_wheel.engine.port import BrokerOffset, Published, Verdict
from celery_wheel.errors import BrokerError, Fenced, OffsetLost
from celery_wheel.store.model import MAX_SEQ, ORIGIN, Position
from tests.integration.redis_edge.rows import EPOCH, NOW_MS, SHARD, adopted, at, make_row, number_of
from tests.servers import RedisServer

OFFSETS = f"wheel.offset.{SHARD}"


def publish(broker: RedisBroker, from_: Position, to: Position, *numbers: int, epoch: int = EPOCH) -> Published:
    return broker.publish(SHARD, epoch, 0, from_, to, [make_row(n) for n in numbers], NOW_MS)


def pushed(client: redis.Redis, queue: str = "mail") -> list[int]:
    """Row numbers in the order in which a consumer gets them."""
    return [number_of(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def test_a_chunk_is_pushed_in_order_and_the_hand_moves(broker: RedisBroker, client: redis.Redis) -> None:
    assert publish(broker, ORIGIN, at(3), 1, 2, 3).verdict is Verdict.PUBLISHED
    assert publish(broker, at(3), at(5), 4, 5) == Published(Verdict.PUBLISHED, {})
    assert pushed(client) == [1, 2, 3, 4, 5]
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(5), {})}


def test_a_repeated_chunk_is_already_there_and_pushed_once(broker: RedisBroker, client: redis.Redis) -> None:
    publish(broker, ORIGIN, at(2), 1, 2)
    assert publish(broker, ORIGIN, at(2), 1, 2) == Published(Verdict.ALREADY, {})
    publish(broker, at(2), at(3), 3)
    assert publish(broker, ORIGIN, at(2), 1, 2).verdict is Verdict.ALREADY
    assert pushed(client) == [1, 2, 3]


def test_a_hand_before_the_chunk_is_a_rollback(broker: RedisBroker, client: redis.Redis) -> None:
    assert publish(broker, at(5), at(6), 6) == Published(Verdict.ROLLED_BACK, {})
    assert pushed(client) == []
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(ORIGIN, {})}


def test_a_hand_inside_the_chunk_is_treated_as_a_rollback_and_logged(
    broker: RedisBroker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    broker.set_offset(SHARD, EPOCH, 0, at(5))
    with caplog.at_level(logging.ERROR):
        assert publish(broker, at(3), at(9), 9).verdict is Verdict.ROLLED_BACK
    assert "inside the chunk" in caplog.text
    assert pushed(client) == []


def test_a_newer_epoch_fences(broker: RedisBroker, client: redis.Redis) -> None:
    broker.adopt(SHARD, EPOCH + 1)
    assert publish(broker, ORIGIN, at(1), 1) == Published(Verdict.FENCED, {})
    with pytest.raises(Fenced, match="epoch 8 holds it"):
        broker.set_offset(SHARD, EPOCH, 0, at(9))
    with pytest.raises(Fenced, match="epoch 8 holds it"):
        broker.adopt(SHARD, EPOCH)
    assert pushed(client) == []
    assert broker.adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(ORIGIN, {})}


def test_epochs_are_compared_as_numbers(broker: RedisBroker) -> None:
    broker.adopt(SHARD, 9)
    broker.adopt(SHARD, 10)
    broker.adopt(SHARD, 2**53 + 1)
    assert publish(broker, ORIGIN, at(1), 1, epoch=2**53).verdict is Verdict.FENCED
    assert publish(broker, ORIGIN, at(1), 1, epoch=2**53 + 1).verdict is Verdict.PUBLISHED


def test_positions_are_compared_as_numbers_of_all_63_bits(broker: RedisBroker) -> None:
    last = Position(NOW_MS, MAX_SEQ - 1)
    assert publish(broker, ORIGIN, last, 1).verdict is Verdict.PUBLISHED
    assert publish(broker, last, Position(NOW_MS, MAX_SEQ), 2).verdict is Verdict.PUBLISHED
    assert publish(broker, last, Position(NOW_MS, MAX_SEQ), 2).verdict is Verdict.ALREADY
    assert publish(broker, Position(NOW_MS + 1, 1), Position(NOW_MS + 1, 2), 2).verdict is Verdict.ROLLED_BACK


@pytest.mark.parametrize("lost", ["hash", "uuid", "epoch", "lane:0"])
def test_without_its_hand_a_lane_must_be_adopted_first(broker: RedisBroker, client: redis.Redis, lost: str) -> None:
    client.delete(OFFSETS) if lost == "hash" else client.hdel(OFFSETS, lost)
    assert publish(broker, ORIGIN, at(1), 1) == Published(Verdict.MISSING, {})
    assert pushed(client) == []


def test_after_flushall_the_hand_is_missing_and_adoption_finds_nothing(
    broker: RedisBroker, client: redis.Redis
) -> None:
    publish(broker, ORIGIN, at(1), 1)
    client.flushall()
    assert publish(broker, at(1), at(2), 2).verdict is Verdict.MISSING
    assert broker.adopt(SHARD, EPOCH + 1) == {}


def test_an_epoch_that_was_never_adopted_publishes_nothing(broker: RedisBroker, client: redis.Redis) -> None:
    assert publish(broker, ORIGIN, at(1), 1, epoch=EPOCH + 1).verdict is Verdict.MISSING
    with pytest.raises(OffsetLost, match="must be adopted anew"):
        broker.set_offset(SHARD, EPOCH + 1, 0, at(1))
    assert pushed(client) == []


def test_a_shard_that_another_store_uses_is_left_alone(
    broker: RedisBroker, server: RedisServer, client: redis.Redis, connect: Callable[..., RedisBroker]
) -> None:
    publish(broker, ORIGIN, at(1), 1)
    with pytest.raises(BrokerError, match="in use by another store") as refused:
        connect(server, store_uuid="another").adopt(SHARD, 9)
    assert "wheel_store" in str(refused.value)
    assert publish(broker, at(1), at(2), 2).verdict is Verdict.PUBLISHED
    assert pushed(client) == [1, 2]


def test_another_store_takes_a_silent_shard_over_without_the_lanes(
    broker: RedisBroker,
    server: RedisServer,
    client: redis.Redis,
    connect: Callable[..., RedisBroker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(broker, ORIGIN, at(1), 1)
    other = connect(server, store_uuid="another")
    assert publish(other, at(1), at(2), 2).verdict is Verdict.MISSING
    client.hincrby(OFFSETS, "seen", -OCCUPIED_MS)
    with caplog.at_level(logging.WARNING):
        assert other.adopt(SHARD, 1) == {}  # its epochs are its own, so a smaller one is no older one
    assert "belonged to store" in caplog.text
    assert other.adopt(SHARD, 2) == {}
    assert publish(broker, at(1), at(2), 2).verdict is Verdict.MISSING
    assert pushed(client) == [1]


def test_a_first_adoption_is_quiet(
    server: RedisServer, connect: Callable[..., RedisBroker], caplog: pytest.LogCaptureFixture
) -> None:
    assert connect(server).adopt(SHARD, 1) == {}
    assert caplog.text == ""


def test_lanes_shards_and_namespaces_have_hands_of_their_own(
    broker: RedisBroker, server: RedisServer, connect: Callable[..., RedisBroker]
) -> None:
    broker.set_offset(SHARD, EPOCH, 12, at(4))
    publish(broker, ORIGIN, at(1), 1)
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(1), {}), 12: BrokerOffset(at(4), {})}
    assert broker.adopt(SHARD + 1, 1) == {}
    assert connect(server, namespace="other").adopt(SHARD, 1) == {}
    assert connect(server, global_keyprefix="app:").adopt(SHARD, 1) == {}


def test_a_hand_can_be_set_back(broker: RedisBroker, client: redis.Redis) -> None:
    publish(broker, ORIGIN, at(2), 1, 2)
    broker.set_offset(SHARD, EPOCH, 0, at(1))
    assert publish(broker, at(1), at(2), 2).verdict is Verdict.PUBLISHED
    assert pushed(client) == [1, 2, 2]


def test_a_request_to_set_a_hand_that_comes_late_is_refused(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = broker._next_serial()
    broker.set_offset(SHARD, EPOCH, 0, at(1))  # the repetition, after the answer to the first was lost
    publish(broker, at(1), at(2), 2)
    monkeypatch.setattr(broker, "_next_serial", lambda: early)
    with pytest.raises(Fenced, match="a later request came before"):
        broker.set_offset(SHARD, EPOCH, 0, at(1))
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(2), {})}


def test_the_next_holder_may_come_from_a_host_with_a_younger_clock(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.adopt(SHARD, EPOCH + 1)
    monkeypatch.setattr(broker, "_next_serial", lambda: "0" * 19)
    broker.set_offset(SHARD, EPOCH + 1, 0, at(5))
    assert broker.adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(at(5), {})}


def test_a_chunk_that_goes_nowhere_is_a_defect_of_the_caller(broker: RedisBroker) -> None:
    with pytest.raises(ValueError, match="to must be after from_"):
        publish(broker, at(1), at(1), 1)


def test_an_empty_chunk_only_moves_the_hand(broker: RedisBroker, client: redis.Redis) -> None:
    assert publish(broker, ORIGIN, at(9)).verdict is Verdict.PUBLISHED
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(9), {})}
    assert client.keys() == [OFFSETS.encode()]


def test_a_key_of_the_same_name_that_is_no_hand_is_left_alone(
    server: RedisServer, client: redis.Redis, connect: Callable[..., RedisBroker]
) -> None:
    client.set(OFFSETS, "somebody's")
    broker = connect(server)
    with pytest.raises(BrokerError, match="choose another wheel_namespace"):
        broker.adopt(SHARD, 1)
    with pytest.raises(BrokerError, match="choose another wheel_namespace"):
        publish(broker, ORIGIN, at(1), 1)
    assert client.get(OFFSETS) == b"somebody's"


def test_many_chunks_after_each_other_leave_one_hash_of_constant_size(broker: RedisBroker, client: redis.Redis) -> None:
    for n in range(50):
        publish(broker, at(n) if n else ORIGIN, at(n + 1), n + 1)
    assert client.hlen(OFFSETS) == len({"uuid", "epoch", "seen", "lane:0", "failed:0", "since:0", "set:0"})
    assert pushed(client) == list(range(1, 51))


def test_the_time_is_the_servers(broker: RedisBroker, client: redis.Redis) -> None:
    before = client.time()
    now_ms = broker.now_ms()
    after = client.time()
    assert before[0] * 1000 + before[1] // 1000 <= now_ms <= after[0] * 1000 + after[1] // 1000


def test_a_broker_may_be_used_again_after_close(broker: RedisBroker) -> None:
    broker.close()
    assert publish(adopted(broker), ORIGIN, at(1), 1).verdict is Verdict.PUBLISHED
