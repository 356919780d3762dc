"""A private server of each kind for the session, empty at the start of each test; tests of faults have their own."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import RedisBroker
from celery_wheel.engine.port import Published
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import ORIGIN, Position, Row
from tests.contract.edges.peers import AT_A
from tests.kit.chunks import EPOCH, SHARD, chunk_of, number_in
from tests.kit.patience import patience
from tests.kit.servers import absent
from tests.kit.servers.redis import RedisServer, redis_binaries

BINARIES = redis_binaries()

#: The separator of kombu's keys.
SEP = "\x06\x16"

OFFSETS = f"wheel.offset.{SHARD}"

#: Makes a broker of a server or its URL; see the fixture ``connect``.
Connect = Callable[..., RedisBroker]


def publish_rows(
    broker: RedisBroker, after: Position, upto: Position, rows: Sequence[Row], **changes: Any
) -> Published:
    return broker.publish(chunk_of(after, upto, rows, **changes))


def adopted(broker: RedisBroker, *lanes: int) -> RedisBroker:
    """Return the broker, which then holds SHARD at EPOCH with the offsets of these lanes at the origin."""
    broker.adopt(SHARD, EPOCH)
    for lane in lanes or (0,):
        broker.set_offset(SHARD, EPOCH, lane, ORIGIN)
    return broker


def answers(broker: RedisBroker) -> bool:
    try:
        broker.adopt(SHARD, EPOCH)
    except BrokerError:
        return False
    return True


def pushed(client: redis.Redis, queue: str = "mail") -> list[int]:
    """Return the numbers of a queue's rows in the order in which a worker gets them."""
    return [number_in(raw) for raw in reversed(client.lrange(queue, 0, -1))]


@pytest.fixture(params=list(BINARIES) or ["none"], scope="session")
def binary(request: pytest.FixtureRequest) -> Path:
    if request.param not in BINARIES:
        absent("redis-server")
    return BINARIES[request.param]


@pytest.fixture(scope="session")
def _shared_server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), binary) as server:
        yield server


@pytest.fixture
def server(_shared_server: RedisServer) -> RedisServer:
    """Return the server that the session shares: no test may pause, kill or configure it."""
    _shared_server.client().flushall()
    return _shared_server


@pytest.fixture
def client(server: RedisServer) -> redis.Redis:
    return server.client()


@pytest.fixture
def own_server(binary: Path, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", binary) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Connect]:
    brokers: list[RedisBroker] = []

    def make(server: RedisServer | str, **options: Any) -> RedisBroker:
        url = server if isinstance(server, str) else server.url
        options = {"transport_options": {"socket_timeout": patience(5)}, **options}
        brokers.append(RedisBroker(url, **{"store": AT_A, "reader": QueuedMessageReader(), **options}))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(server: RedisServer, connect: Connect) -> RedisBroker:
    """Return a broker that holds SHARD at EPOCH; the offset of lane 0 is at the origin."""
    return adopted(connect(server))
