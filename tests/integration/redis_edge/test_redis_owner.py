"""Other programs, stores and copies on one Redis: the edge changes nothing of theirs, and an operator may claim."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from celery_wheel import Celery
from celery_wheel.broker.owner import OCCUPIED_MS
from celery_wheel.broker.redis import RedisBroker, edge
from celery_wheel.broker.transport import broker_for
from celery_wheel.cli import wheel
from celery_wheel.conf import Conf
from celery_wheel.engine.port import BrokerOffset, PublishResult
from celery_wheel.errors import BrokerError, Fenced, OffsetLost, StoreConflict
from celery_wheel.operations.doctor import Grade, Installation, broker, shards
from celery_wheel.operations.stores import other_owners
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP
from tests.contract.edges.peers import OTHER_STORE, STORE
from tests.integration.redis_edge.conftest import OFFSETS, SEP, Connect, adopted, publish_rows
from tests.kit.chunks import EPOCH, SHARD, at, make_row, raw
from tests.kit.servers.redis import RedisServer

#: The offsets that the tests claim with.
CLAIMED = {0: BrokerOffset(at(7))}


def test_the_expiry_of_a_key_that_is_no_list_stays(broker: RedisBroker, client: redis.Redis) -> None:
    client.set("session", "somebody's", px=50_000)
    client.hset(f"mail{SEP}3", "a", "somebody's")
    client.pexpire(f"mail{SEP}3", 50_000)
    rows = [make_row(1, "session", queue_expires_ms=90_000), make_row(2, queue_expires_ms=90_000)]
    failed = publish_rows(broker, ORIGIN, at(2), rows).failed
    assert failed == {1: "key 'session' holds a string, not a list"}
    assert client.pttl("session") <= 50_000
    assert client.pttl(f"mail{SEP}3") <= 50_000


@pytest.mark.parametrize(
    "queue",
    [
        *(OFFSETS, "wheel.offset.99", f"wheel.{SHARD}", "wheel.99"),
        *("unacked", "unacked_index", "unacked_mutex", "_kombu.binding.celery"),
    ],
)
@pytest.mark.parametrize("priority", [0, 9])
def test_no_task_goes_to_a_key_of_wheel_or_kombu(
    broker: RedisBroker, client: redis.Redis, queue: str, priority: int
) -> None:
    """An empty key does not exist in Redis: a list in its place would stop kombu's workers, or another shard."""
    before = client.hgetall(OFFSETS)
    row = make_row(1, queue, priority=priority, queue_expires_ms=1)
    failed = publish_rows(broker, ORIGIN, at(1), [row, make_row(2)]).failed
    assert failed == {1: f"queue {queue!r} is one of the wheel, of Celery or of kombu"}
    assert set(client.keys()) == {OFFSETS.encode(), b"mail"}
    assert client.hget(OFFSETS, "uuid") == before[b"uuid"]
    assert client.pttl(OFFSETS) == -1


def test_configured_names_of_those_keys_are_respected(server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(server, transport_options={"unacked_key": "held"}))
    rows = [make_row(1, "held"), make_row(2, "unacked"), make_row(3)]
    assert publish_rows(broker, ORIGIN, at(3), rows).failed.keys() == {1, 2}


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_key_of_the_same_name_that_is_no_offset_is_left_alone(
    server: RedisServer, client: redis.Redis, connect: Connect, kind: str
) -> None:
    client.set(OFFSETS, "somebody's") if kind == "string" else client.hset(OFFSETS, "a", "somebody's")
    before = client.dump(OFFSETS)
    broker = connect(server)
    for call in (lambda: broker.adopt(SHARD, 1), lambda: broker.claim(SHARD, {})):
        with pytest.raises(BrokerError, match="choose another wheel_namespace"):
            call()
    assert client.dump(OFFSETS) == before


@pytest.fixture
def other(server: RedisServer, connect: Connect) -> RedisBroker:
    return connect(server, store=StoreIdentity(OTHER_STORE, "2", "/srv/b", "/srv/b on there"))


def test_a_conflict_names_both_stores_and_the_remedy(broker: RedisBroker, other: RedisBroker) -> None:
    with pytest.raises(StoreConflict) as refused:
        other.adopt(SHARD, 9)
    for part in (STORE, "/srv/a on here", OTHER_STORE, "/srv/b on there", "wheel_store", "claim-broker"):
        assert part in str(refused.value)


def test_a_claim_is_refused_beside_a_holder(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "OCCUPIED_MS", 3_600_000)
    with pytest.raises(StoreConflict):
        other.claim(SHARD, {0: at(7)})
    assert publish_rows(broker, ORIGIN, at(1), [make_row(1)]).result is PublishResult.PUBLISHED


