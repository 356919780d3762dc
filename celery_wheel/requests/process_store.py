"""The store of an app, opened once in each process, with the requests that wait for its answers.

::

    process 7   ─► _ProcessState: lock, OpenStore(url, store, answers)
      └ fork ─► process 9 ─► its own _ProcessState: a free lock, its own store, no requests

The first question opens the store. A forked process opens it anew, and so does the next question when the open store
is out of date: its file was deleted or replaced, its tables were emptied, its number of shards changed, or the setting
names another store.

A fork needs no care: a child finds nothing under its own process id, and never touches what a thread of its parent may
have locked at that moment. The parent's store stays unused: closing its connections would disturb the parent.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from celery_wheel.conf import Conf
from celery_wheel.overview import OverviewCache, PacedCounts
from celery_wheel.requests.answers import Answers
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore

#: Seconds between two checks that the open store is up to date.
CHECK_EVERY_S = 1.0


@dataclass(slots=True)
class OpenStore:
    url: str
    store: FullStore
    answers: Answers  #: the requests of this process that wait for answers of this store
    checked_s: float
    overview: OverviewCache = field(init=False)  #: what this process shows of the store
    schedule_counts: PacedCounts = field(init=False)

    def __post_init__(self) -> None:
        self.overview = OverviewCache(self.store, lambda: time.time_ns() // 1_000_000)
        self.schedule_counts = PacedCounts(self.store.browse.schedule_counts)

    def is_current(self) -> bool:
        if self.store.is_replaced():
            return False
        now_s = time.monotonic()
        if now_s - self.checked_s < CHECK_EVERY_S:
            return True
        self.checked_s = now_s
        return self.store.is_as_opened()

    def close(self) -> None:
        self.answers.close()
        self.store.close()


@dataclass(slots=True)
class _ProcessState:
    lock: threading.Lock
    open: OpenStore | None = None

    def close(self) -> None:
        opened, self.open = self.open, None
        if opened is not None:
            opened.close()


class ProcessStore:
    def __init__(self, conf: Conf) -> None:
        self._conf = conf
        self._by_process: dict[int, _ProcessState] = {}

    def open(self) -> OpenStore:
        """Return the open store. A store that does not exist is not made; one that exists is not changed."""
        self._conf.check_once()
        state, url = self._state, self._conf.store
        with state.lock:
            if state.open is not None and (state.open.url != url or not state.open.is_current()):
                state.close()
            if state.open is None:
                store = open_store(url, durability=self._conf.durability, shards=None, create=False)
                state.open = OpenStore(url, store, Answers(store), time.monotonic())
            return state.open

    def close(self) -> None:
        """Close the store's connections; the next question opens the store again."""
        state = self._state
        with state.lock:
            state.close()

    @property
    def _state(self) -> _ProcessState:
        # One step of a dictionary, which is atomic: neither a fork nor another thread finds it half done.
        return self._by_process.setdefault(os.getpid(), _ProcessState(threading.Lock()))
