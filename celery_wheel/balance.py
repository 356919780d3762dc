"""Schedulers share the shards: a thread that says this one is there, and takes or gives what ``share`` works out.

::

    every half second    attend ─► alive, holders ─► share ─► engine.wanted of each shard ─► its next ``tend``

With one shard there is nothing to share: whoever gets it keeps it, and the others try again and again. A store that
does not answer changes nothing: each keeps what it has, which is the lease's business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.share import share
from celery_wheel.errors import StoreError
from celery_wheel.store.ports import Store
from celery_wheel.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

EVERY_S = 0.5

#: Who was silent for so long does not count. To be wrong about it costs little: a shard has its lease.
SILENT_MS = 1_500


class Balance:
    def __init__(self, store: Store, name: str, engines: Sequence[Engine], clock: Clock | None = None) -> None:
        self._store = store
        self._name = name
        self._engines = engines
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-balance", daemon=True)

    def start(self) -> None:
        try:
            self.once()  # before any engine asks for its shard
        except StoreError as error:
            logger.warning("%s", error, extra={"action": "balance"})
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            self._store.depart(self._name)
        except StoreError as error:  # the others wait for its silence instead
            logger.info("%s", error, extra={"action": "balance"})

    def once(self) -> None:
        """One look at who is there; see ``share``."""
        alive = self._store.attend(self._name, self._clock.now_ms(), SILENT_MS)
        if len(self._engines) == 1:
            return
        held = [engine.shard for engine in self._engines if engine.held]
        found = share(self._name, alive, self._store.holders(), held)
        for engine in self._engines:
            engine.wanted = engine.shard != found.give if engine.held else engine.shard in found.take
        if found.give is not None:
            logger.info(
                "shard %d is given to another scheduler; %d are at work",
                found.give,
                len(alive),
                extra={"action": "give", "shard": found.give},
            )

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.once()
            except StoreError as error:
                logger.warning("%s", error, extra={"action": "balance"})
