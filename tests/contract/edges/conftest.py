"""Every kind of broker, a fresh one for each test."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.contract.edges import peers
from tests.kit.servers.rabbit import ON_RABBITMQ
from tests.kit.servers.redis import RedisServer

FENCING = ("redis", "model of redis", "celery_wheel.testing")
RABBITMQ = ("rabbitmq", "rabbitmq, quorum queue")
CONFIRMING = (*(pytest.param(one, marks=ON_RABBITMQ) for one in RABBITMQ), "memory transport", "model of rabbitmq")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def made(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    def redis_peer() -> peers.RedisPeer:
        server: RedisServer = request.getfixturevalue("redis_server")
        return peers.RedisPeer(server.url, server.client())

    kinds: dict[str, Callable[[], peers.Peer]] = {
        "redis": redis_peer,
        "rabbitmq": lambda: peers.RabbitPeer(request.getfixturevalue("rabbit_server")),
        "rabbitmq, quorum queue": lambda: peers.RabbitPeer(request.getfixturevalue("rabbit_server"), "quorum"),
        "model of redis": peers.ModelRedisPeer,
        "model of rabbitmq": peers.ModelRabbitPeer,
        "memory transport": peers.MemoryTransportPeer,
        "celery_wheel.testing": peers.MemoryBrokerPeer,
    }
    with closing(kinds[kind]()) as peer:
        yield peer


@pytest.fixture(params=[*FENCING, *CONFIRMING])
def peer(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)


@pytest.fixture(params=FENCING)
def fencing(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)


@pytest.fixture(params=CONFIRMING)
def confirming(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)
