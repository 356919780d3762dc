"""Real schedulers and workers, as monitoring sees them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


@pytest.fixture(params=["redis", pytest.param("rabbit", marks=ON_RABBITMQ)])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        with Stack(tmp_path, server.url) as found:
            yield found
    else:
        rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
        with Stack(tmp_path, rabbit.fresh()) as found:
            yield found
