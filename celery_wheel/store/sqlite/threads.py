"""Threads and forks: a lock that its waiters get in the order of their arrival, and a gate for forks.

::

    FairLock   free ──enter──► taken ──exit, with waiters────► passed to the first ticket, never free in between
                                 └─────exit, without waiters─► free

    ForkGate   thread   enter ─ SQLite ─ leave         enter ┄┄┄┄┄┄┄ waits ┄┄┄┄┄┄┄┄ SQLite ─ leave
               fork              before ┄┄ waits ┄┄ fork: parent and child ─ after

A thread that releases a ``threading.Lock`` may take it again at once: a thread with many small transactions then keeps
all other threads waiting. A waiter may be interrupted anywhere (Ctrl-C, an exception that is raised in its thread). The
ticket of an interrupted waiter would get the lock and never pass it on, so the waiter removes its ticket, or passes the
lock on where the ticket already has it.

SQLite keeps the locks of its connections and its mutexes in the memory of the process, and a child inherits both. A
fork during another thread's transaction leaves the child with "database is locked" for its whole life, or with a mutex
that no thread releases. Open, idle connections do no harm.

Non-promises: a fork that waited for PATIENCE_S continues, and a fork that does not run Python's hooks (a fork in C)
does not wait.
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


#: Longer than a transaction may wait for another process.
PATIENCE_S = 15.0


class ForkGate:
    """One gate a process, like SQLite itself, for all open stores."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  #: thread → its open ``entered`` blocks
        self._forking: int | None = None  #: the thread that forks

    def entered(self) -> ForkGate:
        """Return the context of a thread that is inside SQLite: polls enter it 20 times a second."""
        return self

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if me not in self._inside and self._forking is not None:
                self._changed.wait_for(lambda: self._forking in (None, me))
            self._inside[me] = self._inside.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                if self._forking is not None:
                    self._changed.notify_all()

    def before(self) -> None:
        """Wait for the other threads; a thread may fork inside its own transaction."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking is None, PATIENCE_S)
            self._forking = me
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, PATIENCE_S)

    def after_in_parent(self) -> None:
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Forget the other threads: they do not exist in the child, and one of them may have held the lock."""
        me = threading.get_ident()
        self._changed, self._forking = threading.Condition(), None
        self._inside = {me: self._inside[me]} if me in self._inside else {}


FORK_GATE = ForkGate()
os.register_at_fork(
    before=FORK_GATE.before, after_in_parent=FORK_GATE.after_in_parent, after_in_child=FORK_GATE.after_in_child
)
