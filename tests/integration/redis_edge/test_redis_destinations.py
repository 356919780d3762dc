"""The destinations of messages: priorities, prefixes, exchanges, expiring queues; and rows that no queue accepts.

A real Celery worker executes what the edge publishes.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Exchange

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import BrokerOffset, Published, PublishResult
from celery_wheel.store.model import ORIGIN, Message, Row
from tests.integration.redis_edge.conftest import SEP, Connect, adopted, publish_rows, pushed
from tests.kit.chunks import EPOCH, SHARD, at, make_row
from tests.kit.patience import patience, wait_until
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Note, Stack


def publish(broker: RedisBroker, *rows: Row, from_: int = 0) -> Published:
    return publish_rows(broker, at(from_), at(max(row.id for row in rows)), rows)


def bind(client: redis.Redis, exchange: str, *members: tuple[str, str, str]) -> None:
    client.sadd(f"_kombu.binding.{exchange}", *[SEP.join(member) for member in members])


def test_a_chunk_of_more_than_lua_can_pass_at_once_arrives_whole(broker: RedisBroker, client: redis.Redis) -> None:
    rows = [make_row(n, body=f"[[{n}]]".encode()) for n in range(1, 20_002)]
    assert publish(broker, *rows) == Published(PublishResult.PUBLISHED, {})
    assert pushed(client) == list(range(1, 20_002))


def test_each_queue_gets_its_own_rows_in_order(broker: RedisBroker, client: redis.Redis) -> None:
    rows = [make_row(n, f"q{n % 3}") for n in range(1, 1_001)]
    publish(broker, *rows)
    for q in range(3):
        assert pushed(client, f"q{q}") == [n for n in range(1, 1_001) if n % 3 == q]


def test_all_keys_have_the_global_prefix(server: RedisServer, client: redis.Redis, connect: Connect) -> None:
    broker = adopted(connect(server, transport_options={"global_keyprefix": "app:"}))
    client.sadd("app:_kombu.binding.news", SEP.join(("k", "", "bound")))
    client.lpush("app:wheel.3", b"arrived")
    publish(
        broker,
        make_row(1, priority=9),
        make_row(2, exchange="news", routing_key="k"),
        make_row(3, queue_expires_ms=60_000),
    )
    assert broker.trim(SHARD, EPOCH, broker.peek(SHARD, 10, 1000).token)
    assert set(client.keys()) == {
        b"app:wheel.offset.3",
        b"app:_kombu.binding.news",
        b"app:mail\x06\x169",
        b"app:bound",
        b"app:mail",
    }


def test_a_publish_renews_the_expiry_of_all_lists_of_a_queue(broker: RedisBroker, client: redis.Redis) -> None:
    lists = [f"mail{SEP}3", f"mail{SEP}6", f"mail{SEP}9"]
    for key in lists:
        client.lpush(key, "waiting")
        client.pexpire(key, 50_000)
    publish(broker, make_row(1, priority=3, queue_expires_ms=90_000), make_row(2, routing_key="other", queue="other"))
    for key in lists:
        assert 80_000 < client.pttl(key) <= 90_000
    assert client.pttl("other") == -1


@pytest.mark.parametrize("asked_ms", [1, 60_000, 2**63 - 1])
def test_no_message_ends_what_a_list_holds(broker: RedisBroker, client: redis.Redis, asked_ms: int) -> None:
    """Neither what was there before, nor what comes later; and no expiry that is there gets shorter."""
    client.lpush("mail", "somebody's")
    client.lpush(f"mail{SEP}9", "with an expiry")
    client.pexpire(f"mail{SEP}9", 90_000)
    publish(broker, make_row(1, queue_expires_ms=asked_ms), make_row(2, priority=6, queue_expires_ms=asked_ms))
    assert client.llen("mail") == 2
    for key in ("mail", f"mail{SEP}6"):
        assert client.pttl(key) == -1
    assert client.pttl(f"mail{SEP}9") > 80_000


def test_an_expiry_that_would_delete_the_queue_is_left_out(broker: RedisBroker, client: redis.Redis) -> None:
    publish(broker, make_row(1, queue_expires_ms=0))
    assert pushed(client) == [1]


def test_copies_for_several_queues_have_delivery_tags_of_their_own(broker: RedisBroker, client: redis.Redis) -> None:
    bind(client, "news", ("k", "", "a"), ("k", "", "b"))
    publish(broker, make_row(1, exchange="news", routing_key="k"))
    tags = {json.loads(client.lindex(queue, 0))["properties"]["delivery_tag"] for queue in "ab"}
    assert len(tags) == 2


def test_only_the_rows_own_queue_is_renewed(broker: RedisBroker, client: redis.Redis) -> None:
    bind(client, "shop", ("k", "", "own"), ("k", "", "other"))
    for queue in ("own", "other"):
        client.lpush(queue, "waiting")
        client.pexpire(queue, 10_000)
    publish(broker, make_row(1, exchange="shop", routing_key="k", queue="own", queue_expires_ms=60_000))
    assert client.pttl("own") > 50_000
    assert client.pttl("other") <= 10_000


def test_without_a_binding_a_row_alone_is_refused(broker: RedisBroker, client: redis.Redis) -> None:
    bind(client, "news", ("sport", "^sport$", "sport"))
    rows = [
        make_row(1),
        make_row(2, exchange="nowhere", exchange_type="direct", routing_key="k"),
        make_row(3, exchange="news", exchange_type="topic", routing_key="weather"),
        make_row(4, exchange="news", exchange_type="headers", routing_key="k"),
        make_row(5, routing_key=""),
        make_row(6),
    ]
    published = publish(broker, *rows)
    assert published.result is PublishResult.PUBLISHED
    assert published.failed == {
        2: "no queue is bound to exchange 'nowhere' with routing key 'k'",
        3: "no queue is bound to exchange 'news' with routing key 'weather'",
        4: "exchange 'news' has type 'headers', which Redis does not support",
        5: "it names neither an exchange nor a queue",
    }
    assert pushed(client) == [1, 6]


def test_a_queue_bound_a_moment_ago_is_not_missed(broker: RedisBroker, client: redis.Redis) -> None:
    row = {"exchange": "news", "exchange_type": "topic", "routing_key": "k"}
    bind(client, "news", ("other", "^other$", "other"))
    assert publish(broker, make_row(1, **row)).failed
    bind(client, "news", ("k", "^k$", "new"))
    assert not publish(broker, make_row(2, **row), from_=1).failed
    assert pushed(client, "new") == [2]


def test_a_dead_letter_queue_gets_unbound_messages(server: RedisServer, client: redis.Redis, connect: Connect) -> None:
    broker = adopted(connect(server, transport_options={"deadletter_queue": "dead"}))
    bind(client, "topics", ("k", "^k$", "dead"))
    published = publish(
        broker,
        make_row(1, exchange="nowhere", routing_key="k"),
        make_row(2, exchange="topics", exchange_type="topic", routing_key="k"),
    )
    assert list(published.failed) == [2]
    assert pushed(client, "dead") == [1]


def test_a_broadcast_has_the_bytes_of_kombus_own(server: RedisServer, broker: RedisBroker, client: redis.Redis) -> None:
    with client.pubsub() as listener, Celery(broker=server.url, set_as_current=False) as app:
        listener.subscribe("/0.all")
        wait_until(lambda: client.pubsub_numsub("/0.all")[0][1] == 1, "the subscription")
        with app.connection_for_write() as connection, connection.channel() as channel:
            Exchange("all", type="fanout", channel=channel).declare()
            producer = connection.Producer(channel)
            app.send_task("shop.remind", exchange="all", exchange_type="fanout", routing_key="", producer=producer)
        native = [heard for _ in range(2) if (heard := listener.get_message(timeout=patience(5)))][-1]["data"]
        message = json.loads(native)
        envelope = Envelope(str(uuid.uuid4()), "shop.remind", message["headers"]["id"], 1, 0, "all", "fanout", "")
        message["headers"]["wheel"] = encode(envelope)
        arrived = QueuedMessageReader().decode(json.dumps(message).encode())
        assert isinstance(arrived, Message)
        assert publish(broker, Row.of(arrived, 1, 0, 1, 1)).failed == {}
        released = listener.get_message(timeout=patience(5))["data"]
    tags = [json.loads(raw)["properties"]["delivery_tag"] for raw in (native, released)]
    assert [uuid.UUID(tag).version for tag in tags] == [4, 7]
    assert released.replace(tags[1].encode(), tags[0].encode()) == native


def test_a_destination_that_is_no_list_refuses_its_own_rows_alone(broker: RedisBroker, client: redis.Redis) -> None:
    client.hset("bad", "a", "hash")
    client.set(f"worse{SEP}9", "a string")
    rows = [
        make_row(1),
        make_row(2, routing_key="bad", queue="bad"),
        make_row(3, routing_key="worse", queue="worse", priority=9),
        make_row(4, routing_key="worse", queue="worse"),
        make_row(5),
    ]
    expected = {2: "key 'bad' holds a hash, not a list", 3: f"key 'worse{SEP}9' holds a string, not a list"}
    assert publish(broker, *rows) == Published(PublishResult.PUBLISHED, expected)
    assert pushed(client) == [1, 5]
    assert pushed(client, "worse") == [4]
    assert publish(broker, *rows) == Published(PublishResult.ALREADY, expected)
    assert broker.adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(at(5), expected)}


def test_an_older_chunk_does_not_get_the_refusals_of_a_later_chunk(broker: RedisBroker, client: redis.Redis) -> None:
    client.set("bad", "a string")
    first, second = make_row(1), make_row(2, routing_key="bad", queue="bad")
    publish(broker, first)
    assert publish(broker, second, from_=1).failed
    assert publish(broker, first) == Published(PublishResult.ALREADY, {})
    assert set(publish(broker, second, from_=1).failed) == {2}


def test_a_row_with_one_bad_queue_of_two_goes_to_neither(broker: RedisBroker, client: redis.Redis) -> None:
    bind(client, "shop", ("both", "", "good"), ("both", "", "bad"), ("one", "", "good"))
    client.set("bad", "a string")
    rows = [make_row(n, exchange="shop", routing_key=key) for n, key in enumerate(["one", "both", "one"], start=1)]
    assert publish(broker, *rows).failed == {2: "key 'bad' holds a string, not a list"}
    assert pushed(client, "good") == [1, 3]


def test_many_refused_rows_with_ids_of_63_bits(broker: RedisBroker, client: redis.Redis) -> None:
    client.set("bad", "a string")
    rows = [make_row(n, id=2**63 - n, routing_key="bad", queue="bad") for n in range(1, 1_001)]
    published = publish_rows(broker, ORIGIN, at(1_000), rows)
    assert set(published.failed) == {2**63 - n for n in range(1, 1_001)}
    assert broker.adopt(SHARD, EPOCH)[0].failed == published.failed


def test_a_binding_key_that_is_no_set_refuses_its_exchange(broker: RedisBroker, client: redis.Redis) -> None:
    client.set("_kombu.binding.news", "a string")
    published = publish(broker, make_row(1, exchange="news", routing_key="k"), make_row(2))
    assert list(published.failed) == [1]
    assert "cannot be read" in published.failed[1]
    assert pushed(client) == [2]


def test_reasons_may_have_any_characters(broker: RedisBroker, client: redis.Redis) -> None:
    queue = "påske'\"\\{}"
    client.set(queue, "a string")
    failed = publish(broker, make_row(1, routing_key=queue, queue=queue)).failed
    assert failed == {1: f"key '{queue}' holds a string, not a list"}
    assert broker.adopt(SHARD, EPOCH)[0].failed == failed


QUEUES = [
    ("mail", "mail", "direct", "mail"),
    ("sport", "news", "topic", "news.sport.#"),
    ("orders", "shop", "direct", "order"),
]


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Start a worker without the wheel, which takes the tasks of a queue in the broker's order."""
    with ExitStack() as stacks:

        def start(queues: str, prefix: str = "") -> Stack:
            settings = {"worker_prefetch_multiplier": 1, "accept_content": ["json", "pickle"]}
            options = {"broker_transport_options": {"global_keyprefix": prefix}} if prefix else {}
            stack = stacks.enter_context(Stack(tmp_path, server, queues=QUEUES, plain=True, **settings, **options))
            stack.worker("-P", "solo", "-Q", queues)
            return stack

        yield start


