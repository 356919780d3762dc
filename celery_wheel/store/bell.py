"""The bell of a SQLite file: a writer of an inbox rings it after its commit, and every scheduler looks at once.

The writer sets the file's times, which SQLite itself never does; schedulers wait by inotify (Linux). Where the system
has no inotify, or no more of it, the bell does not tell, and the scheduler looks every ``wheel_poll_interval``.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import suppress

#: On PostgreSQL writers notify this channel.
CHANNEL = "wheel_inbox"

_IN_ATTRIB = 0x4
_EVENTS_BYTES = 4_096


def ring(path: str) -> None:
    """Wake the schedulers of a store; who may write to the file may set its times."""
    with suppress(OSError):  # the commit is done; the schedulers look a second later
        os.utime(path)


class FileBell:
    """Used by one thread."""

    def __init__(self, path: str) -> None:
        self._file = _watch(path)
        self._poll = select.poll()
        if self._file is not None:
            self._poll.register(self._file, select.POLLIN)

    @property
    def tells(self) -> bool:
        return self._file is not None

    def wait(self, most_s: float) -> None:
        if self._file is None:
            time.sleep(most_s)
        elif self._poll.poll(most_s * 1_000):
            os.read(self._file, _EVENTS_BYTES)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _watch(path: str) -> int | None:
    """Return the descriptor of an inotify instance; None where the system has none to give."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        return None
    file: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file < 0:
        return None
    if libc.inotify_add_watch(file, os.fsencode(path), _IN_ATTRIB) < 0:
        os.close(file)
        return None
    return file
