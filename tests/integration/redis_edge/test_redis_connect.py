"""The ways to a server are TLS, a unix socket and Sentinel; the client never repeats a call by itself."""

import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import redis

from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import PublishResult
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import ORIGIN
from tests.integration.redis_edge.conftest import Connect, adopted, answers, publish_rows
from tests.kit.chunks import EPOCH, SHARD, at, make_row
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers import absent, free_port
from tests.kit.servers.redis import RedisServer


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