def test_a_claim_makes_a_store_the_only_owner(broker: RedisBroker, other: RedisBroker, client: redis.Redis) -> None:
    publish_rows(broker, ORIGIN, at(1), [make_row(1)])
    silence(client)
    for _ in range(2):
        other.claim(SHARD, {0: at(7)})
    owner = other.owner(SHARD)
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


#: Makes a broker of a scheduler on a copy of the store; a place is ``a`` or ``b``, and an instance any text.
CopyAt = Callable[[str, str], RedisBroker]


@pytest.fixture
def copy_at(server: RedisServer, connect: Connect) -> CopyAt:
    return lambda place, instance: connect(
        server, store=StoreIdentity(STORE, instance, f"/srv/{place}", f"/srv/{place} on here")
    )


def silence(client: redis.Redis) -> None:
    client.hincrby(OFFSETS, "seen", -OCCUPIED_MS)


def test_a_copy_is_refused_while_the_other_lives_and_changes_nothing(copy_at: CopyAt, client: redis.Redis) -> None:
    first = adopted(copy_at("a", "1"))
    publish_rows(first, ORIGIN, at(1), [make_row(1)], number=1)
    before = client.hgetall(OFFSETS)
    for second in (copy_at("b", "2"), copy_at("a", "2")):
        for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
            with pytest.raises(StoreConflict) as refused:
                second.adopt(SHARD, epoch)
        for part in ("/srv/a on here", second._store.place, "claim-store"):
            assert part in str(refused.value)
    assert before.items() <= client.hgetall(OFFSETS).items()
    first.verify(SHARD, EPOCH, 1)


@pytest.mark.parametrize("who", ["another store", "a copy at another place"])
def test_a_silent_store_keeps_its_offsets(
    broker: RedisBroker, other: RedisBroker, copy_at: CopyAt, client: redis.Redis, who: str
) -> None:
    """The time of silence does not matter: its pending tasks would stay behind unseen."""
    client.hset(OFFSETS, "seen", 0)
    before = client.hgetall(OFFSETS)
    with pytest.raises(StoreConflict):
        (other if who == "another store" else copy_at("b", "2")).adopt(SHARD, 9)
    assert before.items() <= client.hgetall(OFFSETS).items()


def test_a_restored_store_at_the_same_place_succeeds_a_silent_one(copy_at: CopyAt, client: redis.Redis) -> None:
    first = adopted(copy_at("a", "1"))
    publish_rows(first, ORIGIN, at(1), [make_row(1)])
    second = copy_at("a", "2")
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 1)
    silence(client)
    with pytest.raises(Fenced):
        second.adopt(SHARD, EPOCH - 1)
    assert second.adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(at(1))}
    assert publish_rows(first, at(1), at(2), [make_row(2)]).result is PublishResult.FENCED
    with pytest.raises(StoreConflict):
        first.adopt(SHARD, EPOCH + 2)


def test_two_copies_at_one_epoch_are_told_apart(copy_at: CopyAt, client: redis.Redis) -> None:
    """Redis was emptied, and both count to the same number."""
    first = adopted(copy_at("a", "1"))
    client.delete(OFFSETS)
    adopted(copy_at("b", "2"))
    assert publish_rows(first, ORIGIN, at(1), [make_row(1)]).result in (PublishResult.MISSING, PublishResult.FENCED)
    with pytest.raises((Fenced, OffsetLost)):
        first.verify(SHARD, EPOCH, 0)


@pytest.mark.parametrize("place", ["a", "b"])
def test_a_copy_that_saw_the_other_at_work_waits_for_a_person(copy_at: CopyAt, client: redis.Redis, place: str) -> None:
    """It takes the shard neither while the other is restarted, nor while Redis is emptied under it."""
    first = adopted(copy_at("a", "1"))
    second = copy_at(place, "2")
    for _ in range(2):
        client.hincrby(OFFSETS, "seen", 1)  # a sign of life between two tries
        with pytest.raises(StoreConflict):
            second.adopt(SHARD, EPOCH + 1)
    silence(client)
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 2)
    client.flushall()
    with pytest.raises(StoreConflict, match="/srv/a on here"):
        second.adopt(SHARD, EPOCH + 3)
    first.adopt(SHARD, EPOCH + 1)
    copy_at("a", "1").adopt(SHARD, EPOCH + 2)


