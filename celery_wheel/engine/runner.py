"""The runner: the jobs that run the rounds of a process's engines, and the waits between them.

::

    renew       every half second, or every quarter of the lease if that is shorter: for all shards
    tend        as often; does nothing where ``renew`` has just renewed the lease
    listen      when the wheel queue is empty and the broker can wait; its call may hang: ``stop`` does not wait for it
    ingest      after a busy round, at once or after ``pause_s``; else when a schedule is due, when listen has found a
                message, or when the inbox has an item; and every ``poll_ms`` where the broker tells of no messages
    prefetch    at once after a busy round; else when dispatch or a commit may have made room, at most every 100 ms
    dispatch    after a busy round, like ingest; else when the next row is due, at most after a second; or when woken
    release     when a row's group or queue may have room: a run has ended, a time has come, a depth was read
    settle      when dispatch has confirmed a chunk, at most every 50 ms
    announce    when tasks were cancelled; its call may hang, so neither another job nor ``stop`` waits for it
    keep_house  after a busy round it pauses as long as the round took, or nine times as long while tasks are
                dispatched, which need the store too; else after 10 s, or after a minute where for two minutes no task
                was dispatched and no round was busy: a change of the key ends with idle rounds, of which one waits
    inboxes     for all shards, when a writer rings the store's bell; else every ``poll_ms``

A round has a fixed cost, 1 ms of CPU for a commit: a message alone is taken at once, a steady stream in batches. On
Redis the rounds of ingest, dispatch and settle of all shards run in step, and pay that cost once; the pauses of
dispatch and settle are longer then: see ``shared``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from celery_wheel.engine.dispatch import MAX_WAIT_MS
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import HANGS_S, Job, Pool, Wait
from celery_wheel.engine.round import Round, RoundSteps, run_round
from celery_wheel.engine.shared import ShardPart, SharedRounds
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.store.ports import Bell
from celery_wheel.timing import Backoff

#: Returns the wait after a round; the arguments are its end and the seconds that it took.
After = Callable[[Round, float], Wait]

INGEST_S = 0.05
DISPATCH_S = 0.0025
SETTLE_S = 0.05
RELEASE_S = 0.01
PREFETCH_S = 0.1
HOUSE_S, IDLE_HOUSE_S, RESTS_S = 10.0, 60.0, 120.0

BACK_OFF_FIRST_S, BACK_OFF_MOST_S = 0.1, 2.0

AT_ONCE = Wait(0.0, 0.0)
UNTIL_WOKEN = Wait()

#: Activities whose calls may hang.
PATIENT = ("announce", "listen")

#: Activities whose rounds make their calls together, where all shards have one Redis (see ``shared``). Other brokers
#: publish and trim message by message, and one shard's calls would delay all others. The value: whether its pause may
#: be longer; a message that is not accepted yet may be due.
SHARED = {"ingest": False, "dispatch": True, "settle": True}


def tend_s(lease_ms: int) -> float:
    """Return the seconds between two renewals of a lease."""
    return min(0.5, lease_ms / 4_000)


def pause_s(longest_s: float, took_s: float) -> float:
    """Return the pause after a busy round: the shorter, the more work it had, and none after half of ``longest_s``."""
    return max(0.0, longest_s - 2 * took_s)


class ShardJobs:
    """The jobs of one engine, by the name of their activity."""

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        rng: random.Random,
        *,
        lease_ms: int,
        poll_ms: int,
        shared: Mapping[str, SharedRounds],
    ) -> None:
        self.engine = engine
        engine.ctx.shares = bool(shared)
        self._now_s = pool.now_s
        self._poll_ms = poll_ms
        self._dispatched = 0  #: the count when the last round of ``keep_house`` ended
        self._worked_s = -math.inf  #: when one of its rounds last had work, or tasks were dispatched before it
        self._tend_s = tend_s(lease_ms)
        self._renewed_s: float | None = None  #: when ``renew`` last renewed the lease; None where ``tend`` has to act
        plan: dict[str, tuple[Callable[[], RoundSteps], After]] = {
            "tend": (self._tend, self._after_tend),
            "listen": (engine.listen, self._after_listen),
            "ingest": (engine.ingest, self._after_ingest),
            "prefetch": (engine.prefetch, self._after_prefetch),
            "dispatch": (engine.dispatch, self._after_dispatch),
            "release": (engine.release_rows, self._after_release),
            "settle": (engine.settle, lambda *_: Wait(SETTLE_S)),  # so that one settlement records many chunks
            "announce": (engine.announce, lambda round_, _: AT_ONCE if round_ is Round.BUSY else UNTIL_WOKEN),
            "keep_house": (engine.keep_house, self._after_housekeeping),
        }
        # A result backend that does not answer is asked seldom: each call may take a minute.
        most_s = {"announce": 60.0}
        self._backoffs = {name: Backoff(BACK_OFF_FIRST_S, most_s.get(name, BACK_OFF_MOST_S), rng) for name in plan}
        self.jobs: dict[str, Job | ShardPart] = {
            name: shared[name].part(activity, partial(self._after, name, after))
            if name in shared
            else pool.job(
                partial(self._run, name, activity, after),
                f"{name} of shard {engine.shard}",
                # Celery tries a task for a minute where a result backend does not answer, and a round has many.
                hangs_s=600.0 if name == "announce" else HANGS_S,
            )
            for name, (activity, after) in plan.items()
        }
        for name, signal in {
            "listen": engine.ctx.queue.emptied,
            "ingest": engine.ctx.queue.arrived,
            "prefetch": engine.ctx.room,
            "dispatch": engine.ctx.wake,
            "release": engine.ctx.freed,
            "settle": engine.ctx.unsettled,
            "announce": engine.ctx.unannounced,
        }.items():
            signal.listener = self.jobs[name].wake

    def wake(self) -> None:
        """Run all jobs soon but listen, which a peek wakes."""
        for name, job in self.jobs.items():
            if name != "listen":
                job.wake()

    def cancel(self) -> None:
        for job in self.jobs.values():
            job.cancel()

    def release(self, until_s: float) -> None:
        """Let the jobs but PATIENT finish their rounds, then settle and give up the shard."""
        own = [job for name, job in self.jobs.items() if name not in PATIENT]
        if all(job.join(until_s) for job in own):
            run_round(self.engine.release())
        self._log_rejections(2**62)  # after every instant: nothing is left out of the log

    def _run(self, name: str, activity: Callable[[], RoundSteps], after: After) -> Wait:
        began_s, job = self._now_s(), self.jobs[name]
        result = run_round(activity(), job.step)
        return self._after(name, after, result, self._now_s() - began_s)

    def _after(self, name: str, after: After, result: Round, took_s: float) -> Wait:
        backoff = self._backoffs[name]
        if result is Round.FAILED:
            wait_s = backoff.failed()
            return Wait(wait_s, wait_s)
        backoff.succeeded()
        return after(result, took_s)

    def note_renewal(self, *, renewed: bool) -> None:
        """Note whether ``renew`` has renewed the lease; where it has not, ``tend`` acts at once."""
        was_renewed = self._renewed_s is not None
        self._renewed_s = self._now_s() if renewed else None
        if was_renewed and not renewed:
            self.jobs["tend"].wake()

    def _tend(self) -> RoundSteps:
        now_s, renewed_s = self._now_s(), self._renewed_s
        self._log_rejections(int(now_s * 1_000))
        if renewed_s is not None and now_s < renewed_s + 1.5 * self._tend_s:
            return iter((Round.IDLE,))
        return self.engine.tend()

    def _log_rejections(self, now_ms: int) -> None:
        self.engine.stats.rejections.log(self.engine.shard, now_ms)

    def _after_tend(self, round_: Round, took_s: float) -> Wait:
        if round_ is Round.BUSY:  # the shard was adopted
            self.wake()
        return Wait(0.0 if self._renewed_s is not None else self._tend_s, self._tend_s)

    def _after_listen(self, round_: Round, took_s: float) -> Wait:
        """Listen again after a call that has found nothing; else when a peek has found the queue empty."""
        return AT_ONCE if round_ is Round.BUSY else UNTIL_WOKEN

    def _after_ingest(self, round_: Round, took_s: float) -> Wait:
        if round_ is Round.BUSY:
            wait_s = pause_s(INGEST_S, took_s)
            return Wait(wait_s, wait_s)
        wait_ms: float = self.engine.ingest_wait_ms()
        if self.engine.state is not None and self.engine.ctx.queue.may_have_messages():
            wait_ms = min(self._poll_ms, wait_ms)
        return Wait(0.0, wait_ms / 1_000)

    def _after_prefetch(self, round_: Round, took_s: float) -> Wait:
        """Wait at least PREFETCH_S, since each chunk that is dispatched makes room; due time moves the window."""
        longest_s = min(1_000, self.engine.ctx.limits.window_ms // 4) / 1_000
        return AT_ONCE if round_ is Round.BUSY else Wait(PREFETCH_S, longest_s)

    def _after_dispatch(self, round_: Round, took_s: float) -> Wait:
        busy, clock = round_ is Round.BUSY, self.engine.clock
        wait_ms = self.engine.wait_ms(was_busy=busy)
        # To the instant of a row, less what has passed of this millisecond; else to one of the pool's grid.
        wait_s = wait_ms / 1_000 if wait_ms == MAX_WAIT_MS else clock.seconds_until(clock.monotonic_ms() + wait_ms)
        return Wait(pause_s(DISPATCH_S, took_s) if busy else 0.0, wait_s)

    def _after_release(self, round_: Round, took_s: float) -> Wait:
        """Release again after a pause, as dispatch does: one commit moves many rows."""
        if round_ is Round.BUSY:
            return Wait(RELEASE_S, RELEASE_S)
        return Wait(RELEASE_S, max(RELEASE_S, self.engine.release_wait_ms() / 1_000))

    def _after_housekeeping(self, round_: Round, took_s: float) -> Wait:
        before, self._dispatched = self._dispatched, self.engine.stats.dispatched
        now_s, dispatches = self._now_s(), self._dispatched > before
        if dispatches or round_ is Round.BUSY:
            self._worked_s = now_s
        if round_ is Round.BUSY:
            wait_s = (9 if dispatches else 1) * took_s
            return Wait(wait_s, wait_s)
        return Wait(0.0, HOUSE_S if now_s < self._worked_s + RESTS_S else IDLE_HOUSE_S)


class Runner:
    """Runs engines that share a store, until ``stop``; the pool has the error of a job that died."""

    def __init__(self, *engines: Engine, lease_ms: int, poll_ms: int, pool: Pool | None = None) -> None:
        self.engines = engines
        self.pool = pool or Pool()
        rng = random.Random()  # noqa: S311 - jitter, no secret
        share = len(engines) > 1 and all(one.ctx.broker.fences for one in engines)
        shared = {name: SharedRounds(self.pool, name, stretches=SHARED[name]) for name in SHARED} if share else {}
        for one in engines if share else ():  # messages of all shards are in memory at the same time
            most = max(2**20, one.ctx.limits.intake_bytes // len(engines))
            one.ctx.limits = replace(one.ctx.limits, intake_bytes=most)
        self.shards = [
            ShardJobs(one, self.pool, rng, lease_ms=lease_ms, poll_ms=poll_ms, shared=shared) for one in engines
        ]
        self._lease_ms, self._tend_s = lease_ms, tend_s(lease_ms)
        self._renewal = self.pool.job(self._renew, "renew")
        self._watch = InboxWatch({one.engine: one.jobs["ingest"].wake for one in self.shards}, poll_ms, self.pool)
        for engine in engines:
            engine.stats.stuck_jobs = lambda: [str(one) for one in self.pool.stuck()]

    def start(self) -> None:
        self._watch.job.wake()
        for shard in self.shards:
            shard.wake()
        if len(self.shards) > 1:  # a ``tend`` costs less than a renewal of one
            self._renewal.wake()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let every job finish its round, but those whose calls may hang; then settle and give up the shards."""
        self._watch.job.cancel()
        self._renewal.cancel()
        for shard in self.shards:
            shard.cancel()
        until_s = self.pool.now_s() + timeout_s
        self._renewal.join(until_s)
        for shard in self.shards:
            shard.release(until_s)
        self._watch.close(until_s)
        self.pool.close()

    def _renew(self) -> Wait:
        renewed = renew(self.engines, self._lease_ms)
        for shard in self.shards:
            shard.note_renewal(renewed=shard.engine.shard in renewed)
        return Wait(self._tend_s, self._tend_s)


