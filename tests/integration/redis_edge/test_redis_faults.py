"""A server that hangs, dies, forgets, is full, shared or refuses writes: nothing is lost, nothing is sent twice."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.broker.redis.connect import refuses_command
from celery_wheel.engine.port import BrokerOffset, Published, PublishResult
from celery_wheel.errors import BrokerError, OffsetLost
from celery_wheel.store.model import ORIGIN
from tests.integration.redis_edge.conftest import Connect, adopted, answers, publish_rows, pushed
from tests.kit.chunks import EPOCH, SHARD, at, make_row
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer


def publish(broker: RedisBroker, first: int, last: int) -> Published:
    """Return rows ``first`` to ``last``; the offset is moved to just before them."""
    rows = [make_row(n) for n in range(first, last + 1)]
    return publish_rows(broker, at(first - 1), at(last), rows)


def test_a_port_without_a_server_is_an_error(connect: Connect) -> None:
    broker = connect(f"redis://:secret@127.0.0.1:{free_port()}/0")
    calls: list[Callable[[], object]] = [
        lambda: broker.adopt(SHARD, EPOCH),
        lambda: broker.set_offset(SHARD, EPOCH, 0, at(1)),
        lambda: publish(broker, 1, 1),
        lambda: broker.verify(SHARD, EPOCH, 0),
        lambda: broker.depth(SHARD),
        lambda: broker.oldest(SHARD),
        broker.now_ms,
    ]
    for call in calls:
        with pytest.raises(BrokerError, match="cannot be reached") as caught:
            call()
        assert "secret" not in str(caught.value)


def test_a_server_that_hangs_is_an_error_and_nothing_is_sent_twice(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    publish(broker, 1, 2)
    hasty = connect(own_server, transport_options={"socket_timeout": 0.3})
    wait_until(lambda: answers(hasty), "the hasty one is connected")
    own_server.pause()
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"did not answer in time .* repeating it is safe"):
            publish(hasty, 3, 4)
    assert time.monotonic() - started < patience(10)
    own_server.resume()
    client = own_server.client()
    wait_until(lambda: client.llen("mail") == 4, "the chunks that had been sent meanwhile")
    assert publish(broker, 3, 4) == Published(PublishResult.ALREADY, {})
    assert pushed(client) == [1, 2, 3, 4]


def test_an_address_without_an_answer_is_an_error_within_the_timeout(connect: Connect) -> None:
    with socket.socket() as silent:  # accepts connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        broker = connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", transport_options={"socket_timeout": 0.2})
        with pytest.raises(BrokerError, match="did not answer in time"):
            broker.now_ms()


def test_a_restart_that_lost_writes_is_a_rollback(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    publish(broker, 1, 2)
    own_server.client().save()
    publish_rows(broker, at(2), at(4), [make_row(3), make_row(4)], number=2)
    own_server.restart()
    with pytest.raises(OffsetLost):
        broker.verify(SHARD, EPOCH, 2)
    broker.verify(SHARD, EPOCH, 1)
    assert publish(broker, 5, 6) == Published(PublishResult.ROLLED_BACK, {})
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(2), {})}
    assert publish(broker, 3, 4).result is PublishResult.PUBLISHED
    assert pushed(own_server.client()) == [1, 2, 3, 4]


def test_a_restart_that_lost_everything_is_no_rollback(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    publish(broker, 1, 2)
    own_server.restart()
    assert publish(broker, 3, 4) == Published(PublishResult.MISSING, {})
    assert broker.adopt(SHARD, EPOCH + 1) == {}


def test_a_restart_that_lost_nothing_goes_unnoticed(binary: Path, tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path, binary, appendonly="yes", appendfsync="always") as server:
        broker = adopted(connect(server))
        publish(broker, 1, 2)
        server.restart()
        assert publish(broker, 3, 4) == Published(PublishResult.PUBLISHED, {})
        assert pushed(server.client()) == [1, 2, 3, 4]


def test_a_lost_script_cache_goes_unnoticed(broker: RedisBroker, client: redis.Redis) -> None:
    publish(broker, 1, 1)
    client.script_flush()
    assert publish(broker, 2, 2) == Published(PublishResult.PUBLISHED, {})
    client.lpush(f"wheel.{SHARD}", b"x")
    client.script_flush()
    peeked = broker.peek(SHARD, 1, 10)
    client.script_flush()
    assert broker.trim(SHARD, EPOCH, peeked.token)
    client.script_flush()
    broker.set_offset(SHARD, EPOCH, 0, at(9))
    client.script_flush()
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(9), {})}
    assert pushed(client) == [1, 2]


def test_a_connection_that_the_server_closed_while_idle_is_replaced(broker: RedisBroker, client: redis.Redis) -> None:
    publish(broker, 1, 1)
    client.client_kill_filter(_type="normal", skipme=True)
    assert publish(broker, 2, 2).result is PublishResult.PUBLISHED


def test_a_full_server_accepts_nothing_and_the_offset_stays(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    client = own_server.client()
    publish(broker, 1, 2)
    client.config_set("maxmemory", "100kb")
    with pytest.raises(BrokerError, match=r"is full \(maxmemory\).*nothing was changed"):
        publish(broker, 3, 1_000)
    with pytest.raises(BrokerError, match="is full"):
        publish(broker, 3, 3)
    with pytest.raises(BrokerError, match="is full"):
        broker.await_message(SHARD, 10)
    assert broker.can_wait, "as soon as it has room"
    assert pushed(client) == [1, 2]
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(2), {})}
    client.config_set("maxmemory", 0)
    assert publish(broker, 3, 1_000) == Published(PublishResult.PUBLISHED, {})


def test_a_full_server_broadcasts_nothing_either(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    client = own_server.client()
    with client.pubsub() as listener:
        listener.subscribe("/0.all")
        assert listener.get_message(timeout=patience(5))["type"] == "subscribe"
        client.config_set("maxmemory", "100kb")
        row = make_row(1, exchange="all", exchange_type="fanout", routing_key="")
        with pytest.raises(BrokerError, match="is full"):
            publish_rows(broker, ORIGIN, at(1), [row])
        assert listener.get_message(timeout=0.1) is None


def test_a_server_that_fills_up_within_a_chunk_takes_the_whole_chunk(own_server: RedisServer, connect: Connect) -> None:
    broker = adopted(connect(own_server))
    client = own_server.client()
    # There is enough memory to read the request, and too little for the pushed messages.
    limit = client.info("memory")["used_memory"] + 12 * 2**20
    client.config_set("maxmemory", limit)
    rows = [make_row(n, body=b"x" * 20_000, routing_key=f"q{n % 2}", queue=f"q{n % 2}") for n in range(1, 401)]
    assert publish_rows(broker, ORIGIN, at(400), rows) == Published(PublishResult.PUBLISHED, {})
    assert client.llen("q0") + client.llen("q1") == 400
    assert client.info("memory")["used_memory_peak"] > limit


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "is a replica and accepts no writes"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "too few replicas"),
    ],
    ids=["a replica", "too few replicas"],
)
def test_a_server_that_accepts_no_writes_gets_nothing_and_no_row_is_refused(
    own_server: RedisServer, connect: Connect, start: str, end: str, says: str
) -> None:
    broker = adopted(connect(own_server))
    own_server.client().execute_command(*start.split())
    with pytest.raises(BrokerError, match=says):
        publish(broker, 1, 2)
    own_server.client().execute_command(*end.split())
    assert publish(broker, 1, 2) == Published(PublishResult.PUBLISHED, {})


def test_a_user_without_rights_gets_an_error_that_says_so(own_server: RedisServer, connect: Connect) -> None:
    adopted(connect(own_server))
    own_server.client().acl_setuser("shop", enabled=True, passwords=["+secret"], keys=["wheel*"], categories=["+@all"])
    broker = connect(own_server.url.replace("//", "//shop:secret@"))
    with pytest.raises(BrokerError, match="does not permit this") as caught:
        publish(broker, 1, 2)
    assert "secret" not in str(caught.value)
    with pytest.raises(BrokerError, match="does not permit this"):  # to read a binding set: no row is refused for it
        publish_rows(broker, ORIGIN, at(1), [make_row(1, exchange="news", routing_key="k")])
    assert broker.adopt(SHARD, EPOCH) == {0: BrokerOffset(ORIGIN, {})}


def test_a_user_who_may_not_wait_for_a_message_polls(own_server: RedisServer, connect: Connect) -> None:
    own_server.client().acl_setuser("shop", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-blmove"])
    broker = adopted(connect(own_server.url.replace("//", "//shop:any@")))
    assert broker.can_wait, "it was not refused yet"
    assert broker.await_message(SHARD, 10) is False
    assert not broker.can_wait
    assert broker.peek(SHARD, 10, 1_000).arrivals == []
    broker.adopt(SHARD, EPOCH + 1)
    assert broker.can_wait, "the rights may have changed"


def test_a_primary_that_becomes_a_replica_ends_the_wait_as_a_failure(own_server: RedisServer, connect: Connect) -> None:
    broker, client = adopted(connect(own_server)), own_server.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.await_message, SHARD, 60_000)
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "the call to wait")
        client.replicaof("127.0.0.1", free_port())
        with pytest.raises(BrokerError, match="has just changed between primary and replica"):
            waiting.result(patience(5))
    assert broker.can_wait


@pytest.mark.parametrize(
    ("reply", "refused"),
    [
        (ResponseError("unknown command 'BLMOVE', with args beginning with: 'wheel.0' 'wheel.0' "), True),
        (ResponseError("unsupported command 'blmove'"), True),
        (NoPermissionError("this user has no permissions to run the 'blmove' command"), True),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (ReadOnlyError("You can't write against a read only replica."), False),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is currently unable to"), False),
    ],
    ids=str,
)
def test_a_command_is_refused_for_good_by_an_answer_without_a_state(reply: ResponseError, refused: bool) -> None:
    assert refuses_command(reply) is refused


def test_a_wrong_password_is_an_error_that_says_so(own_server: RedisServer, connect: Connect) -> None:
    own_server.client().config_set("requirepass", "right")
    with pytest.raises(BrokerError, match="password") as caught:
        connect(own_server.url.replace("//", "//:wr0ng@")).now_ms()
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(BrokerError, match="password"):
        connect(own_server).now_ms()
    assert connect(own_server.url.replace("//", "//:right@")).now_ms() > 0


CHUNKS = 200
SIZE = 20


def publish_all(
    broker: RedisBroker,
    lane: int,
    queue: str,
    done: Callable[[int], None] = lambda chunk: None,
    doubted: Callable[[], None] = lambda: None,
) -> int:
    """Publish CHUNKS chunks of SIZE rows, each until it is confirmed; returns how often a chunk was in doubt."""
    doubts = 0
    for chunk in range(CHUNKS):
        first = chunk * SIZE + 1
        rows = [make_row(n, routing_key=queue, queue=queue) for n in range(first, first + SIZE)]
        while True:
            try:
                verdict = publish_rows(broker, at(first - 1), at(first + SIZE - 1), rows, lane=lane).result
            except BrokerError:
                doubts += 1
                doubted()
                continue
            assert verdict in (PublishResult.PUBLISHED, PublishResult.ALREADY)
            break
        done(chunk)
    return doubts


def test_each_message_is_published_once_though_the_server_is_killed(
    binary: Path, tmp_path: Path, connect: Connect
) -> None:
    with RedisServer(tmp_path, binary, appendonly="yes", appendfsync="always") as server:
        broker = adopted(connect(server, transport_options={"socket_timeout": patience(1)}))
        reached, killed = ([threading.Event() for _ in range(5)] for _ in range(2))
        doubted = threading.Event()

        def killer() -> None:
            for at, gone in zip(reached, killed, strict=True):
                assert at.wait(patience())
                doubted.clear()
                server.kill()
                gone.set()
                assert doubted.wait(patience()), "a chunk met the server that is gone"
                server.start()

        def done(chunk: int) -> None:
            """Let the killer strike while the next chunks are published, and before they are all published."""
            kill, after = divmod(chunk - 29, 30)
            if kill in range(5) and not after:
                reached[kill].set()
            elif kill in range(5) and after == 20:
                assert killed[kill].wait(patience())

        with ThreadPoolExecutor() as pool:
            killing = pool.submit(killer)
            doubts = publish_all(broker, 0, "mail", done, doubted.set)
            killing.result(patience())
        assert doubts >= 5
        assert pushed(server.client(), "mail") == list(range(1, CHUNKS * SIZE + 1))


def test_each_message_is_published_once_by_several_threads(broker: RedisBroker, client: redis.Redis) -> None:
    arrived = [str(n).encode() for n in range(500)]
    client.lpush(f"wheel.{SHARD}", *arrived)
    adopted(broker, 0, 1, 2)

    def accept_all() -> int:
        taken = 0
        while (peeked := broker.peek(SHARD, 7, 1_000)).arrivals:
            assert broker.trim(SHARD, EPOCH, peeked.token)
            taken += len(peeked.arrivals)
        return taken

    with ThreadPoolExecutor() as pool:
        publishing = [pool.submit(publish_all, broker, lane, f"q{lane}") for lane in range(3)]
        assert pool.submit(accept_all).result(patience()) == len(arrived)
        assert [future.result(patience()) for future in publishing] == [0, 0, 0]
    for lane in range(3):
        assert pushed(client, f"q{lane}") == list(range(1, CHUNKS * SIZE + 1))
