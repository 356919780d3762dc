"""A lock whose waiters get it in the order they came.

``threading.Lock`` lets whoever gives it back take it again at once: a thread that writes many small transactions then
keeps all others waiting. This lock is handed on to the first that waits.

::

    free ──enter──► taken ──exit, somebody waits──► handed to the first ticket: taken without a moment in between
                      └─────exit, nobody waits────► free

A waiter may be interrupted anywhere (Ctrl-C, an exception that is raised in its thread). A ticket that nobody waits for
any more would be handed the turn and never hand it on, so an interrupted waiter takes its ticket back, and hands the
turn on where it has got it by then.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

_all: weakref.WeakSet[Turns] = weakref.WeakSet()


class Turns:
    """A context manager; not reentrant. In a forked child it is free, since no thread that had it is there."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._holder: threading.Lock | None = None  #: the ticket that has the turn
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
            self._give_back(mine)
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._hand_on()

    def _hand_on(self) -> None:
        self._holder = self._waiting.popleft() if self._waiting else None
        if self._holder is not None:
            self._holder.release()

    def _give_back(self, ticket: threading.Lock) -> None:
        with self._mutex:
            if self._holder is ticket:
                self._hand_on()
            elif ticket in self._waiting:
                self._waiting.remove(ticket)


def _after_fork() -> None:
    for turns in list(_all):
        turns._reset()


os.register_at_fork(after_in_child=_after_fork)
