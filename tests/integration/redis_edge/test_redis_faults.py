"""A server that hangs, dies, forgets, is full, shared or refuses writes: nothing is lost, nothing is sent twice.

The ways to a server are TLS, a unix socket and Sentinel; the client never repeats a call by itself.
"""

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from celery import Celery
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.broker.redis.connect import refuses_command
from celery_wheel.engine.port import BrokerOffset, Published, PublishResult
from celery_wheel.errors import BrokerError, OffsetLost, SettingError
from celery_wheel.operations.doctor import Installation
from celery_wheel.operations.doctor import broker as doctor_broker
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store.model import ORIGIN
from tests.integration.redis_edge.conftest import Connect, adopted, answers, publish_rows, pushed
from tests.kit.chunks import EPOCH, SHARD, at, make_row
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers import absent, free_port
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


def publishes(broker: RedisBroker) -> bool:
    adopted(broker)
    return publish_rows(broker, ORIGIN, at(1), [make_row(1)]).result is PublishResult.PUBLISHED


def test_the_edge_connects_by_a_unix_socket(binary: Path, tmp_path: Path, connect: Connect) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(tmp_path / "data", binary, unixsocket=str(path)) as server:
        assert publishes(connect(f"redis+socket://{path}?virtual_host=4"))
        assert server.client(4).llen("mail") == 1


def test_the_edge_connects_by_tls(tmp_path: Path, connect: Connect) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        absent("openssl")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files], check=True, capture_output=True
    )
    tls = {"tls_port": str(port), "tls_key_file": str(key), "tls_cert_file": str(certificate), "tls_auth_clients": "no"}
    try:
        server = RedisServer(tmp_path / "data", **tls, tls_ca_cert_file=str(certificate)).start()
    except AssertionError:
        absent("redis-server with TLS")
    with_ca = f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={certificate}"
    try:
        assert publishes(connect(with_ca))
        with pytest.raises(BrokerError, match="cannot be reached"):
            connect(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=required").now_ms()
    finally:
        server.kill()


@pytest.mark.slow
def test_sentinel_leads_to_each_primary(
    own_server: RedisServer, binary: Path, tmp_path: Path, connect: Connect
) -> None:
    with RedisServer(tmp_path / "replica", binary, replicaof=f"127.0.0.1 {own_server.port}") as replica:
        wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up", "the replica in step")
        port = free_port()
        configuration = tmp_path / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n\n"
            f"sentinel monitor shop 127.0.0.1 {own_server.port} 1\n"
            "sentinel down-after-milliseconds shop 4000\nsentinel failover-timeout shop 2000\n"
        )
        with Process([binary, configuration, "--sentinel"], tmp_path / "sentinel.log"):
            broker = connect(f"sentinel://127.0.0.1:{port}/0", transport_options={"master_name": "shop"})
            wait_until(lambda: answers(broker), "Sentinel up")
            wait_until(lambda: _knows_replica(port), "Sentinel knowing the replica")
            assert publishes(broker)
            own_server.client().wait(1, int(patience() * 1_000))
            own_server.kill()
            # A Sentinel that was paused waits for half a minute.
            wait_until(lambda: _is_primary(replica), "the failover", 90)
            wait_until(lambda: answers(broker), "the way to the new primary")
            again = publish_rows(broker, at(1), at(2), [make_row(2)])
            assert again.result is PublishResult.PUBLISHED
            assert replica.client().llen("mail") == 2


def _is_primary(server: RedisServer) -> bool:
    try:
        return bool(server.client().info("replication")["role"] == "master")
    except redis.ConnectionError:  # Sentinel closes the connections of every client of the server that it promotes
        return False


def _knows_replica(port: int) -> bool:
    with redis.Redis(port=port) as client:
        return bool(client.sentinel_slaves("shop"))


class Silent:
    """A server that counts requests and closes the connection without an answer."""

    def __init__(self) -> None:
        self.requests = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as stream:
                for line in stream:
                    if line.startswith(b"CLIENT"):  # CLIENT SETINFO, with which redis-py introduces itself
                        connection.sendall(b"+OK\r\n")
                    if line.startswith(b"INFO"):  # as of a hosted server, which allows no INFO
                        connection.sendall(b"-ERR unknown command\r\n")
                    if line.startswith(b"PING"):
                        connection.sendall(b"+PONG\r\n")
                    if line.startswith((b"EVAL", b"TIME")):
                        self.requests += 1
                        break
                    if line.startswith(b"QUIT"):
                        return

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"QUIT\r\n")
        self.thread.join()
        self.listener.close()


@pytest.mark.parametrize("options", [{}, {"retry_on_timeout": True}])
def test_a_request_without_an_answer_is_sent_once(connect: Connect, options: dict[str, object]) -> None:
    server = Silent()
    try:
        broker = connect(
            f"redis://127.0.0.1:{server.port}/0", transport_options={**options, "socket_timeout": patience()}
        )
        for count, call in enumerate((broker.now_ms, lambda: broker.adopt(SHARD, EPOCH)), start=1):
            with pytest.raises(BrokerError):
                call()
            assert server.requests == count
    finally:
        server.close()


def test_a_cluster_is_refused_in_one_line(tmp_path: Path) -> None:
    options = {"cluster_enabled": "yes", "cluster_port": str(free_port())}
    with RedisServer(tmp_path, **options) as server:
        app = Celery("shop", broker=server.url, set_as_current=False)
        app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
        refusal = f"broker_url must be a Redis server that is no cluster, got Redis 127.0.0.1:{server.port}/0: kombu's"
        with pytest.raises(SettingError, match=re.escape(refusal)):
            WheelService(app).check()
        with Installation(app) as site:
            [found] = doctor_broker.check(site)
        assert (found.grade, found.text.startswith(refusal)) == ("error", True)
        assert "Sentinel" in found.remedy
