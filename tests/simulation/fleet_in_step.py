"""A fleet whose processes run the rounds of all their shards in step, with shared calls (``engine.shared``).

::

    an event        the rounds of an activity go on to their next shared calls, or calls of one name are made
    a shared call   of all shards that stand at a call of this name: one transaction of the store, in which a shard that
                    is fenced is left out; where it fails, each of them has the error

Schedulers come and go between a call's beginning and its making. The oracle is that of ``fleet``.
"""

from __future__ import annotations

import random
from collections import Counter

from celery_wheel.engine.round import Limits, SharedCall
from celery_wheel.engine.runner import SHARED
from celery_wheel.errors import BrokerError, StoreError
from tests.simulation.fleet import Fleet, Scheduler
from tests.simulation.model_redis import ModelRedis, RedisServer


class InStep(Scheduler):
    def __init__(self, fleet: FleetInStep, name: str) -> None:
        super().__init__(fleet, name)
        self.calls: dict[tuple[int, str], SharedCall] = {}  #: shard and activity → the call for which the round waits
        self.counts = fleet.counts
        for engine in self.engines:
            engine.ctx.shares = True

    def step(self, shard: int, activity: str) -> None:
        """Make the calls that wait, or take the rounds of all shards to their next calls."""
        self.fleet.acting = activity
        if activity not in SHARED:
            super().step(shard, activity)
        elif (shard, activity) in self.calls:
            name = self.calls[shard, activity]
            same = [place for place, call in self.calls.items() if place[1] == activity and call == name]
            calls = [self.calls.pop(place) for place in same]
            self.counts["calls of several shards"] += len(calls) > 1
            calls[0].make_with(calls)
        else:
            for one in range(len(self.engines)):
                if (one, activity) not in self.calls:
                    self._advance(one, activity)

    def _advance(self, shard: int, activity: str) -> None:
        round_ = self.rounds.setdefault((shard, activity), getattr(self.engines[shard], activity)())
        for step in round_:
            if isinstance(step, SharedCall):
                self.calls[shard, activity] = step
                return
        del self.rounds[shard, activity]


class FleetInStep(Fleet):
    limits = Limits(lease_ms=300, window_ms=5_000, retention_ms=10**10, intake_count=3, chunk_count=3)
    steps = (0, 0, 0, 1)

    def __init__(self, seed: int) -> None:
        self.fault_rng = random.Random(seed + 29_000_003)
        self.counts: Counter[str] = Counter()
        self.is_quiet = False
        super().__init__(seed)

    def scheduler(self, name: str) -> Scheduler:
        return InStep(self, name)

    def broker(self, server: RedisServer) -> ModelRedis:
        return ModelRedis(server, lambda: self.clock_ms, fault=self._broker_fault, pushed=self.pushed)

    def fault(self, point: str) -> None:
        if self._fails():
            raise StoreError(f"simulated, {point}")

    def _broker_fault(self, point: str) -> None:
        if self._fails():
            raise BrokerError(f"simulated, {point}")

    def _fails(self) -> bool:
        """Fail now and then, but not while a shard is acquired or given up."""
        failed = not self.is_quiet and self.acting not in ("tend", "release") and self.fault_rng.random() < 0.02
        self.counts["faults"] += failed
        return failed

    def _happen(self) -> None:
        if self.fault_rng.random() < 0.1:
            self._send()
        super()._happen()

    def _calm_down(self, n: int) -> None:
        self.is_quiet = True

    def happened(self) -> Counter[str]:
        return self.counts
