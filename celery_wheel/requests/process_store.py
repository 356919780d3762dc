"""The store of an app, opened once in each process: for the questions, and with the requests that wait at it.

::

    process 7   ─► _Here: lock, OpenStore(url, store, answers)
      └ fork ─► process 9 ─► another _Here: a lock that nobody holds, a store of its own, no requests

It is opened with the first question; and anew in a forked process, and when the one that was opened is there no more:
its file was deleted or replaced, its tables were emptied, it has other shards now, the setting names another.

A fork needs no care: a child finds nothing under its own number, and never touches what its parent's threads may have
had locked at that moment. The parent's store stays unused: closing its connections would disturb the parent.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from celery_wheel.conf import Conf
from celery_wheel.requests.answers import Answers
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore

#: Seconds between two looks whether the store is still the one that was opened.
LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class OpenStore:
    url: str
    store: FullStore
    answers: Answers  #: the requests of this process that wait for answers of this store
    looked_s: float

    def is_there(self) -> bool:
        if self.store.replaced():
            return False
        now_s = time.monotonic()
        if now_s - self.looked_s < LOOK_EVERY_S:
            return True
        there = self.store.as_opened()
        self.looked_s = now_s
        return there

    def close(self) -> None:
        self.answers.close()
        self.store.close()


@dataclass(slots=True)
class _Here:
    """What one process has."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    open: OpenStore | None = None


class ProcessStore:
    def __init__(self, conf: Conf) -> None:
        self._conf = conf
        self._by_process: dict[int, _Here] = {}

    def open(self) -> OpenStore:
        """The open store; it is taken as it is, and one that is not there is not made."""
        here, url = self._here, self._conf.store
        with here.lock:
            if here.open is not None and (here.open.url != url or not here.open.is_there()):
                self._close(here)
            if here.open is None:
                store = open_store(url, durability=self._conf.durability, shards=None, create=False)
                here.open = OpenStore(url, store, Answers(store), time.monotonic())
            return here.open

    def close(self) -> None:
        """Give the connections back; the next question opens the store again."""
        here = self._here
        with here.lock:
            self._close(here)

    @property
    def _here(self) -> _Here:
        # One step of a dictionary, and so whole: neither a fork nor another thread finds it half done.
        return self._by_process.setdefault(os.getpid(), _Here())

    @staticmethod
    def _close(here: _Here) -> None:
        gone, here.open = here.open, None
        if gone is not None:
            gone.close()
