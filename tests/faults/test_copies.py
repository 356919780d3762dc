"""A cut on RabbitMQ costs no more second copies than a publish has messages, and each of them is marked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.copies import CUTS, Cut
from tests.kit.servers.proxy import Proxy
from tests.kit.servers.rabbit import RabbitServer

CHUNK = 50


@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_costs_one_chunk_at_most(tmp_path: Path, rabbit_server: RabbitServer, kind: str) -> None:
    with Proxy(tmp_path, rabbit_server.port) as proxy:
        cut = Cut(tmp_path / "cut", rabbit_server.fresh(), rabbit_server.port, proxy, CHUNK)
        try:
            found = cut.run(kind, 3, 4_000, 0, random.Random(7))
        finally:
            cut.close()
        assert found.of_cuts
        assert max(found.of_cuts) <= CHUNK, str(found)
        assert found.unmarked == 0
