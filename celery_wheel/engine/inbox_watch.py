"""The watch of the inboxes: one thread asks the store, for all shards that this process holds, what has arrived.

::

    the store tells (SQLite on Linux, PostgreSQL)    a writer rings after its commit ─► look; and once a second
    else                                             look every ``poll_ms``

A store that does not answer delays no shard more than its own calls to the store do: each round of ingest asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from celery_wheel.engine.engine import Engine
from celery_wheel.errors import StoreError

#: Seconds to the next look at an inbox of which the store tells: a writer that does not ring is an older one.
LOOK_S = 1.0


class InboxWatch:
    """Wakes the ingest of an engine when its inbox has an item, or its shard a chunk of a bulk load."""

    def __init__(
        self,
        wakes: Mapping[Engine, Callable[[], None]],
        poll_ms: int,
        fail: Callable[[int, BaseException], None],
    ) -> None:
        self._wakes = wakes
        self._poll_s = poll_ms / 1_000
        self._fail = fail
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-inboxes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        self._stop.set()

    def look(self) -> bool:
        """Ask the store once, and return whether it has arrivals.

        Where the store does not answer, the rounds ask it, and report the error.
        """
        held = {engine.shard: wake for engine, wake in self._wakes.items() if engine.state is not None}
        if not held:
            return False
        store = next(iter(self._wakes)).store
        try:
            found = store.arrivals(list(held))
        except StoreError:
            found = list(held)
        for shard in found:
            held[shard]()
        return bool(found)

    def _run(self) -> None:
        try:
            with closing(next(iter(self._wakes)).store.bell()) as bell:
                while not self._stop.is_set():
                    found = self.look()  # a round may leave some of it for later
                    bell.wait(LOOK_S if bell.tells and not found else self._poll_s)
        except BaseException as error:  # as the failure of a job
            self._fail(next(iter(self._wakes)).shard, error)
