"""Real schedulers on a real Redis; the tests read dispatched tasks from the queue, and need no worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: A periodic entry that shows who holds the first shard.
TICK = {"tick": {"task": "tick", "schedule": 0.5}}


@pytest.fixture
def beat_schedule() -> dict[str, dict[str, Any]]:
    """Return the entries of beat, whose occurrences are pending rows: none, unless a module has its own fixture."""
    return {}


@pytest.fixture
def stack(tmp_path: Path, beat_schedule: dict[str, dict[str, Any]]) -> Iterator[Stack]:
    with RedisServer(tmp_path / "redis") as server, Stack(tmp_path, server, beat_schedule=beat_schedule) as found:
        yield found
