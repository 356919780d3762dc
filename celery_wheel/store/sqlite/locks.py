"""Locks of a SQLite store: turns of the threads that write, a gate for forks, and the lease of a shard.

A thread that releases a ``threading.Lock`` may take it again at once, and keep all other threads waiting: a FairLock is
passed to the first ticket. A waiter may be interrupted anywhere (Ctrl-C); it removes its ticket, or passes the lock on.

A child inherits the locks and mutexes that SQLite keeps in the memory of the process: after a fork during another
thread's transaction, the child gets "database is locked" for ever. Non-promises: a fork that waited for PATIENCE_S
continues, and a fork that does not run Python's hooks (a fork in C) does not wait.

The kernel releases a lease with its last descriptor: at a holder's death a standby takes over at once, without a clock.
A lock of ``fcntl.lockf`` belongs to the process, so that two stores in it could both hold a shard. The file is never
removed: between an unlink and an open, two processes could lock two files.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections import deque
from contextlib import suppress

from celery_wheel.errors import StoreUnusable

#: The locks of this process, each of which is made anew in a forked child.
_all: weakref.WeakSet[FairLock | FileLease] = weakref.WeakSet()


class FairLock:
    """A context manager; not reentrant. In a forked child the lock is free: the thread that held it does not exist."""

    def __init__(self) -> None:
        self.reset()
        _all.add(self)

    def reset(self) -> None:
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
        lock.reset()


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


class FileLease:
    """The locks that one store object holds, by shard."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[int, int] = {}
        self._mutex = threading.Lock()
        _all.add(self)

    def path(self, shard: int) -> str:
        return f"{self._path}.shard-{shard}.lock"

    def hold(self, shard: int, holder: str) -> bool:
        """Lock the shard; returns True where this object has or gets the lock, False where another has it."""
        with self._mutex:
            if shard not in self._files:
                file = self._open(shard)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(file)
                    return False
                except OSError as error:
                    os.close(file)
                    raise StoreUnusable(
                        f"the lock file {self.path(shard)} cannot be locked ({error.strerror}), so shard {shard} "
                        "cannot be held from here; put the store on a local disk"
                    ) from error
                self._files[shard] = file
            self._sign(self._files[shard], holder)
            return True

    def _open(self, shard: int) -> int:
        path = self.path(shard)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # A user who may read a file may lock it, and nobody is to hold a shard who may not write to the store.
            writers = os.stat(self._path).st_mode & 0o022
            with suppress(PermissionError):  # another user has made it
                os.fchmod(file, 0o600 | writers | writers << 1)
            return file
        except OSError as error:
            raise StoreUnusable(
                f"the lock file {path} cannot be opened ({error.strerror}), so shard {shard} cannot be held from "
                "here; let the user who runs the scheduler write to that folder and file"
            ) from error

    @staticmethod
    def _sign(file: int, holder: str) -> None:
        with suppress(OSError):  # the text is for people: a full disk must not prevent a takeover
            os.ftruncate(file, 0)
            os.pwrite(file, f"{holder} pid {os.getpid()}\n".encode(), 0)

    def release(self, shard: int) -> None:
        with self._mutex:
            file = self._files.pop(shard, None)
            if file is not None:
                with suppress(OSError):
                    os.ftruncate(file, 0)
                with suppress(OSError):  # the system frees the descriptor, and with it the lock, in any case
                    os.close(file)

    def close(self) -> None:
        for shard in list(self._files):
            self.release(shard)

    def reset(self) -> None:
        """Close what a forked child has inherited."""
        self._mutex = threading.Lock()  # a thread of the parent may have held it at the fork
        for file in self._files.values():
            with suppress(OSError):  # another lock is still to be reset
                os.close(file)
        self._files.clear()
