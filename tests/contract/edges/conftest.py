"""Every kind of broker, a fresh one for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.edges import benches
from tests.rabbit import RabbitServer
from tests.servers import RedisServer

FENCING = ("redis", "model of redis", "celery_wheel.testing")
CONFIRMING = ("rabbitmq", "memory transport", "model of rabbitmq")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def made(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    bench: benches.Bench
    match kind:
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            bench = benches.RedisBench(server.url, server.client())
        case "rabbitmq":
            rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
            bench = benches.RabbitBench(rabbit)
        case "model of redis":
            bench = benches.ModelRedisBench()
        case "model of rabbitmq":
            bench = benches.ModelRabbitBench()
        case "memory transport":
            bench = benches.MemoryTransportBench()
        case _:
            bench = benches.MemoryBrokerBench()
    yield bench
    bench.close()


@pytest.fixture(params=[*FENCING, *CONFIRMING])
def bench(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)


@pytest.fixture(params=FENCING)
def fencing(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)


@pytest.fixture(params=CONFIRMING)
def confirming(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from made(request.param, request)
