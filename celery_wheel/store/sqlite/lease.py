"""The lease of a shard of a SQLite store: an OS lock on a file beside the store, one for each shard.

::

    wheel.sqlite3               the store
    wheel.sqlite3.shard-0.lock  flock(LOCK_EX | LOCK_NB) while held; holder and pid in it, for people

The kernel releases the lock with its last descriptor, so at a holder's death, ``kill -9`` included, a standby takes
over at once, without a time-out or a clock. The module uses ``flock``: the locks of ``fcntl.lockf`` belong to a process
and would let two stores of one process both hold a shard.

Descriptors that a child inherits by ``fork`` share the lock and would keep it beyond the holder's death, so a forked
child closes them at once; the parent keeps the lock.

The file is never removed: between an unlink and an open, two processes could lock two different files.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from contextlib import suppress

from celery_wheel.errors import StoreUnusable

_leases: weakref.WeakSet[FileLease] = weakref.WeakSet()


class FileLease:
    """The locks that one store object holds, by shard."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[int, int] = {}
        self._mutex = threading.Lock()
        _leases.add(self)

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
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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

    def _close_inherited(self) -> None:
        self._mutex = threading.Lock()  # a thread of the parent may have held it at the fork
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _after_fork() -> None:
    for lease in list(_leases):
        lease._close_inherited()


os.register_at_fork(after_in_child=_after_fork)
