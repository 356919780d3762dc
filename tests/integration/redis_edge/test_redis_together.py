"""Calls of several shards in one pipeline: each edge has its own answer or error, as if it had called alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from celery_wheel.broker.redis import RedisBroker, connect, edge
from celery_wheel.engine.port import PublishResult
from celery_wheel.errors import BrokerError, Fenced
from celery_wheel.store.model import ORIGIN
from tests.integration.redis_edge.conftest import Connect, adopted, pushed
from tests.kit.chunks import EPOCH, SHARD, at, chunk_of, make_row
from tests.kit.servers.redis import RedisServer

OTHER = SHARD + 1


@pytest.fixture
def edges(server: RedisServer, connect: Connect) -> tuple[RedisBroker, RedisBroker]:
    """Return the edges of SHARD and OTHER, as one process has them."""
    one, other = adopted(connect(server)), connect(server)
    other.adopt(OTHER, EPOCH)
    other.set_offset(OTHER, EPOCH, 0, ORIGIN)
    return one, other


def publishing(broker: RedisBroker, shard: int, number: int, queue: str = "mail") -> tuple[Any, ...]:
    return broker, "publish", chunk_of(ORIGIN, at(number), [make_row(number, queue)], shard=shard)


def test_each_shard_publishes_its_chunk_and_moves_its_offset(
    edges: tuple[RedisBroker, RedisBroker], client: redis.Redis
) -> None:
    one, other = edges
    calls = [publishing(one, SHARD, 1), publishing(other, OTHER, 2, "post")]
    assert [each.result for each in one.together(calls)] == [PublishResult.PUBLISHED] * 2
    assert [each.result for each in one.together(calls)] == [PublishResult.ALREADY] * 2
    assert (pushed(client), pushed(client, "post")) == ([1], [2])
    assert [at(2)] == [each.offset for each in other.adopt(OTHER, EPOCH + 1).values()]


def test_a_former_holder_is_fenced_alone(edges: tuple[RedisBroker, RedisBroker], client: redis.Redis) -> None:
    one, other = edges
    one.adopt(SHARD, EPOCH + 1)
    results = one.together([publishing(one, SHARD, 1), publishing(other, OTHER, 2)])
    assert [each.result for each in results] == [PublishResult.FENCED, PublishResult.PUBLISHED]
    assert pushed(client) == [2]


def test_each_shard_reads_and_trims_its_queue(edges: tuple[RedisBroker, RedisBroker], client: redis.Redis) -> None:
    """Queues of different lengths need requests of different numbers."""
    one, other = edges
    client.lpush(f"wheel.{OTHER}", *[b"message %d" % n for n in range(20)])
    few, many = one.together([(one, "peek", SHARD, 100, 10**6), (other, "peek", OTHER, 100, 10**6)])
    assert (len(few.arrivals), len(many.arrivals), many.more) == (0, 20, False)
    trims = [(one, "trim", SHARD, EPOCH, few.token, 0), (other, "trim", OTHER, EPOCH - 1, many.token, 20)]
    done, refused = one.together(trims)
    assert done is True
    assert isinstance(refused, Fenced)
    assert client.llen(f"wheel.{OTHER}") == 20
    assert one.together([trims[0], (other, "trim", OTHER, EPOCH, many.token, 20)]) == [True, True]
    assert client.llen(f"wheel.{OTHER}") == 0


def test_an_edge_that_has_left_fails_alone(edges: tuple[RedisBroker, RedisBroker]) -> None:
    one, other = edges
    one.leave(SHARD, EPOCH)
    left, found = other.together([(one, "peek", SHARD, 10, 100), (other, "peek", OTHER, 10, 100)])
    assert isinstance(left, BrokerError)
    assert found.arrivals == []


def test_a_queue_of_another_type_fails_alone(edges: tuple[RedisBroker, RedisBroker], client: redis.Redis) -> None:
    one, other = edges
    client.set(f"wheel.{SHARD}", "no list")
    wrong, found = one.together([(one, "peek", SHARD, 10, 100), (other, "peek", OTHER, 10, 100)])
    assert isinstance(wrong, BrokerError)
    assert found.arrivals == []


def test_a_server_that_lost_its_scripts_gets_them_again(
    edges: tuple[RedisBroker, RedisBroker], client: redis.Redis
) -> None:
    one, other = edges
    client.script_flush()
    results = one.together([publishing(one, SHARD, 1), publishing(other, OTHER, 2)])
    assert [each.result for each in results] == [PublishResult.PUBLISHED] * 2
    assert sorted(pushed(client)) == [1, 2]


def test_a_server_that_is_gone_fails_each_call_and_is_asked_once(
    own_server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = adopted(connect(own_server)), connect(own_server)
    other.adopt(OTHER, EPOCH)
    own_server.kill()
    calls = [publishing(one, SHARD, 1), publishing(other, OTHER, 2)]
    for answer, shard in zip(one.together(calls), (SHARD, OTHER), strict=True):
        assert isinstance(answer, BrokerError)
        assert f"of shard {shard}" in str(answer)
    monkeypatch.setattr(edge, "PIPELINE_BYTES", 1)
    first, second = one.together(calls)
    assert f"of shard {SHARD}" in str(first)
    assert "has not answered other shards; nothing was sent" in str(second)


def test_a_call_that_the_server_refuses_keeps_no_other_back(
    edges: tuple[RedisBroker, RedisBroker], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = edges
    monkeypatch.setattr(edge, "PIPELINE_BYTES", 1)
    client.set(one._offset_key(SHARD), "no hash")
    refused, published = one.together([publishing(one, SHARD, 1), publishing(other, OTHER, 2)])
    assert isinstance(refused, BrokerError)
    assert published.result is PublishResult.PUBLISHED


def test_a_server_that_never_knows_a_script_is_asked_twice(
    edges: tuple[RedisBroker, RedisBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy that answers by another server each time."""
    monkeypatch.setattr(connect.VERIFY, "text", "return redis.error_reply('NOSCRIPT none')")
    monkeypatch.setattr(connect.VERIFY, "sha", "0" * 40)
    with pytest.raises(BrokerError, match="none"):
        edges[0].verify(SHARD, EPOCH, 0)


def test_a_pipeline_has_a_bound(
    edges: tuple[RedisBroker, RedisBroker], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = edges
    monkeypatch.setattr(edge, "PIPELINE_BYTES", 1)
    calls, ask_all, sizes = [publishing(one, SHARD, 1), publishing(other, OTHER, 2)], connect.ask_all, list[int]()

    def counted(of: redis.Redis, operations: Sequence[Any]) -> list[Any]:
        sizes.append(len(operations))
        return ask_all(of, operations)

    monkeypatch.setattr(connect, "ask_all", counted)
    assert [each.result for each in one.together(calls)] == [PublishResult.PUBLISHED] * 2
    assert sorted(pushed(client)) == [1, 2]
    assert sizes == [1, 1], "a pipeline for each"