def test_a_claimed_copy_goes_on_and_the_other_is_refused_for_good(copy_at: CopyAt, client: redis.Redis) -> None:
    first, second = adopted(copy_at("a", "1")), copy_at("b", "2")
    publish_rows(first, ORIGIN, at(1), [make_row(1)])
    with pytest.raises(StoreConflict):
        second.adopt(SHARD, EPOCH + 1)
    assert second.adopt(SHARD, EPOCH + EPOCH_LEAP) == {0: BrokerOffset(at(1))}
    assert publish_rows(first, at(1), at(2), [make_row(2)]).result is PublishResult.FENCED
    client.hset(OFFSETS, "seen", 0)
    for one in (first, copy_at("b", "1")):
        with pytest.raises(StoreConflict, match="/srv/b on here"):
            one.adopt(SHARD, EPOCH + 100)


def test_the_owner_knows_the_copy_that_was_refused(copy_at: CopyAt) -> None:
    first = adopted(copy_at("a", "1"))
    with pytest.raises(StoreConflict):
        copy_at("b", "2").adopt(SHARD, EPOCH + 1)
    owner = first.owner(SHARD)
    assert (owner.lives, owner.refused) == (True, "/srv/b on here")
    assert owner.is_copy_of(copy_at("b", "2")._store)
    assert not owner.is_copy_of(first._store)


MakeApp = Callable[[str], Any]


@pytest.fixture
def make_app(server: RedisServer, tmp_path: Path) -> MakeApp:
    def make(name: str) -> Any:
        url = f"sqlite:///{tmp_path}/{name}.sqlite3"
        app = Celery(name, broker=server.url, set_as_current=False)
        app.conf.update(wheel_store=url, wheel_shards=2)
        open_store(url, shards=2).close()
        return app

    return make


def adopt(app: Any) -> None:
    with (
        closing(open_store(app.conf.wheel_store, shards=2)) as store,
        closing(broker_for(app, Conf(app), store)) as edge,
    ):
        for shard in range(2):
            edge.adopt(shard, 1)


def test_the_doctor_names_the_other_store_and_the_remedy(make_app: MakeApp, tmp_path: Path) -> None:
    first, second = make_app("first"), make_app("second")
    adopt(first)
    with pytest.raises(StoreConflict, match=r"first\.sqlite3 on "):
        adopt(second)
    with Installation(second) as site:
        found = [one for one in broker.check(site) if one.grade is Grade.ERROR]
    assert [one.about for one in found] == ["shard 0", "shard 1"]
    assert f"{tmp_path}/first.sqlite3 on " in found[0].text
    assert "claim-broker" in (found[0].remedy or "")
    with Installation(first) as site:
        assert not [one for one in broker.check(site) if one.grade is Grade.ERROR]


def test_the_command_claims_shards_that_no_other_store_uses_if_confirmed(
    make_app: MakeApp, client: redis.Redis
) -> None:
    first, second = make_app("first"), make_app("second")
    adopt(first)

    def run(*arguments: str, answer: str = "") -> Any:
        command = wheel.commands["claim-broker"]
        return CliRunner().invoke(command, arguments, obj=SimpleNamespace(app=second), input=answer)

    assert list(other_owners(second)) == [0, 1]
    client.hset("wheel.offset.0", "seen", 2**52)  # just now, however long the test takes
    assert run("--yes").exit_code == 1
    for shard in range(2):
        client.hset(f"wheel.offset.{shard}", "seen", 0)
    refused = run(answer="n\n")
    assert refused.exit_code == 1
    assert "first.sqlite3" in refused.output
    assert "its pending tasks stay there" in refused.output
    with pytest.raises(StoreConflict):
        adopt(second)
    assert run("--yes").exit_code == 0
    assert other_owners(second) == {}
    adopt(second)
    with pytest.raises(StoreConflict):
        adopt(first)
    assert "to this store already" in run("--yes").output


@pytest.mark.parametrize(
    ("data", "grade", "text"),
    [
        (raw(1), None, ""),
        (
            raw(1).replace(b'"v": 1', b'"v": 2'),
            Grade.ERROR,
            "envelope version must be 1 (a newer producer needs a newer scheduler), got …",
        ),
        (b"no message", Grade.ERROR, "cannot be read"),
    ],
)
def test_the_doctor_reads_the_oldest_message_and_removes_none(
    make_app: MakeApp, client: redis.Redis, data: bytes, grade: Grade | None, text: str
) -> None:
    app = make_app("first")
    client.lpush("wheel.0", data)
    with Installation(app) as site:
        found = [one for one in shards.check_queues(site) if one.grade is Grade.ERROR]
    assert [one.grade for one in found] == ([grade] if grade else [])
    assert all(text in one.text for one in found)
    assert client.llen("wheel.0") == 1
