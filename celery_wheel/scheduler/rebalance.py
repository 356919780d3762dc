"""The job that keeps a scheduler's share of the shards: it reports the scheduler alive, and applies ``share``.

::

    every half second    attend ─► alive, holders ─► share ─► engine.wanted of each shard ─► its next ``tend``

With one shard there is nothing to share: one scheduler holds it, the others try to acquire it, and a sign of life comes
every second. A store that does not answer changes nothing: each scheduler keeps its shards, as long as their leases
last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.errors import StoreError
from celery_wheel.scheduler.share import Role, share
from celery_wheel.store.ports import Store
from celery_wheel.timing import Clock, RetryLog, SystemClock

logger = logging.getLogger(__name__)

EVERY_S = 0.5

#: With one shard the sign of life decides nothing but the names of control nodes.
EVERY_S_OF_ONE = 1.0

#: A stop waits no longer for a call that hangs.
STOP_S = 10.0

#: A scheduler that is silent for this long does not count. A mistake costs little: a shard has its lease.
SILENT_MS = 1_500


class Balance:
    def __init__(
        self,
        store: Store,
        name: str,
        engines: Sequence[Engine],
        clock: Clock | None = None,
        *,
        pool: Pool | None = None,
        role: Role = Role.ANY,
    ) -> None:
        self._store = store
        self._name = name
        self._engines = engines
        self._clock = clock or SystemClock()
        self._role = role
        engines[0].wanted = role is not Role.CHILD
        self._pool = pool or Pool()
        self._log = RetryLog(logger, self._pool.now_s)
        self._job = self._pool.job(self._run, "balance")

    def start(self) -> None:
        self._try_once()  # before any engine acquires its shard
        self._job.wake()

    def stop(self) -> None:
        self._job.cancel()
        self._job.join(self._pool.now_s() + STOP_S)
        try:
            self._store.unregister_scheduler(self._name)
        except StoreError as error:  # the others notice its silence instead
            logger.info("%s", error, extra={"action": "balance"})

    def once(self) -> None:
        """Read the schedulers that are alive, and apply the share."""
        alive = self._store.register_scheduler(self._name, self._clock.now_ms(), SILENT_MS)
        if len(self._engines) == 1:
            return
        held = [engine.shard for engine in self._engines if engine.held]
        found = share(self._name, alive, self._store.holders(), held, self._role)
        for engine in self._engines:
            engine.wanted = engine.shard != found.give if engine.held else engine.shard in found.take
        if found.give is not None:
            logger.info(
                "shard %d is released for another scheduler; %d schedulers are alive",
                found.give,
                len(alive),
                extra={"action": "give", "shard": found.give},
            )

    def _run(self) -> Wait:
        self._try_once()
        every_s = EVERY_S if len(self._engines) > 1 else EVERY_S_OF_ONE
        return Wait(every_s, every_s)

    def _try_once(self) -> None:
        try:
            self.once()
        except StoreError as error:
            self._log.write(logging.WARNING, "balance", "%s", error, extra={"action": "balance"})
