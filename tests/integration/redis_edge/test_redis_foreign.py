"""The edge changes neither keys of other programs nor offsets of another store."""

from collections.abc import Callable

import pytest
import redis

from celery_wheel.broker.redis import RedisBroker, edge
from celery_wheel.engine.port import BrokerOffset, PublishResult
from celery_wheel.errors import BrokerError, StoreConflict
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import StoreIdentity
from tests.contract.edges.peers import OTHER_STORE
from tests.integration.redis_edge.rows import EPOCH, SHARD, STORE, at, make_row, publish_rows
from tests.kit.servers.redis import RedisServer

OFFSETS = f"wheel.offset.{SHARD}"
SEP = "\x06\x16"

#: The offsets that the tests claim with.
CLAIMED = {0: BrokerOffset(at(7))}


# -- keys ----------------------------------------------------------------------------------------------


def test_a_key_that_is_no_list_does_not_expire_with_the_queue_of_its_name(
    broker: RedisBroker, client: redis.Redis
) -> None:
    client.set("session", "somebody's")
    client.hset(f"mail{SEP}3", "a", "somebody's")
    rows = [
        make_row(1, "session", queue_expires_ms=1),
        make_row(2, queue_expires_ms=60_000),
    ]
    failed = publish_rows(broker, ORIGIN, at(2), rows).failed
    assert failed == {1: "key 'session' holds a string, not a list"}
    assert client.pttl("session") == -1
    assert client.pttl(f"mail{SEP}3") == -1
    assert 0 < client.pttl("mail") <= 60_000


def test_a_queue_that_accepted_nothing_does_not_expire(broker: RedisBroker, client: redis.Redis) -> None:
    client.lpush("good", "a message")
    client.set("bad", "somebody's")
    for queue in ("good", "bad"):
        client.sadd("_kombu.binding.both", f"k{SEP}{SEP}{queue}")
    row = make_row(1, "good", exchange="both", routing_key="k", queue_expires_ms=1)
    assert publish_rows(broker, ORIGIN, at(1), [row]).failed.keys() == {1}
    assert client.lrange("good", 0, -1) == [b"a message"]
    assert client.pttl("good") == -1


@pytest.mark.parametrize(
    "queue",
    [
        OFFSETS,
        "wheel.offset.99",
        f"wheel.{SHARD}",
        "wheel.99",
        "unacked",
        "unacked_index",
        "unacked_mutex",
        "_kombu.binding.celery",
    ],
)
@pytest.mark.parametrize("priority", [0, 9])
def test_no_task_goes_to_a_key_of_the_wheels_or_of_kombus_own(
    broker: RedisBroker, client: redis.Redis, queue: str, priority: int
) -> None:
    """An empty key does not exist in Redis: a list in its place would stop kombu's workers, or another shard."""
    before = client.hgetall(OFFSETS)
    row = make_row(1, queue, priority=priority, queue_expires_ms=1)
    failed = publish_rows(broker, ORIGIN, at(1), [row, make_row(2)]).failed
    assert failed == {1: f"queue {queue!r} has the name of a key of the wheel or of kombu"}
    assert set(client.keys()) == {OFFSETS.encode(), b"mail"}
    assert client.hget(OFFSETS, "uuid") == before[b"uuid"]
    assert client.pttl(OFFSETS) == -1


def test_configured_names_of_those_keys_are_respected(server: RedisServer, connect: Callable[..., RedisBroker]) -> None:
    broker = connect(server, transport_options={"unacked_key": "held"})
    broker.adopt(SHARD, EPOCH)
    broker.set_offset(SHARD, EPOCH, 0, ORIGIN)
    rows = [make_row(1, "held"), make_row(2, "unacked")]
    assert publish_rows(broker, ORIGIN, at(2), rows).failed.keys() == {1}


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_key_of_the_same_name_that_is_no_offset_is_left_alone(
    server: RedisServer, client: redis.Redis, connect: Callable[..., RedisBroker], kind: str
) -> None:
    client.set(OFFSETS, "somebody's") if kind == "string" else client.hset(OFFSETS, "a", "somebody's")
    before = client.dump(OFFSETS)
    broker = connect(server)
    for call in (lambda: broker.adopt(SHARD, 1), lambda: broker.claim(SHARD, {})):
        with pytest.raises(BrokerError, match="choose another wheel_namespace"):
            call()
    assert client.dump(OFFSETS) == before


# -- another store -------------------------------------------------------------------------------------


@pytest.fixture
def other(server: RedisServer, connect: Callable[..., RedisBroker]) -> RedisBroker:
    return connect(server, store=StoreIdentity(OTHER_STORE, "2", "/srv/b", "/srv/b on there"))


def test_a_conflict_names_both_stores_and_the_remedy(broker: RedisBroker, other: RedisBroker) -> None:
    with pytest.raises(StoreConflict) as refused:
        other.adopt(SHARD, 9)
    for part in (STORE, "/srv/a on here", OTHER_STORE, "/srv/b on there", "wheel_store", "claim-broker"):
        assert part in str(refused.value)


def test_a_silent_store_keeps_its_offsets(broker: RedisBroker, other: RedisBroker, client: redis.Redis) -> None:
    """The time of silence does not matter: its pending tasks would stay behind unseen."""
    client.hset(OFFSETS, "seen", 0)
    before = client.hgetall(OFFSETS)
    with pytest.raises(StoreConflict):
        other.adopt(SHARD, 9)
    assert client.hgetall(OFFSETS) == before


def test_a_claim_is_refused_while_the_other_holder_lives(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "OCCUPIED_MS", 3_600_000)
    with pytest.raises(StoreConflict):
        other.claim(SHARD, {0: at(7)})
    assert publish_rows(broker, ORIGIN, at(1), [make_row(1)]).result is PublishResult.PUBLISHED


def test_a_claim_makes_this_store_the_owner_and_the_other_one_is_refused(
    broker: RedisBroker, other: RedisBroker, client: redis.Redis
) -> None:
    publish_rows(broker, ORIGIN, at(1), [make_row(1)])
    client.hincrby(OFFSETS, "seen", -edge.OCCUPIED_MS)
    for _ in range(2):
        other.claim(SHARD, {0: at(7)})
    owner = other.owner(SHARD)
    assert owner is not None
    assert (owner.uuid, owner.place) == (OTHER_STORE, "/srv/b on there")
    assert publish_rows(broker, at(1), at(2), [make_row(2)]).result is PublishResult.MISSING
    with pytest.raises(StoreConflict):
        broker.adopt(SHARD, EPOCH + 1)
    assert other.adopt(SHARD, 1) == CLAIMED, "its epochs are its own, so a smaller one is no older one"
    other.claim(SHARD, {0: at(7)})
    assert other.adopt(SHARD, 1) == CLAIMED


def test_a_claim_of_a_shard_without_an_owner_allows_the_first_adoption(other: RedisBroker) -> None:
    assert other.owner(SHARD) is None
    other.claim(SHARD, {0: at(7)})
    assert other.adopt(SHARD, 1) == CLAIMED
