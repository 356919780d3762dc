"""Stands in for the workers: empties their queues over a connection of its own and counts the messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from tests.kit.servers.redis import RedisServer

EVERY_S = 0.25


class Drain:
    def __init__(self, server: RedisServer, queues: Sequence[str]) -> None:
        self.removed = 0
        self._client = server.client()
        self._queues = queues
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Drain:
        self._empty()
        self.removed = 0
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self._empty()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._empty()

    def _empty(self) -> None:
        """Remove a queue by UNLINK: Redis frees the memory in a thread of its own."""
        pipeline = self._client.pipeline()
        for queue in self._queues:
            pipeline.llen(queue).unlink(queue)
        self.removed += sum(pipeline.execute()[::2])
