"""The thread that follows the sources of schedules while this process holds shard 0.

::

    every POLL_S, or at once where a source has more     each source: its changes ─► its follower ─► the store
                                                         the run counts
    every minute                                         the entries whose names were taken

A failure is logged once a minute, and is tried again with back-off: what was not followed is read again. When
the shard comes back to this process, each source and the store are compared anew. ``stop`` ends a wait for an answer:
the request is withdrawn, and the next holder computes the difference anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from celery_wheel.broker import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.requests.answers import ProcessStore
from celery_wheel.requests.asynchronous import Interruption
from celery_wheel.requests.request import Names, Request
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.scheduler.sources import EntrySource
from celery_wheel.scheduler.sources.follower import Follower
from celery_wheel.store.audit_model import SOURCE
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE
from celery_wheel.timing import Backoff, RetryLog, SystemClock
from celery_wheel.values.log import get_logger

if TYPE_CHECKING:
    from celery_wheel.scheduler.sources.run_counts import RunCounts

logger = get_logger(__name__)

#: Seconds between two looks at the sources; an edit is live within four of them.
POLL_S = 0.25

#: Seconds for an answer: after a takeover the holders of all shards answer within three.
ANSWER_S = 10.0
BACK_OFF_MOST_S = 30.0


class Sources:
    """Started once, stopped once.

    ``hands_back`` names the sources whose entries may go back to the base scheduler. ``counts`` runs after the sources.
    ``report`` is called with the sources' part of the status, whenever it has changed.
    """

    def __init__(
        self,
        conf: Conf,
        sources: Sequence[EntrySource],
        held: Callable[[], bool],
        *,
        hands_back: Sequence[str] = (),
        counts: RunCounts | None = None,
        report: Callable[[dict[str, Any]], None] = lambda _: None,
        log: RetryLog | None = None,
    ) -> None:
        self._process_store = ProcessStore(conf)
        self._held = held
        self._counts = counts
        self._report = report
        self._clock = SystemClock()
        self._sources = {
            one: Follower(one.name, self._store, self._asker(one.name), self._clock.now_ms, one.name in hands_back)
            for one in sources
        }
        self._log = log or RetryLog(logger, lambda: self._clock.monotonic_ms() / 1_000)
        self._stop = threading.Event()
        self._interruption = Interruption()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-sources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    @property
    def settled(self) -> bool:
        """Whether the listed entries of every source are in the store."""
        return all(one.is_followed for one in self._sources)

    def take_back(self, put: Callable[[str, int], None]) -> bool:
        """Put name and last instant of the entries that the base scheduler runs from now on; returns whether any."""
        found = False
        for follower in self._sources.values():
            for name, last_ms in list(follower.handed_back.items()):
                put(name, last_ms)
                follower.handed_back.pop(name, None)  # only now: a signal's handler that comes between puts it again
                found = True
        return found

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        self._wake.set()
        self._interruption.interrupt()  # the wait for an answer
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._process_store.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff, clashes_at_s, was_held = Backoff(1.0, BACK_OFF_MOST_S), 0.0, False
        self._interruption.enter()
        while not self._stop.is_set():
            self._wake.clear()
            was_held, before = self._held(), was_held
            if was_held and not before:  # another process may have followed them meanwhile
                for source in self._sources:
                    source.reset()
                if self._counts is not None:
                    self._counts.reset()
            if was_held and not self.look():
                wait_s = backoff.failed()
            else:
                backoff.succeeded()
                wait_s = 0.0 if was_held and self._has_more() else POLL_S
            now_s = self._clock.monotonic_ms() / 1_000
            if was_held and now_s - clashes_at_s > 60.0:
                clashes_at_s = now_s
                self._guarded("clashes", self._retry_clashes)
            self._wake.wait(wait_s)
        if self._counts is not None:
            self._counts.close()
        self._process_store.close()  # a thread that was hung at the stop has opened it again

    def look(self) -> bool:
        """Look at each source once; returns whether all could be read and followed."""
        well = True
        for source, follower in self._sources.items():
            well &= self._guarded(source.name, lambda s=source, f=follower: self._follow(s, f))  # type: ignore[misc]
        counts = self._counts
        if counts is not None:
            well &= self._guarded("run counts", lambda: counts.run(self._store()))
        return well

    def _has_more(self) -> bool:
        counts = self._counts
        return any(one.has_more for one in self._sources) or (counts is not None and counts.has_more)

    def _follow(self, source: EntrySource, follower: Follower) -> None:
        changes = source.read()
        if changes is None:
            return
        source.followed(follower.follow(changes))
        self._tell()

    def _retry_clashes(self) -> None:
        for follower in self._sources.values():
            follower.retry_clashes()
        self._tell()

    def _tell(self) -> None:
        self._report({one.name: {"clashes": sorted(follower.clashes)} for one, follower in self._sources.items()})

    def _guarded(self, what: str, work: Callable[[], None]) -> bool:
        """Do the work; returns False where it failed, and says so once a minute."""
        try:
            work()
        except Exception as error:  # also of the application's database: every source is tried again
            if not self._stop.is_set():
                self._log.write(
                    logging.WARNING,
                    what,
                    "periodic entries (%s) cannot be followed: %s; they run as they were, and this is tried again",
                    what,
                    error,
                    exc_info=None if isinstance(error, WheelUnavailable | StoreError) else error,
                    extra={"action": "source_failed", "source": what},
                )
            return False
        return True

    # -- requests --------------------------------------------------------------------------------------

    def _store(self) -> FullStore:
        return self._process_store.open().store

    def _asker(self, source: str) -> Callable[[str, Names, dict[str, Any]], dict[str, ScheduleAnswer]]:
        def ask(do: str, names: Names, options: dict[str, Any]) -> dict[str, ScheduleAnswer]:
            if self._stop.is_set() or not self._held():
                raise WheelUnavailable("this process no longer holds shard 0", {})
            own = {"do": do, "source": source, "actor": source, "reason": f"followed from {source}", **options}
            audit = {"origin": SOURCE}
            request = Request(self._process_store.open, SCHEDULE, names, own, ANSWER_S, shard_of=shard_of, audit=audit)
            request.send()
            return request.receive()

        return ask
