"""Retries: how long to wait after a failure, and how often to log it.

A failure may last for minutes or for days, and a cause may come back for years. So the wait is doubled up to its bound,
instead of being computed from a number of failures, and the log forgets a cause after its minute.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping


class Backoff:
    """The waits of one thing that is tried again after each failure. It is used by one thread at a time.

    Args:
        first_s: seconds to wait after the first failure.
        most_s: no wait is longer.
        rng: each wait is shortened at random, by up to a half, so that many processes do not try at the same moment.
            None: waits are exact.
    """

    __slots__ = ("_first_s", "_most_s", "_next_s", "_rng")

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s:
            raise ValueError(f"first_s must be above 0 and at most most_s, got {first_s:g} and {most_s:g}")
        self._first_s = self._next_s = first_s
        self._most_s = most_s
        self._rng = rng

    def failed(self) -> float:
        """Return how many seconds to wait now."""
        wait_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return wait_s if self._rng is None else wait_s * self._rng.uniform(0.5, 1)

    def succeeded(self) -> None:
        """Wait ``first_s`` after the next failure."""
        self._next_s = self._first_s


_SHARD = re.compile(r"shard \d+")

#: A line of one cause is logged at most this often.
LOG_INTERVAL_S = 60.0


class RetryLog:
    """A log of failures that are tried again. Any thread may use it.

    Args:
        logger: of the module that tries again.
        now_s: returns monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float]) -> None:
        self._logger = logger
        self._now_s = now_s
        self._logged: dict[str, tuple[float, int]] = {}  #: by cause: when it was logged, and how often it came since

    def write(
        self,
        level: int,
        cause: str,
        message: str,
        *args: object,
        exc_info: bool | BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a message: at ``level`` where its cause was not logged within LOG_INTERVAL_S, else for debugging.

        A message that was held back meanwhile is counted behind the next one.

        Args:
            cause: one of few texts of the caller; not one of each task. It is the action, unless ``extra`` has one.
        """
        extra, now_s = {"action": cause, **(extra or {})}, self._now_s()
        logged_s, held_back = self._logged.get(cause, (None, 0))
        if logged_s is not None and now_s < logged_s + LOG_INTERVAL_S:
            self._logged[cause] = logged_s, held_back + 1
            self._logger.log(logging.DEBUG, message, *args, extra=extra)
            return
        for one, (at_s, _) in list(self._logged.items()):
            if now_s >= at_s + LOG_INTERVAL_S:
                self._logged.pop(one, None)
        self._logged[cause] = now_s, 0
        if held_back:
            message, args = message + " (%d more times since it was last logged)", (*args, held_back)
        self._logger.log(level, message, *args, exc_info=exc_info, extra=extra)

    def write_error(self, error: Exception, *, extra: Mapping[str, object]) -> None:
        """Log the text of an error as a warning. Errors of one class are one cause, unless they name shards."""
        cause = " ".join([type(error).__name__, *_SHARD.findall(str(error))])
        self.write(logging.WARNING, cause, "%s", error, extra=extra)
