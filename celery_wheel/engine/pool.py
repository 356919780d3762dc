"""The pool: the threads of a process, for the jobs of all its shards.

::

    leader   the one thread that waits for the next instant; it takes what is due, and another thread leads
    spare    threads that wait to lead; one whose job is due again before the leader's instant waits until then, so that
             the leader is not woken; a job that has no thread gets a new one

A job never waits for the call of another job: before a thread runs a job, another thread leads, or is started. Where
the system gives no more threads, jobs wait for those that there are.

Waking a thread of an idle process costs 100 to 200 µs, many times the work that it then finds. So waits of GRID_S and
more end together, on a grid, and one thread runs these jobs one after the other, unless one takes longer than GRACE_S.

No job vanishes: where one raises, its error is kept as ``failure``, no job begins any more, and the owner ends the
process; ``stuck`` names one that has hung, or has had no thread, for HANGS_S (a stopped process's time does not count).
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from celery_wheel.values.log import get_logger

#: Waits of at least this long end on multiples of it, up to GRID_S before their time and never after it.
GRID_S = 0.5

#: The longest time for which a job of the grid waits for the job before it.
GRACE_S = 0.01

#: A condition cannot wait for all of a float's range.
LONGEST_S = 3_600.0

#: The longest wait of a job, whatever it asks for.
IDLE_S = 60.0

#: Seconds without a step after which a job is stuck. A call to a broker or a store that is not answered ends before.
HANGS_S = 12.0

#: ``stuck`` looks at the jobs at most every LOOK_S, and counts at most SEEN_S between two looks.
LOOK_S, SEEN_S = 0.4, 1.0

logger = get_logger(__name__)


class Wait(NamedTuple):
    """How many seconds a job waits until it runs again: ``most_s``; where it is woken, at least ``least_s``."""

    least_s: float = 0.0
    most_s: float = math.inf


def longest_s(wait: Wait) -> float:
    """Return the seconds of a wait that nothing ends earlier."""
    return min(max(wait), max(wait.least_s, IDLE_S))


class Stuck(NamedTuple):
    """A job that makes no progress."""

    job: str
    seconds: int
    runs: bool  #: whether it is within a run; else it is due, and no thread takes it

    def __str__(self) -> str:
        state = "has hung in one call" if self.runs else "is due and has had no thread"
        return f"the job {self.job} {state} for {self.seconds} s"


class Job:
    """A function that a pool runs again and again, never twice at the same time."""

    def __init__(self, pool: Pool, run: Callable[[], Wait], name: str, hangs_s: float) -> None:
        self._pool = pool
        self.run = run
        self.name = name
        self.hangs_s = hangs_s
        self.steps = 0  #: of its progress; any value but the former one is progress
        self.seen_steps, self.seen_s = 0, 0.0  #: when ``stuck`` saw the last progress, in seconds that it counted
        self.at_s = math.inf  #: the instant of its next run
        self.not_before_s = 0.0
        self.is_running = self.is_woken = self.is_over = False

    def step(self) -> None:
        """Note progress: a run of several calls does so between two of them."""
        self.steps += 1

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
        self._jobs: list[Job] = []
        self._origin_s = self._looked_s = self.now_s()
        self._seen_s = 0.0  #: seconds that ``stuck`` has counted
        self._stuck: list[Stuck] = []
        self.failure: tuple[str, BaseException] | None = None  #: the first job that raised, by name, and its error
        self._leads = self._closed = False
        self._instants: list[float] = []  #: until which the leader and the spare threads wait
        self._promoted = 0  #: threads that are about to lead
        self._threads = self._spares = 0
        self._job_of_thread = threading.local()  #: ``name``: of the last job that the thread began

    @staticmethod
    def now_s() -> float:
        """Return the pool's time, in seconds; jobs that measure or wait read no other clock."""
        return time.monotonic()

    def on_grid(self, at_s: float) -> float:
        """Return the last instant of the grid up to ``at_s``."""
        return at_s - (at_s - self._origin_s) % GRID_S

    def job(self, run: Callable[[], Wait], name: str, *, hangs_s: float = HANGS_S) -> Job:
        """Return a new job, which first runs when it is woken; after ``hangs_s`` without a step it is stuck."""
        job = Job(self, run, name, hangs_s)
        with self._lock:
            job.seen_s = self._seen_s
            self._jobs = [one for one in self._jobs if not one.is_over] + [job]
        return job

    def stuck(self) -> list[Stuck]:
        """Return the jobs that make no progress. To be called every second or more often; any thread may do so."""
        with self._lock:
            now_s = self.now_s()
            if now_s >= self._looked_s + LOOK_S:
                self._seen_s += min(now_s - self._looked_s, SEEN_S)
                self._looked_s = now_s
                self._stuck = [one for job in self._jobs if (one := self._look(job, now_s)) is not None]
                if self._stuck and not self._leads:  # the system may have threads again
                    with suppress(RuntimeError):
                        self._promote()
            return self._stuck

    def _look(self, job: Job, now_s: float) -> Stuck | None:
        is_expected = not job.is_over and (job.is_running or job.at_s <= now_s)
        if not is_expected or job.steps != job.seen_steps:
            job.seen_steps, job.seen_s = job.steps, self._seen_s
        seconds = self._seen_s - job.seen_s
        return Stuck(job.name, round(seconds), job.is_running) if seconds >= job.hangs_s else None

    def close(self) -> None:
        """Let the threads end with their jobs; no further job begins."""
        with self._lock:
            self._end()

    def wake(self, job: Job) -> None:
        with self._lock:
            if job.is_running:
                job.is_woken = True
            elif job.at_s > job.not_before_s:
                self._schedule(job, max(job.not_before_s, self.now_s()))
                if self._leads:
                    self._instant.notify()
                else:
                    self._promote()

    def join(self, job: Job, until_s: float) -> bool:
        with self._lock:
            return self._ended.wait_for(lambda: not job.is_running, max(0.0, until_s - self.now_s()))

    # -- under the lock ------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closed = True
        self._instant.notify_all()
        self._follow.notify_all()

    def _schedule(self, job: Job, at_s: float, *, on_grid: bool = False) -> None:
        job.at_s = at_s
        if at_s < math.inf:
            heapq.heappush(self._timers, (at_s, next(self._serial), on_grid, job))

    def _reschedule(self, job: Job, wait: Wait) -> None:
        now_s = self.now_s()
        job.is_running = False
        job.step()
        self._ended.notify_all()
        job.not_before_s = now_s + wait.least_s
        wait_s = wait.least_s if job.is_woken else longest_s(wait)
        job.is_woken = False
        at_s, on_grid = now_s + wait_s, GRID_S <= wait_s < math.inf
        if on_grid:
            at_s = self.on_grid(at_s)
        self._schedule(job, at_s, on_grid=on_grid)

    def _collect(self, now_s: float) -> None:
        """Move what is due from the timers to the queues."""
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            at_s, _, on_grid, job = heapq.heappop(timers)
            if at_s == job.at_s:  # else it was woken meanwhile
                (self._gridded if on_grid else self._due).append(job)

    def _take(self, *, goes_on: bool) -> Job | None:
        """Return the next job that is due, and see to it that a thread waits for the others. A thread that ``goes_on``
        from another job takes a job of the grid without GRACE_S."""
        now_s = self.now_s()
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
            elif self._due or self._is_unwatched():  # not behind the call of this one
                self._instant.notify()
            return job
        return None

    def _next_s(self) -> float:
        """Return the instant at which a thread has to look for jobs."""
        at_s = self._timers[0][0] if self._timers else math.inf
        return min(at_s, self._taken_s + GRACE_S) if self._gridded else at_s

    def _is_unwatched(self) -> bool:
        """Whether the next instant is before those for which threads wait: its job came while the leader waited."""
        return self._next_s() < min(self._instants, default=math.inf)

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
        job = self._job_of_thread
        job.name = "of the pool itself"
        try:
            with self._lock:
                self._promoted = 0
                self._threads += 1
                try:
                    self._serve()
                finally:
                    self._threads -= 1
        except BaseException as error:  # SystemExit too, by which Python ends a thread silently
            self.fail(job.name, error)

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
            elif self._is_unwatched() or self._spares < 2:
                self._spares += 1
                self._wait(self._follow, self._next_s() if self._is_unwatched() else math.inf)
                self._spares -= 1
                self._promoted, goes_on = 0, False
            else:
                return

    def _run(self, job: Job) -> None:
        self._lock.release()
        wait = Wait()
        self._job_of_thread.name = job.name
        try:
            wait = job.run()
        finally:
            self._lock.acquire()
            self._reschedule(job, wait)

    def fail(self, name: str, error: BaseException) -> None:
        """Keep the error of a job that died, and begin no job any more."""
        extra = {"action": "job_died", "job": name}
        logger.error(
            "the job %s died; no job begins any more, and the scheduler ends", name, exc_info=error, extra=extra
        )
        with self._lock:
            self.failure = self.failure or (name, error)
            self._end()

    def _lead(self) -> None:
        self._leads = True
        self._wait(self._instant, self._next_s())
        self._leads = False

    def _wait(self, waiting: threading.Condition, at_s: float) -> None:
        self._instants.append(at_s)
        waiting.wait(min(LONGEST_S, max(0.0, at_s - self.now_s())))
        self._instants.remove(at_s)
