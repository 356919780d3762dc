"""Two copies of a store on one Redis: one holds the shard, the other nothing, and each refusal names both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from celery_wheel.broker.owner import OCCUPIED_MS
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import BrokerOffset, PublishResult
from celery_wheel.errors import Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP
from tests.integration.redis_edge.rows import EPOCH, SHARD, STORE, adopted, at, make_row, publish_rows
from tests.kit.servers.redis import RedisServer

OFFSETS = f"wheel.offset.{SHARD}"


class Copies:
    """Schedulers on copies of a store; a place is ``a`` or ``b``, and an instance any text."""

    def __init__(self, server: RedisServer, connect: Callable[..., RedisBroker]) -> None:
        self.connect = lambda store: connect(server, store=store)
        self.client = server.client()

    def at(self, place: str, instance: str) -> RedisBroker:
        return self.connect(StoreIdentity(STORE, instance, f"/srv/{place}", f"/srv/{place} on here"))

    def silence(self) -> None:
        self.client.hincrby(OFFSETS, "seen", -OCCUPIED_MS)


@pytest.fixture
def copies(server: RedisServer, connect: Callable[..., RedisBroker]) -> Copies:
    return Copies(server, connect)


def test_a_copy_is_refused_while_the_other_lives_and_changes_nothing(copies: Copies, client: redis.Redis) -> None:
    first = adopted(copies.at("a", "1"))
    publish_rows(first, ORIGIN, at(1), [make_row(1)], number=1)
    before = client.hgetall(OFFSETS)
    for second in (copies.at("b", "2"), copies.at("a", "2")):
        for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
            with pytest.raises(StoreConflict) as refused:
                second.adopt(SHARD, epoch)
        for part in ("/srv/a on here", second._store.place, "claim-store"):
            assert part in str(refused.value)
    assert before.items() <= client.hgetall(OFFSETS).items()
    first.verify(SHARD, EPOCH, 1)


def test_a_copy_at_another_place_is_refused_however_long_the_other_is_silent(copies: Copies) -> None:
    adopted(copies.at("a", "1"))
    copies.client.hset(OFFSETS, "seen", 0)
    with pytest.raises(StoreConflict, match="claim-store"):
        copies.at("b", "2").adopt(SHARD, EPOCH + 1)


def test_a_restored_store_at_the_same_place_succeeds_a_silent_one(copies: Copies) -> None:
    first = adopted(copies.at("a", "1"))
    publish_rows(first, ORIGIN, at(1), [make_row(1)])
    second = copies.at("a", "2")
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 1)
    copies.silence()
    assert second.adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(at(1))}
    assert publish_rows(first, at(1), at(2), [make_row(2)]).result is PublishResult.FENCED
    with pytest.raises(StoreConflict):
        first.adopt(SHARD, EPOCH + 2)


def test_a_restored_store_passes_the_epoch_of_the_lost_one_first(copies: Copies) -> None:
    adopted(copies.at("a", "1"))
    copies.silence()
    second = copies.at("a", "2")
    with pytest.raises(Fenced):
        second.adopt(SHARD, EPOCH - 1)
    second.adopt(SHARD, EPOCH + 1)


def test_two_copies_at_one_epoch_are_told_apart(copies: Copies, client: redis.Redis) -> None:
    """Redis was emptied, and both count to the same number."""
    first = adopted(copies.at("a", "1"))
    client.delete(OFFSETS)
    adopted(copies.at("b", "2"))
    assert publish_rows(first, ORIGIN, at(1), [make_row(1)]).result in (PublishResult.MISSING, PublishResult.FENCED)
    with pytest.raises((Fenced, OffsetLost)):
        first.verify(SHARD, EPOCH, 0)


@pytest.mark.parametrize("place", ["a", "b"])
def test_a_copy_that_has_seen_the_other_at_work_waits_for_a_person(
    copies: Copies, client: redis.Redis, place: str
) -> None:
    """It takes the shard neither while the other is restarted, nor while Redis is emptied under it."""
    first = adopted(copies.at("a", "1"))
    second = copies.at(place, "2")
    for _ in range(2):
        client.hincrby(OFFSETS, "seen", 1)  # a sign of life between two tries
        with pytest.raises(StoreConflict):
            second.adopt(SHARD, EPOCH + 1)
    copies.silence()
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 2)
    client.flushall()
    with pytest.raises(StoreConflict, match="/srv/a on here"):
        second.adopt(SHARD, EPOCH + 3)
    first.adopt(SHARD, EPOCH + 1)
    copies.at("a", "1").adopt(SHARD, EPOCH + 2)


def test_a_claimed_copy_goes_on_and_the_other_is_refused_for_good(copies: Copies, client: redis.Redis) -> None:
    first, second = adopted(copies.at("a", "1")), copies.at("b", "2")
    publish_rows(first, ORIGIN, at(1), [make_row(1)])
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 1)
    assert second.adopt(SHARD, EPOCH + EPOCH_LEAP) == {0: BrokerOffset(at(1))}
    assert publish_rows(first, at(1), at(2), [make_row(2)]).result is PublishResult.FENCED
    client.hset(OFFSETS, "seen", 0)
    for one in (first, copies.at("b", "1")):
        with pytest.raises(StoreConflict, match="/srv/b on here"):
            one.adopt(SHARD, EPOCH + 100)


def test_the_owner_knows_the_copy_that_was_refused(copies: Copies) -> None:
    first = adopted(copies.at("a", "1"))
    with pytest.raises(StoreConflict):
        copies.at("b", "2").adopt(SHARD, EPOCH + 1)
    owner = first.owner(SHARD)
    assert owner is not None
    assert (owner.lives, owner.refused) == (True, "/srv/b on here")
    assert owner.is_copy_of(copies.at("b", "2")._store)
    assert not owner.is_copy_of(first._store)
