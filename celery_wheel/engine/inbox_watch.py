"""The watch of the inboxes: one job asks the store, for all shards that this process holds, what has arrived.

::

    the store tells (SQLite on Linux, PostgreSQL)    a writer rings after its commit ─► look; and once a second
    else                                             look every ``poll_ms``

A store that does not answer delays no shard more than its own calls to the store do: each round of ingest asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.errors import StoreError
from celery_wheel.store.ports import Bell

#: Seconds to the next look at an inbox of which the store tells: a writer that does not ring is an older one.
LOOK_S = 1.0


class InboxWatch:
    """Wakes the ingest of an engine when its inbox has an item, or its shard a chunk of a bulk load."""

    def __init__(self, wakes: Mapping[Engine, Callable[[], None]], poll_ms: int, pool: Pool) -> None:
        self._wakes = wakes
        self._poll_s = poll_ms / 1_000
        self._bell: Bell | None = None
        self._job = pool.job(self._run, "inboxes")

    def start(self) -> None:
        self._job.wake()

    def cancel(self) -> None:
        self._job.cancel()

    def close(self, until_s: float) -> None:
        """Close the bell, after ``cancel``, once the look that is under way has ended; a hung one keeps it."""
        if self._job.join(until_s) and self._bell is not None:
            self._bell.close()

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

    def _run(self) -> Wait:
        if self._bell is None:
            self._bell = next(iter(self._wakes)).store.bell()
        found = self.look()  # a round may leave some of it for later
        self._bell.wait(LOOK_S if self._bell.tells and not found else self._poll_s)
        return Wait(0.0, 0.0)
