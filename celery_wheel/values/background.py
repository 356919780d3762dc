"""A call in a thread of its own, for which nobody waits longer than they want.

A file of its own: pages, metrics and the readings that threads share use it, and have nothing else in common.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call; it keeps no process from ending. The future has its error, also where there is no thread for it."""
    asked = Future[T]()

    def run() -> None:
        try:
            asked.set_result(call())
        except Exception as error:  # for those who wait
            asked.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the system gives no more threads
        asked.set_exception(error)
    return asked
