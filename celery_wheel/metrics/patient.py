"""A call to a server that may hang: a probe and a scrape wait for it for two seconds, and for no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from celery_wheel.errors import WheelError

#: A probe or a scrape waits no longer for the store, nor for the broker.
ANSWER_S = 2.0

T = TypeVar("T")


class NotAnswered(WheelError):
    """A server has not answered in time, or with an error."""


class PatientCall(Generic[T]):
    """A call of which at most one is under way; further askers wait for the same one.

    Args:
        server: its name in errors: the store, or the broker.
    """

    def __init__(self, server: str, call: Callable[[], T]) -> None:
        self._server = server
        self._call = call
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._over.set()
        self._last: T | Exception = NotAnswered(f"{server} was not asked")

    def begin(self) -> None:
        with self._lock:
            if self._over.is_set():
                self._over.clear()
                try:
                    threading.Thread(target=self._run, name="wheel-patient", daemon=True).start()
                except RuntimeError as error:  # the system gives no more threads
                    self._last = error
                    self._over.set()

    def result(self) -> T:
        """Return the result of the call that was begun. Raises NotAnswered."""
        if not self._over.wait(ANSWER_S):
            raise NotAnswered(f"{self._server} has not answered for {ANSWER_S:g} s")
        if isinstance(self._last, WheelError):
            raise NotAnswered(f"{self._server} does not answer: {self._last}") from self._last
        if isinstance(self._last, Exception):  # a defect
            raise self._last
        return self._last

    def _run(self) -> None:
        try:
            self._last = self._call()
        except Exception as error:  # ``result`` tells it
            self._last = error
        finally:
            self._over.set()
