"""A stack for schedules of ``app.wheel.schedules`` and of Beat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


@pytest.fixture
def stack(tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    with Stack(tmp_path, redis_server) as found:
        yield found
