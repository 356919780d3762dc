"""The thread that follows the sources, while its process holds shard 0.

::

    every POLL_S    each source: changes ─► its follower ─► commands ─► answers of the shards' holders
                    the counts of runs ─► the tables of django-celery-beat
    a failure       logged once until it is over; the source and the store are read anew, with back-off

``stop`` ends a wait for an answer: the request is withdrawn, and the next holder computes the difference anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from celery_wheel.broker.names import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.requests.answers import ProcessStore
from celery_wheel.requests.asynchronous import Interruption
from celery_wheel.requests.request import Names, Request
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.scheduler.sources.entry import EntrySource
from celery_wheel.scheduler.sources.follower import Follower
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE
from celery_wheel.timing import Backoff, SystemClock

logger = logging.getLogger(__name__)

#: Seconds between two looks at the sources; an edit is live within four of them.
POLL_S = 0.25

#: Seconds for an answer: after a takeover the holders of all shards answer within three.
ANSWER_S = 10.0

#: Seconds after which entries whose names were taken are tried again.
RETRY_CLASHES_S = 60.0

BACK_OFF_FIRST_S, BACK_OFF_MOST_S = 1.0, 30.0

#: The actor of the revisions that sources make.
ACTOR = "beat"


class Periodic(Protocol):
    """Work beside the sources, in the same thread."""

    def run(self, store: FullStore) -> None: ...

    def close(self) -> None: ...


class Sources:
    """Started once, stopped once.

    Args:
        held: returns whether this process still holds shard 0.
        hands_back: names of the sources whose entries may go back to the base scheduler.
        report: called with the sources' part of the status, whenever it has changed.
    """

    def __init__(
        self,
        conf: Conf,
        sources: Sequence[EntrySource],
        held: Callable[[], bool],
        *,
        hands_back: Sequence[str] = (),
        beside: Sequence[Periodic] = (),
        report: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._process_store = ProcessStore(conf)
        self._held = held
        self._beside = beside
        self._report = report
        self._clock = SystemClock()
        self._sources = {
            one: Follower(one.name, self._store, self._asker(one.name), self._clock.now_ms, one.name in hands_back)
            for one in sources
        }
        self._failing: set[str] = set()
        self._stop = threading.Event()
        self._interruption = Interruption()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-sources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look at the sources now."""
        self._wake.set()

    @property
    def settled(self) -> bool:
        """Whether the listed entries of every source are in the store."""
        return all(one.is_followed for one in self._sources)

    def take_back(self, put: Callable[[str, int], None]) -> bool:
        """Put name and last instant of the entries that the base scheduler runs from now on; returns whether any were.

        Each is put once, and forgotten only then: a signal's handler that comes between puts it again.
        """
        found = False
        for follower in self._sources.values():
            for name, last_ms in list(follower.handed_back.items()):
                put(name, last_ms)
                follower.handed_back.pop(name, None)
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
        backoff, clashes_at_s = Backoff(BACK_OFF_FIRST_S, BACK_OFF_MOST_S), 0.0
        self._interruption.enter()
        while not self._stop.is_set():
            self._wake.clear()
            wait_s = POLL_S
            if self._held() and not self.look():
                wait_s = backoff.failed()
            else:
                backoff.succeeded()
            now_s = self._clock.monotonic_ms() / 1_000
            if now_s - clashes_at_s > RETRY_CLASHES_S:
                clashes_at_s = now_s
                self._guarded("clashes", self._retry_clashes)
            self._wake.wait(wait_s)
        for one in self._beside:
            one.close()
        self._process_store.close()  # a thread that was hung at the stop has opened it again

    def look(self) -> bool:
        """Look at each source once; returns whether all could be read and followed."""
        well = True
        for source, follower in self._sources.items():
            if not self._guarded(source.name, lambda s=source, f=follower: self._follow(s, f)):  # type: ignore[misc]
                source.reset()
                follower.forget()
                well = False
        for one in self._beside:
            well &= self._guarded("run counts", lambda one=one: one.run(self._store()))  # type: ignore[misc]
        return well

    def _follow(self, source: EntrySource, follower: Follower) -> None:
        changes = source.read()
        if changes is None:
            return
        follower.follow(changes)
        source.followed()
        self._tell()

    def _retry_clashes(self) -> None:
        for follower in self._sources.values():
            follower.retry_clashes()
        self._tell()

    def _tell(self) -> None:
        self._report({one.name: {"clashes": sorted(follower.clashes)} for one, follower in self._sources.items()})

    def _guarded(self, what: str, work: Callable[[], None]) -> bool:
        """Do the work; returns False where it failed, and says so once until it is done again."""
        try:
            work()
        except Exception as error:  # also of the application's database: every source is tried again
            if what not in self._failing and not self._stop.is_set():
                known = isinstance(error, WheelUnavailable | StoreError)
                logger.warning(
                    "periodic entries (%s) cannot be followed: %s; they run as they were, and this is tried again",
                    what,
                    error,
                    exc_info=None if known else error,
                    extra={"action": "source_failed", "source": what},
                )
            self._failing.add(what)
            return False
        self._failing.discard(what)
        return True

    # -- requests --------------------------------------------------------------------------------------

    def _store(self) -> FullStore:
        return self._process_store.open().store

    def _asker(self, source: str) -> Callable[[str, Names, dict[str, Any]], dict[str, ScheduleAnswer]]:
        def ask(do: str, names: Names, options: dict[str, Any]) -> dict[str, ScheduleAnswer]:
            if self._stop.is_set() or not self._held():
                raise WheelUnavailable("this process no longer holds shard 0", {})
            own = {"do": do, "source": source, "actor": ACTOR, "reason": f"followed from {source}", **options}
            request = Request(self._process_store.open, SCHEDULE, names, own, ANSWER_S, shard_of=shard_of)
            request.send()
            return request.receive()

        return ask
