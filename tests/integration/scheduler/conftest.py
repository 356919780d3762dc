"""Real schedulers on a real Redis; the tests read dispatched tasks from the queue, and need no worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: A periodic entry that shows who holds the first shard.
TICK = {"tick": {"task": "tick", "schedule": 0.5}}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Return a stack on a Redis of its own, which may be stopped."""
    with RedisServer(tmp_path / "redis") as server, Stack(tmp_path, server, beat_schedule=TICK) as found:
        yield found
