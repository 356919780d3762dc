"""A lock whose waiters get it in the order they came.

``threading.Lock`` lets whoever gives it back take it again at once: a thread that writes many small transactions then
keeps all others waiting. This one is handed on to the first that waits.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A context manager; not reentrant."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
