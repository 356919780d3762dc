"""Lines of a log that would come again and again: one a minute for each cause, and the rest for debugging.

An outage of three days fails a job 130,000 times. Its first line says all; one a minute shows that it goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

EVERY_S = 60.0


class RepeatedLines:
    """The lines of one part of a process; causes are few, and named by the part itself.

    Args:
        now_s: the monotonic clock of the part; by default this machine's.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] | None = None) -> None:
        self._logger = logger
        self._now_s = now_s
        self._quiet_until_s: dict[str, float] = {}

    def log(self, cause: str, level: int, text: str, *args: object, **options: Any) -> None:
        """Log a line as ``Logger.log`` does; within a minute after another one of its cause for debugging only."""
        now_s = time.monotonic() if self._now_s is None else self._now_s()
        if now_s < self._quiet_until_s.get(cause, now_s):
            level = logging.DEBUG
        else:
            self._quiet_until_s[cause] = now_s + EVERY_S
        self._logger.log(level, text, *args, stacklevel=2, **options)

    def warning(self, cause: str, text: str, *args: object, **options: Any) -> None:
        self.log(cause, logging.WARNING, text, *args, **options)
