"""Messages to systemd, for a unit with ``Type=notify``: ready, stopping, and alive for its watchdog.

::

    NOTIFY_SOCKET    READY=1 when the scheduler's threads run, STOPPING=1 when it begins to stop
    WATCHDOG_USEC    WATCHDOG=1 twice in that time, by a job of the engines' pool, unless an engine has failed

READY does not wait for the broker, nor for a shard: a scheduler that waits for either is up. Outside a unit of systemd
nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.values.text import whole_number

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
