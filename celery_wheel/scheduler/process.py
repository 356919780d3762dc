"""The process of a scheduler: its memory, its log, and its messages to systemd.

systemd, for a unit with ``Type=notify``, gets READY=1 when the threads run, whether or not broker and shard are there;
STOPPING=1; and WATCHDOG=1 twice in WATCHDOG_USEC, unless a job has failed. Outside such a unit nothing is sent.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.values.text import whole_number

#: The garbage collector runs rarely: after twice the window's rows. Rows form no cycles, and scanning 100,000 of them
#: was a fifth of the CPU time of ingest and dispatch.
GARBAGE_EVERY = 200_000

#: ``mallopt`` of glibc: the greatest number of arenas. With an arena for each thread, memory that one thread frees
#: serves no other: 216 MB with 100,000 rows pending, in place of 161. Threads run Python in turn: none waits for one.
_M_ARENA_MAX = -8
ARENAS = 2


def tune_memory() -> None:
    """Set the garbage collector and malloc; call it before threads start."""
    gc.freeze()
    gc.set_threshold(GARBAGE_EVERY, 10, 10)
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


#: How the warning begins: a URL of rediss:// without options of TLS accepts any certificate.
REPEATED = "Secure redis scheme specified (rediss) with no ssl"


_repetitions = count()


def _is_first(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(REPEATED) or next(_repetitions) == 0


def warn_once() -> None:
    """Let this process log the warning once; a second call changes nothing."""
    logging.getLogger("kombu.connection").addFilter(_is_first)


logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state to systemd, if it listens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path  # a name without a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("systemd is not told %s (%s)", state.partition("\n")[0], error, extra={"action": "notify"})


def watchdog_s() -> float:
    """Return the seconds between two signs of life; 0 where systemd watches no process, or another one."""
    microseconds, pid = whole_number(os.environ.get("WATCHDOG_USEC", "")), os.environ.get("WATCHDOG_PID", "")
    if microseconds is None or pid not in ("", str(os.getpid())):
        return 0.0
    return microseconds / 2_000_000


class Watchdog:
    """The job that tells systemd that the process lives, with a line for ``systemctl status``.

    Args:
        is_live: whether the engines' jobs run; otherwise systemd restarts the scheduler.
        status: returns the line.
    """

    def __init__(self, pool: Pool, is_live: Callable[[], bool], status: Callable[[], str]) -> None:
        self._is_live = is_live
        self._status = status
        self._every_s = watchdog_s()
        self._job = pool.job(self._run, "watchdog")

    def start(self) -> None:
        if self._every_s:
            self._job.wake()

    def stop(self) -> None:
        self._job.cancel()

    def _run(self) -> Wait:
        if self._is_live():
            notify(f"WATCHDOG=1\nSTATUS={self._status()}")
        return Wait(self._every_s, self._every_s)
