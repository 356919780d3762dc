"""A stack on a Redis, whose Beat has periodic entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with RedisServer(tmp_path / "redis") as server, Stack(tmp_path, server) as found:
        yield found