def renew(engines: Sequence[Engine], lease_ms: int) -> set[int]:
    """Renew the leases of those engines of a process that hold their shards; returns the renewed shards."""
    called = {engine.shard: (engine, call) for engine in engines if (call := engine.lease_call()) is not None}
    if not called:
        return set()
    first = engines[0]
    try:
        verified = first.delivery.verified([call.state for _, call in called.values()])
        renewals = [call.renewal for shard, (_, call) in called.items() if shard in verified]
        renewed = first.store.renew_all(renewals, first.clock.wall_ms(), lease_ms) if renewals else set()
    except (BrokerError, StoreError):  # each engine's own call reports the error
        return set()
    for shard in renewed:
        engine, call = called[shard]
        engine.renewed(call.state, call.lease_until_ms)
    return renewed


#: Seconds to the next look at an inbox of which the store tells: a writer that does not ring is an older one.
LOOK_S = 1.0


class InboxWatch:
    """Wakes the ingest of an engine when its inbox has an item, or its shard a chunk of a bulk load."""

    def __init__(self, wakes: Mapping[Engine, Callable[[], None]], poll_ms: int, pool: Pool) -> None:
        self._wakes = wakes
        self._poll_s = poll_ms / 1_000
        self._bell: Bell | None = None
        self.job = pool.job(self._run, "inboxes")

    def close(self, until_s: float) -> None:
        """Close the bell, once the job is cancelled and the look that is under way has ended; a hung one keeps it."""
        if self.job.join(until_s) and self._bell is not None:
            self._bell.close()

    def look(self) -> bool:
        """Ask the store once, and return whether it has arrivals; the rounds report an error of it."""
        held = {engine.shard: wake for engine, wake in self._wakes.items() if engine.state is not None}
        if not held:
            return False
        store = next(iter(self._wakes)).store
        try:
            found = store.arrivals(list(held))
        except StoreError:
            found = list(held)
        for shard in found:
            held[shard]()
        return bool(found)

    def _run(self) -> Wait:
        if self._bell is None:
            self._bell = next(iter(self._wakes)).store.bell()
        found = self.look()  # a round may leave some of it for later
        self._bell.wait(LOOK_S if self._bell.tells and not found else self._poll_s)
        return Wait(0.0, 0.0)
