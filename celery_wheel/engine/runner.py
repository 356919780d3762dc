"""The runner: the threads that run an engine's rounds and wait between them.

::

    tend        every half second, or every quarter of the lease if that is shorter
    listen      when the wheel queue is empty; its call may hang, so ``stop`` does not wait for it
    ingest      at once after a busy round; else after ``poll_ms``, when a schedule is due, or when listen has found a
                message
    prefetch    at once after a busy round; else when dispatch or a commit may have made room, at most every 100 ms; and
                after a second, or a quarter of the window, since due time moves the window
    dispatch    at once after a busy round; else when the next row is due, at most after a second; commits and prefetch
                wake it
    settle      when dispatch has confirmed a chunk, at most every 50 ms
    announce    when tasks were cancelled; its call may hang, so neither another thread nor ``stop`` waits for it
    keep_house  after a busy round it pauses as long as the round took, or nine times as long while tasks are
                dispatched, which need the store too; else after 10 s

After a failed round a thread waits, longer each time up to two seconds, with jitter. A thread that dies by an
unexpected error stops all the others; ``failure`` then has the error, and the scheduler process ends with it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Round, RoundSteps, run_round

logger = logging.getLogger(__name__)

#: Waits after a round; the arguments are the end of the round and the seconds that it took.
Pause = Callable[[Round, float], None]

SETTLE_S = 0.05
PREFETCH_S = 0.1

BACK_OFF_FIRST_S = 0.05
BACK_OFF_MAX_S = 2.0


class Runner:
    def __init__(self, engine: Engine, *, lease_ms: int, poll_ms: int, rng: random.Random | None = None) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._stop = threading.Event()
        self._dispatched = 0  #: the count when the last round of ``keep_house`` ended
        tend_s = min(0.5, lease_ms / 4_000)
        plan: dict[str, tuple[Callable[[], RoundSteps], Pause]] = {
            "tend": (engine.tend, lambda _, took_s: self._pause(tend_s)),
            "listen": (engine.listen, self._await_emptied),
            "ingest": (engine.ingest, partial(self._await_arrivals, poll_ms)),
            "prefetch": (engine.prefetch, self._await_room),
            "dispatch": (engine.dispatch, self._await_due),
            "settle": (engine.settle, self._await_unsettled),
            "announce": (engine.announce, self._await_unannounced),
            "keep_house": (engine.keep_house, self._pause_after_housekeeping),
        }
        self._threads = [
            threading.Thread(target=self._run, args=(name, *parts), name=f"wheel-{engine.shard}-{name}", daemon=True)
            for name, parts in plan.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let every thread but ``announce`` and ``listen`` finish its round, then settle and give up the shard."""
        self._stop.set()
        for event in self.engine.events:
            event.set()
        own = [thread for thread in self._threads if not thread.name.endswith(("announce", "listen"))]
        for thread in own:
            thread.join(timeout_s)
        if not any(thread.is_alive() for thread in own):
            run_round(self.engine.release())

    # -- one thread ----------------------------------------------------------------------------------

    def _run(self, name: str, activity: Callable[[], RoundSteps], pause: Pause) -> None:
        failures = 0
        try:
            while not self._stop.is_set():
                began_s = time.monotonic()
                result = run_round(activity())
                failures = failures + 1 if result is Round.FAILED else 0
                if failures:
                    self._pause(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2**failures) * self._rng.uniform(0.5, 1))
                else:
                    pause(result, time.monotonic() - began_s)
        except BaseException as error:  # ``failure`` has the error, and the beat process ends with it
            logger.exception("the %s thread died", name, extra={"action": "thread_died", "activity": name})
            self.failure = error
            self._stop.set()

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _await_arrivals(self, poll_ms: int, round_: Round, took_s: float) -> None:
        if round_ is Round.BUSY:
            return
        while not self._stop.is_set():
            # Without a shard no round peeks, and the event would stay set.
            event = self._stop if self.engine.state is None else self.engine.arrived
            schedule_ms = self.engine.ingest_wait_ms()
            event.wait(min(poll_ms, schedule_ms) / 1_000)
            if schedule_ms <= poll_ms or self.engine.has_arrivals():
                return

    def _await_emptied(self, round_: Round, took_s: float) -> None:
        if not self._stop.is_set():
            self.engine.emptied.wait()
        self.engine.emptied.clear()

    def _await_room(self, round_: Round, took_s: float) -> None:
        """Wait at least PREFETCH_S, since each chunk that is dispatched makes room."""
        if round_ is not Round.BUSY:
            self._pause(PREFETCH_S)
            self.engine.room.wait(self.engine.prefetch_wait_ms / 1_000)
            self.engine.room.clear()

    def _pause_after_housekeeping(self, round_: Round, took_s: float) -> None:
        before, self._dispatched = self._dispatched, self.engine.stats.dispatched
        share = 9 if self._dispatched > before else 1
        self._pause(share * took_s if round_ is Round.BUSY else 10)

    def _await_unsettled(self, round_: Round, took_s: float) -> None:
        """Wait until there are chunks to settle, and at least SETTLE_S, so that one settlement records many chunks."""
        self._pause(SETTLE_S)
        if not self._stop.is_set():
            self.engine.unsettled.wait()
        self.engine.unsettled.clear()

    def _await_unannounced(self, round_: Round, took_s: float) -> None:
        if round_ is Round.IDLE and not self._stop.is_set():
            self.engine.unannounced.wait()
        self.engine.unannounced.clear()

    def _await_due(self, round_: Round, took_s: float) -> None:
        if round_ is Round.IDLE and not self._stop.is_set():
            self.engine.wake.wait(self.engine.wait_ms() / 1_000)
        self.engine.wake.clear()
