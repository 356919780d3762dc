"""A PostgreSQL server that is stopped (SIGSTOP, a frozen host): it accepts connections, and never answers."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from celery_wheel.errors import StoreError
from celery_wheel.store import open_store


@pytest.fixture
def frozen() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"postgresql://wheel@127.0.0.1:{server.getsockname()[1]}/wheel"


def test_an_attempt_to_connect_leaves_no_descriptor_also_while_no_garbage_is_collected(frozen: str) -> None:
    def attempt() -> int:
        with pytest.raises(StoreError, match="cannot be reached"):
            open_store(frozen)
        return psutil.Process().num_fds()

    gc.collect()
    gc.disable()  # as in an idle scheduler, see ``scheduler.memory``
    try:
        first = attempt()
        assert attempt() <= first
    finally:
        gc.enable()
