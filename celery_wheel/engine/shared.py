"""Shared rounds: one activity of several shards in one job, whose rounds make their calls together.

::

    begin     the rounds of all shards that are due or woken, unless the pause of the last rounds lasts
    advance   each round to its next call, or to its end
    call      the calls of one name become one: one transaction, one pipeline; each round gets its own answer or error
    …         until every round has ended; a shard that is due meanwhile joins, so a long round delays no other shard

The fixed cost of a round, mostly a commit, is paid once for all shards. Rounds are at the same step because they begin
together: a shard that has work within the pause waits for its end, as a message of the same shard does. A round's time
is its part of the time of all: a pause depends on the work. Where it may be longer, it is so by the square root of the
number of rounds, which makes the sum of lateness and of the costs of rounds the least.

Each round stays the round of its own shard: its own state, epoch, error and back-off. A call whose server is silent
delays all shards of the process, which have the same server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from celery_wheel.engine.pool import GRID_S, Job, Pool, Wait, longest_s
from celery_wheel.engine.round import Round, RoundSteps, SharedCall


class ShardPart:
    """The part that a shard has in a job; to its owner, a job of its own."""

    def __init__(
        self, whole: SharedRounds, begin: Callable[[], RoundSteps], end: Callable[[Round, float], Wait]
    ) -> None:
        self._whole = whole
        self.begin, self.end = begin, end
        self.at_s = math.inf
        self.not_before_s = 0.0
        self.is_woken = self.is_over = False
        self.steps: RoundSteps | None = None  #: of the round that is running
        self.call: SharedCall | None = None  #: for which it waits
        self.result = Round.IDLE
        self.took_s = 0.0
        self.together = 1  #: rounds that have shared a call with this one, itself included

    def step(self) -> None:
        """Note progress, as the job does."""
        self._whole.job.step()

    def wake(self) -> None:
        self.is_woken = True
        self._whole.job.wake()

    def cancel(self) -> None:
        self.is_over = True

    def join(self, until_s: float) -> bool:
        return self._whole.join(until_s)

    def begins_s(self) -> float:
        """Return the instant at which its next round begins."""
        if self.is_over:
            return math.inf
        return self.not_before_s if self.is_woken else max(self.not_before_s, self.at_s)


class SharedRounds:
    def __init__(self, pool: Pool, name: str, *, stretches: bool) -> None:
        self.job: Job = pool.job(self._run, name)
        self._stretches = stretches  #: the pause may be longer
        self._pool = pool
        self._parts: list[ShardPart] = []
        self._not_before_s = 0.0

    def part(self, begin: Callable[[], RoundSteps], end: Callable[[Round, float], Wait]) -> ShardPart:
        """Add a shard: ``begin`` returns a round, and ``end`` the wait after it, by its result and its seconds."""
        self._parts.append(ShardPart(self, begin, end))
        return self._parts[-1]

    def join(self, until_s: float) -> bool:
        """Let the rounds of cancelled parts end; returns whether they have."""
        self.job.cancel()
        if not self.job.join(until_s):
            return False
        while self._running() and self._pool.now_s() < until_s:
            try:
                self._advance(self._running())
            except Exception as error:  # of one round, which is over: the others end, and their shards are given up
                self._pool.fail(self.job.name, error)
        return not self._running()

    def _running(self) -> list[ShardPart]:
        return [one for one in self._parts if one.steps is not None]

    def _run(self) -> Wait:
        now_s = self._pool.now_s()
        if now_s >= self._not_before_s:
            for one in self._parts:
                if one.steps is None and one.begins_s() <= now_s:
                    one.is_woken, one.took_s, one.result, one.together = False, 0.0, Round.IDLE, 1
                    one.steps = one.begin()
        if running := self._running():
            self._advance(running)
        if self._running():
            return Wait(0.0, 0.0)
        now_s = self._pool.now_s()
        next_s = max(self._not_before_s, min(one.begins_s() for one in self._parts))
        return Wait(max(0.0, self._not_before_s - now_s), max(0.0, next_s - now_s))

    def _advance(self, running: Sequence[ShardPart]) -> None:
        """Take each round to its next call, and make the calls."""
        began_s, calls = self._pool.now_s(), dict[str, list[SharedCall]]()
        for one in running:
            if (call := self._next_call(one)) is not None:
                calls.setdefault(call, []).append(call)
        for same in calls.values():
            same[0].make_with(same)
        now_s = self._pool.now_s()
        for one in running:
            one.took_s += (now_s - began_s) / len(running)
            if one.call is None:
                self._end(one)
            else:
                one.together = max(one.together, len(calls[one.call]))

    def _next_call(self, one: ShardPart) -> SharedCall | None:
        one.call = None
        for step in one.steps or ():
            self.job.step()
            if isinstance(step, Round):
                one.result = step
            elif isinstance(step, SharedCall):
                one.call = step
                break
        return one.call

    def _end(self, one: ShardPart) -> None:
        one.steps, wait = None, one.end(one.result, one.took_s)
        now_s = self._pool.now_s()  # after its wait was computed: the wait may be for an instant
        if self._stretches and one.result is not Round.FAILED:
            wait = wait._replace(least_s=wait.least_s * math.sqrt(one.together))
        one.not_before_s, one.at_s = now_s + wait.least_s, now_s + longest_s(wait)
        if one.at_s - now_s >= GRID_S:
            one.at_s = self._pool.on_grid(one.at_s)
        if one.result is not Round.FAILED:
            self._not_before_s = max(self._not_before_s, one.not_before_s)
