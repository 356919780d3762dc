"""The pool: the threads of a process, for the jobs of all its shards.

::

    job      runs ─► waits: at least so long, at most so long ─► runs …     ``wake`` ends the wait, not the "at least"
    leader   the one thread that waits for the next instant; it takes what is due, and another thread leads
    spare    threads that wait to lead; a job that has no thread gets a new one

A job never waits for the call of another job: before a thread runs a job, another thread leads, or is started. So a
call that hangs keeps its own thread and nothing else. The pool grows by the calls that are under way, and keeps SPARES.
Where the system gives no more threads, jobs wait for those that there are.

Waking a thread of an idle process costs 100 to 200 µs, many times the work that it then finds. So waits of GRID_S and
more end together, on a grid, and one thread runs these jobs one after the other. Where it makes no progress for
GRACE_S, another thread goes on beside it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

#: Waits of at least this long end on multiples of it, up to GRID_S before their time and never after it.
GRID_S = 0.5

#: The longest time for which a job of the grid waits for the job before it.
GRACE_S = 0.01

#: A condition cannot wait for all of a float's range.
LONGEST_S = 3_600.0

SPARES = 2


class Wait(NamedTuple):
    """How many seconds a job waits until it runs again: ``most_s``; where it is woken, at least ``least_s``."""

    least_s: float = 0.0
    most_s: float = math.inf


class Job:
    """A function that a pool runs again and again, never twice at the same time."""

    def __init__(self, pool: Pool, run: Callable[[], Wait]) -> None:
        self._pool = pool
        self.run = run
        self.at_s = math.inf  #: the instant of its next run
        self.not_before_s = 0.0
        self.is_running = self.is_woken = self.is_over = False

    def wake(self) -> None:
        """Run it soon; once more where it is running."""
        self._pool.wake(self)

    def cancel(self) -> None:
        """Do not run it again."""
        self.is_over = True

    def join(self, until_s: float) -> bool:
        """Wait until it does not run, up to an instant of the monotonic clock; returns whether it does not."""
        return self._pool.join(self, until_s)


class Pool:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instant = threading.Condition(self._lock)  #: the leader waits
        self._follow = threading.Condition(self._lock)  #: spare threads wait
        self._ended = threading.Condition(self._lock)  #: those who join a job wait
        self._timers: list[tuple[float, int, bool, Job]] = []  #: instant, serial, whether it is on the grid, job
        self._serial = itertools.count()
        self._due: deque[Job] = deque()
        self._gridded: deque[Job] = deque()  #: due as well, on the grid
        self._taken_s = 0.0  #: when a job of the grid was last taken
        self._origin_s = time.monotonic()
        self._leads = self._closed = False
        self._until_s = math.inf  #: the leader waits until then
        self._promoted = 0  #: threads that are about to lead
        self._threads = self._spares = 0

    def job(self, run: Callable[[], Wait]) -> Job:
        return Job(self, run)

    def close(self) -> None:
        """Let the threads end with their jobs; no further job begins."""
        with self._lock:
            self._closed = True
            self._instant.notify_all()
            self._follow.notify_all()

    def wake(self, job: Job) -> None:
        with self._lock:
            if job.is_running:
                job.is_woken = True
            elif job.at_s > job.not_before_s:
                self._schedule(job, max(job.not_before_s, time.monotonic()))
                if self._leads:
                    self._instant.notify()
                else:
                    self._promote()

    def join(self, job: Job, until_s: float) -> bool:
        with self._lock:
            return self._ended.wait_for(lambda: not job.is_running, max(0.0, until_s - time.monotonic()))

    # -- under the lock ------------------------------------------------------------------------------

    def _schedule(self, job: Job, at_s: float, *, on_grid: bool = False) -> None:
        job.at_s = at_s
        if at_s < math.inf:
            heapq.heappush(self._timers, (at_s, next(self._serial), on_grid, job))

    def _reschedule(self, job: Job, wait: Wait) -> None:
        now_s = time.monotonic()
        job.is_running = False
        self._ended.notify_all()
        job.not_before_s = now_s + wait.least_s
        wait_s = wait.least_s if job.is_woken else max(wait)
        job.is_woken = False
        at_s, on_grid = now_s + wait_s, GRID_S <= wait_s < math.inf
        if on_grid:
            at_s -= (at_s - self._origin_s) % GRID_S
        self._schedule(job, at_s, on_grid=on_grid)
        if self._leads and at_s < self._until_s:  # the leader went to wait while the job ran
            self._instant.notify()

    def _collect(self, now_s: float) -> None:
        """Move what is due from the timers to the queues."""
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            at_s, _, on_grid, job = heapq.heappop(timers)
            if at_s == job.at_s:  # else it was woken meanwhile
                (self._gridded if on_grid else self._due).append(job)

    def _take(self, *, goes_on: bool) -> Job | None:
        """Return the next job that is due, and see to it that a thread waits for the others.

        Args:
            goes_on: the thread comes from another job, and takes a job of the grid without GRACE_S.
        """
        now_s = time.monotonic()
        self._collect(now_s)
        while self._due or (self._gridded and (goes_on or now_s >= self._taken_s + GRACE_S)):
            if self._due:
                job = self._due.popleft()
            else:
                job, self._taken_s = self._gridded.popleft(), now_s
            if job.is_over or job.at_s > now_s:  # it was woken, and has run, since it came into the queue
                continue
            job.is_running, job.at_s = True, math.inf
            if not self._leads:
                self._promote()
            return job
        return None

    def _promote(self) -> None:
        if self._promoted:
            return
        self._promoted = 1
        if self._spares:
            self._follow.notify()
        else:
            try:
                threading.Thread(target=self._work, name="wheel-pool", daemon=True).start()
            except RuntimeError:  # as at the limit of a container's processes
                self._promoted = 0
                if not self._threads:
                    raise

    # -- the threads -----------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._lock:
            self._promoted = 0
            self._threads += 1
            try:
                self._serve()
            finally:
                self._threads -= 1

    def _serve(self) -> None:
        goes_on = False
        while not self._closed:
            job = self._take(goes_on=goes_on)
            if job is not None:
                self._run(job)
                goes_on = True
            elif not self._leads:
                self._lead()
                goes_on = False
            elif self._spares < SPARES:
                self._spares += 1
                self._follow.wait()
                self._spares -= 1
                self._promoted, goes_on = 0, False
            else:
                return

    def _run(self, job: Job) -> None:
        self._lock.release()
        wait = Wait()
        try:
            wait = job.run()
        finally:
            self._lock.acquire()
            self._reschedule(job, wait)

    def _lead(self) -> None:
        at_s = self._timers[0][0] if self._timers else math.inf
        if self._gridded:
            at_s = min(at_s, self._taken_s + GRACE_S)
        self._leads, self._until_s = True, at_s
        self._instant.wait(min(LONGEST_S, max(0.0, at_s - time.monotonic())))
        self._leads = False
