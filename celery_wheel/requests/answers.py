"""Waiting for answers: the store of an app, opened once in each process, with the requests that wait for its answers.

While any request waits, one thread polls the numbers of all open commands; a Reaper ends each request at its time-out.

Promises:
  - A request ends once: with all its answers, at its time-out, or because its asker was interrupted.
  - A store that does not answer is polled again, with back-off. Requests wait for it until their own time-outs.
  - The first question opens the store. The next question opens it anew when it is out of date: its file was deleted or
    replaced, its tables were emptied, its number of shards changed, or the setting names another store.
  - A fork needs no care: a child finds nothing under its own process id, and never touches what a thread of its parent
    may have locked at that moment. The parent's store stays unused: closing its connections would disturb the parent.

Non-promise: a request may be carried out after its time-out, unless its asker withdraws it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.overview import OverviewCache, PacedCounts
from celery_wheel.overview.ahead import Ahead, read_ahead, read_hours
from celery_wheel.requests.asynchronous import interruptible
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import ScheduleCounts
from celery_wheel.timing import DelayedOperation, Purgatory, Reaper, SystemClock, SystemTimer
from celery_wheel.values.instants import now_ms
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Seconds between two polls, at first and at most; and while the store does not answer.
FIRST_S, MOST_S = 0.005, 0.05
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0

#: The longest wait: a timer takes no infinite one.
LONGEST_S = 366 * 86_400

_NEVER_S = float("inf")


class _Monotonic(SystemClock):
    """A timer of delays has no due times by the wall clock, so a step of that clock must not end any."""

    def now_ms(self) -> int:
        return self.monotonic_ms()


class DelayedRequest(DelayedOperation):
    """A request of one or more commands; complete when each of them is answered."""

    def __init__(self, numbers: Sequence[str], timeout_s: float) -> None:
        # One millisecond more, since a clock's now is rounded down: no wait ends before its time.
        super().__init__(math.ceil(min(timeout_s, LONGEST_S) * 1_000) + 1)
        self.answers: dict[str, Mapping[str, Any]] = {}
        self.over = threading.Event()
        self._count = len(numbers)

    def try_complete(self) -> bool:
        return len(self.answers) == self._count

    def on_complete(self) -> None:
        self.over.set()


class Answers:
    """The requests of this process that wait for answers of one store."""

    def __init__(self, read: Callable[[Sequence[str]], dict[str, dict[str, Any]]]) -> None:
        self._read_answers = read  #: ``answers`` of the store
        self._timer = SystemTimer(_Monotonic())
        self._reaper = Reaper(self._timer, "wheel-requests")
        # A completed request leaves at once: its answers may be large.
        self._purgatory = Purgatory("requests", self._timer, purge_interval=0, reaper=False)
        self._changed = threading.Condition()  # for all that follows
        self._open: dict[str, DelayedRequest] = {}  #: by number of command
        self._reader: threading.Thread | None = None
        self._closed = False
        self._away = False  #: the store did not answer the last poll
        self._pause_s = FIRST_S
        self._poll_at_s = _NEVER_S

    def wait(
        self, numbers: Sequence[str], timeout_s: float, turn: Callable[[], None] | None = None
    ) -> dict[str, Mapping[str, Any]]:
        """Return the answers to those commands that were answered in time; none after ``close``.

        ``turn`` is called instead of waiting, where the asker's own thread is the holder's; then no thread is made.
        """
        request = DelayedRequest(numbers, timeout_s)
        try:
            with self._changed:
                if self._closed:
                    return {}
                self._open.update(dict.fromkeys(numbers, request))
            self._purgatory.try_complete_else_watch(request, numbers)
            if turn is None:
                self._start_reader()
                with interruptible(request.force_complete):
                    request.over.wait()
            while turn is not None and not request.completed:
                turn()
                self.poll()
                self._timer.advance_clock(0)
        finally:
            request.force_complete()
            with self._changed:
                for number in numbers:
                    self._open.pop(number, None)
        return dict(request.answers)

    def poll(self) -> None:
        """Read the answers that the store has, and complete the requests that have all of theirs."""
        with self._changed:
            numbers = list(self._open)
        for number, answer in self._read_answers(numbers).items():
            with self._changed:
                request = self._open.pop(number, None)
            if request is not None:
                request.answers[number] = answer
                self._purgatory.check_and_complete(number)

    def close(self) -> None:
        """End every wait, without the answers that are missing; the next ``wait`` returns at once."""
        with self._changed:
            self._closed = True
            waiting = list(self._open.values())
            self._changed.notify_all()
        for request in waiting:
            request.force_complete()
        self._reaper.stop()

    # -- the reader ------------------------------------------------------------------------------------

    def _start_reader(self) -> None:
        """Have the next poll come soon; start the reader and the Reaper where they do not run."""
        with self._changed:
            if self._closed:
                return
            if not self._reaper.running:
                self._reaper.start()
            reads = self._reader is not None and self._reader.is_alive()
            if not (reads and self._away):
                self._pause_s = FIRST_S
                self._poll_at_s = min(self._poll_at_s, time.monotonic() + FIRST_S)
                self._changed.notify_all()
            if not reads:
                self._reader = threading.Thread(target=self._read, name="wheel-answers", daemon=True)
                self._reader.start()

    def _read(self) -> None:
        while self._wait_for_next_poll():
            try:
                self.poll()
            except Exception as error:  # every request has its own time-out, so the reader goes on
                if not self._away and not self._closed:
                    logger.warning(
                        "answers to requests cannot be read (%s); the store is polled again until they time out",
                        error,
                        extra={"action": "answers_failed", "waiting": len(self._open)},
                    )
                self._away = True
            else:
                self._away = False
            first_s, most_s = (RETRY_FIRST_S, RETRY_MOST_S) if self._away else (FIRST_S, MOST_S)
            with self._changed:
                self._pause_s = min(most_s, max(first_s, self._pause_s * 1.5))
                self._poll_at_s = min(self._poll_at_s, time.monotonic() + self._pause_s)

    def _wait_for_next_poll(self) -> bool:
        """Return True when the next poll is due; False when no request waits, and the thread ends."""
        with self._changed:
            while self._open and not self._closed and (left_s := self._poll_at_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            goes_on = bool(self._open) and not self._closed
            self._poll_at_s = _NEVER_S
            if not goes_on:
                self._reader = None
            return goes_on


#: Seconds between two checks that the open store is up to date.
CHECK_EVERY_S = 1.0


@dataclass(slots=True)
class OpenStore:
    url: str
    store: FullStore
    checked_s: float = 0.0
    checking: threading.Lock = field(default_factory=threading.Lock)  #: held by the one thread that asks the store
    answers: Answers = field(init=False)  #: the requests of this process that wait for answers of this store
    overview: OverviewCache = field(init=False)  #: what this process shows of the store
    schedule_counts: PacedCounts[ScheduleCounts] = field(init=False)
    ahead: PacedCounts[Ahead] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(self.store.answers)
        self.overview = OverviewCache(self.store, now_ms)
        self.schedule_counts = PacedCounts(self.store.browse.schedule_counts)
        self.ahead = PacedCounts(lambda: read_ahead(self.store, now_ms()))

    def ahead_within(self, at_most_s: float) -> Ahead:
        return self.ahead.get_within(at_most_s) or read_hours(self.store, now_ms())

    def is_current(self) -> bool:
        """Whether the store is as it was opened. While one thread asks it, which may take long, the others go on."""
        if self.store.is_replaced():
            return False
        if time.monotonic() - self.checked_s < CHECK_EVERY_S or not self.checking.acquire(blocking=False):
            return True
        try:
            self.checked_s = time.monotonic()
            return self.store.is_as_opened()
        finally:
            self.checking.release()

    def close(self) -> None:
        self.answers.close()
        self.store.close()


@dataclass(slots=True)
class _ProcessState:
    lock: threading.Lock
    open: OpenStore | None = None

    def close(self) -> None:
        opened, self.open = self.open, None
        if opened is not None:
            opened.close()


class ProcessStore:
    def __init__(self, conf: Conf) -> None:
        self._conf = conf
        self._by_process: dict[int, _ProcessState] = {}

    def open(self) -> OpenStore:
        """Return the open store. A store that does not exist is not made; one that exists is not changed."""
        self._conf.check_once()
        state, url = self._state, self._conf.store
        opened = state.open
        if opened is not None and opened.url == url and opened.is_current():
            return opened
        with state.lock:
            if state.open is opened:  # no other thread has opened it meanwhile
                state.close()
            if state.open is None:
                store = open_store(
                    url, durability=self._conf.durability, shards=None, create=False, keys=self._conf.encryption_keys
                )
                state.open = OpenStore(url, store, time.monotonic())
            return state.open

    def close(self) -> None:
        """Close the store's connections; the next question opens the store again."""
        state = self._state
        with state.lock:
            state.close()

    @property
    def _state(self) -> _ProcessState:
        # One step of a dictionary, which is atomic: neither a fork nor another thread finds it half done.
        return self._by_process.setdefault(os.getpid(), _ProcessState(threading.Lock()))
