"""Async twins of the methods of ``app.wheel``: the same call in a thread, withdrawn when its awaiter is cancelled.

A call finds its interruption in a context variable, so nothing between the two need pass it on. Promises:

1. The event loop never waits for the store.
2. When CancelledError leaves the call, the request was never sent, is withdrawn, or was carried out before; its cause
   says what became of a request that could not be withdrawn. A further cancel changes none of that.
3. Where requests join Django's transactions, the call runs in the thread of the request's synchronous code
   (``sync_to_async``), so it sees the same transaction. Otherwise it runs in one of THREADS threads of the package:
   waiting requests take no thread from the application. The time-out of a request begins with its thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache, partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_wheel.errors import RequestInterrupted

THREADS = 32

Self = TypeVar("Self")
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_current: ContextVar[Interruption | None] = ContextVar("celery_wheel_interruption", default=None)


class Interruption:
    """The interruption of one call by another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] = []
        self._is_over = self._has_begun = False

    def enter(self) -> None:
        """Make this the interruption of the calls in this context."""
        _current.set(self)

    def begin(self) -> None:
        """Note that the call begins. Raises RequestInterrupted where it was interrupted before: it sends nothing."""
        with self._lock:
            self.check()
            self._has_begun = True

    def interrupt(self) -> bool:
        """End the wait of the call, or keep it from beginning; returns whether it has begun."""
        with self._lock:
            self._is_over = True
            wakes = list(self._wakes)
        for wake in wakes:
            wake()
        return self._has_begun

    def check(self) -> None:
        if self._is_over:
            raise RequestInterrupted("the task that awaited this request was cancelled")

    @contextmanager
    def watched(self, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._wakes.append(wake)
            is_over = self._is_over
        try:
            if is_over:
                wake()
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)


def check_interruption() -> None:
    """Raise RequestInterrupted where the call of this context is interrupted."""
    if (found := _current.get()) is not None:
        found.check()


@contextmanager
def interruptible(wake: Callable[[], object]) -> Iterator[None]:
    """Within it, an interruption calls ``wake``, in its own thread."""
    if (found := _current.get()) is None:
        yield
    else:
        with found.watched(wake):
            yield


def twin(
    method: Callable[Concatenate[Self, Parameters], Returned],
) -> Callable[Concatenate[Self, Parameters], Coroutine[Any, Any, Returned]]:
    """Return the async twin of a method, to be assigned to its name with an ``a`` before it."""
    name = method.__name__

    async def call(self: Self, /, *args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        found: Returned = await _in_thread(partial(getattr(self, name), *args, **options), _joins(self, options))
        return found

    update_wrapper(call, method)
    call.__name__, call.__qualname__ = f"a{name}", method.__qualname__.replace(name, f"a{name}")
    call.__doc__ = f"Async twin of ``{name}``: {method.__doc__}"
    return call


def _joins(self: Any, options: Any) -> bool:
    """Whether the call may be part of a transaction, which belongs to a thread."""
    option = options.get("transactional")
    return bool(self.conf.transactional if option is None and hasattr(self, "conf") else option)


async def _in_thread(call: Callable[[], Any], of_django: bool) -> Any:
    interruption, context = Interruption(), copy_context()

    def run() -> Any:
        interruption.enter()
        interruption.begin()
        return call()

    running = asyncio.ensure_future(_started(partial(context.run, run), of_django))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError as cancelled:
        if interruption.interrupt():
            raise cancelled from await _error_of(running)
        raise
    finally:  # also where the event loop drops this coroutine
        interruption.interrupt()
        running.cancel()  # a call that waits for a thread needs none any more


async def _error_of(running: asyncio.Future[Any]) -> BaseException | None:
    """Wait for the end of a call that was interrupted, whatever other cancels come, and return its error."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    return None if running.cancelled() else running.exception()


def _started(call: Callable[[], Any], of_django: bool) -> Awaitable[Any]:
    if of_django:
        try:
            from asgiref.sync import sync_to_async  # Django's; without it no transaction can be joined
        except ImportError:
            pass
        else:
            return sync_to_async(call, thread_sensitive=True)()
    return asyncio.get_running_loop().run_in_executor(_executor(os.getpid()), call)


@cache
def _executor(pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked child has none of its parent's."""
    return ThreadPoolExecutor(THREADS, "wheel-async")