def task(number: int, text: str = "", **changes: Any) -> Row:
    task_id = f"00000000-0000-4000-8000-{number:012d}"
    headers = {"lang": "py", "task": "note", "id": task_id, "root_id": task_id, "eta": None, "greeting": "Grüße"}
    properties = {"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": task_id}
    parts = {"headers": headers, "properties": properties, "body": [[number, text], {}, {}]}
    return make_row(number, **{name: json.dumps(part).encode() for name, part in parts.items()}, **changes)


def publish_row(broker: RedisBroker, *rows: Row) -> Published:
    return publish_rows(broker, ORIGIN, at(rows[-1].id), rows)


def ran(stack: Stack, count: int) -> list[Note]:
    wait_until(lambda: len(stack.runs()) >= count, f"{count} tasks executed")
    return stack.runs()


@pytest.mark.parametrize("prefix", ["", "app:"])
def test_a_worker_executes_published_tasks_in_order(
    server: RedisServer, worker: Callable[..., Stack], connect: Connect, prefix: str
) -> None:
    broker = adopted(connect(server, transport_options={"global_keyprefix": prefix}))
    rows = [task(n, priority=p) for n, p in enumerate([9, 0, 3, None, 9, 4], start=1)]
    assert publish_row(broker, *rows) == Published(PublishResult.PUBLISHED, {})
    executed = ran(worker("mail", prefix), len(rows))
    assert [item["tag"] for item in executed] == [2, 4, 3, 6, 1, 5]  # in kombu on Redis 0 goes first
    assert [item["delivery_info"]["priority"] for item in executed] == [0, 0, 3, 4, 9, 9]
    assert {item["greeting"] for item in executed} == {"Grüße"}
    assert {item["eta"] for item in executed} == {None}
    assert executed[0]["id"] == "00000000-0000-4000-8000-000000000002"


def test_a_worker_gets_messages_of_the_exchanges_that_it_has_bound(
    broker: RedisBroker, worker: Callable[..., Stack], client: redis.Redis
) -> None:
    stack = worker("mail,sport,orders")
    wait_until(lambda: client.exists("_kombu.binding.news", "_kombu.binding.shop") == 2, "the worker's bindings")
    topic = {"exchange": "news", "exchange_type": "topic", "queue": None}
    published = publish_row(
        broker,
        task(1, exchange="shop", routing_key="order", queue="orders"),
        task(2, routing_key="news.sport.golf", **topic),
        task(3, routing_key="news.politics", **topic),
        task(4, "näch\u2028ste"),
    )
    executed = {item["tag"]: item for item in ran(stack, 3)}
    assert list(published.failed) == [3]
    assert set(executed) == {1, 2, 4}
    assert executed[2]["delivery_info"]["routing_key"] == "news.sport.golf"
    assert executed[4]["args"][0] == "näch\u2028ste"
