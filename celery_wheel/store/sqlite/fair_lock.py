"""A lock that its waiters get in the order of their arrival.

A thread that releases a ``threading.Lock`` may take it again at once: a thread with many small transactions then keeps
all other threads waiting. This lock passes to the first waiter.

::

    free ──enter──► taken ──exit, with waiters────► passed to the first ticket, never free in between
                      └─────exit, without waiters─► free

A waiter may be interrupted anywhere (Ctrl-C, an exception that is raised in its thread). The ticket of an interrupted
waiter would get the lock and never pass it on, so the waiter removes its ticket, or passes the lock on where the ticket
already has it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

_all: weakref.WeakSet[FairLock] = weakref.WeakSet()


class FairLock:
    """A context manager; not reentrant. In a forked child the lock is free: the thread that held it does not exist."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._holder: threading.Lock | None = None  #: the ticket that has the lock
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        mine = threading.Lock()
        try:
            with self._mutex:
                if self._holder is None:
                    self._holder = mine
                    return
                mine.acquire()
                self._waiting.append(mine)
            mine.acquire()
        except BaseException:
            self._remove(mine)
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._pass_on()

    def _pass_on(self) -> None:
        self._holder = self._waiting.popleft() if self._waiting else None
        if self._holder is not None:
            self._holder.release()

    def _remove(self, ticket: threading.Lock) -> None:
        with self._mutex:
            if self._holder is ticket:
                self._pass_on()
            elif ticket in self._waiting:
                self._waiting.remove(ticket)


def _after_fork() -> None:
    for lock in list(_all):
        lock._reset()


os.register_at_fork(after_in_child=_after_fork)
