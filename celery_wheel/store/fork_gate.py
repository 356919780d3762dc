"""A fork waits until no other thread is inside SQLite.

::

    thread   enter ─ SQLite ─ leave         enter ┄┄┄┄┄┄┄ waits ┄┄┄┄┄┄┄┄ SQLite ─ leave
    fork              before ┄┄ waits ┄┄ fork: parent and child ─ after

SQLite keeps in the memory of the process which of its connections have a file locked, and its own mutexes. A child gets
both as they were: where another thread was in a transaction, "database is locked" for as long as the child lives, or a
mutex that nobody gives back. What is open and idle does no harm.

Not promised: a fork that waited for PATIENCE_S goes on, and so does one that does not run Python's hooks (a fork in C).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: As long as a transaction may wait for another process, and then some.
PATIENCE_S = 15.0


class ForkGate:
    """One a process: SQLite is in it once, whatever stores are open."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  #: thread → how often it entered
        self._forking: int | None = None  #: the thread that forks

    @contextmanager
    def entered(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            if me not in self._inside:
                self._changed.wait_for(lambda: self._forking in (None, me))
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                    if self._forking is not None:
                        self._changed.notify_all()

    def before(self) -> None:
        """A thread that forks in the middle of its own transaction waits for the others alone."""
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
        """The other threads are not there any more, and one of them may have had the lock."""
        me = threading.get_ident()
        self._changed, self._forking = threading.Condition(), None
        self._inside = {me: self._inside[me]} if me in self._inside else {}


FORK_GATE = ForkGate()
os.register_at_fork(
    before=FORK_GATE.before, after_in_parent=FORK_GATE.after_in_parent, after_in_child=FORK_GATE.after_in_child
)
