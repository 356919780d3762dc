"""Several shards and several schedulers in one thread from one seed: schedulers start, stop, die, and share shards.

Each shard has a model Redis of its own; all are in one model store. Every activity is the product's own: the engines'
rounds, step by step, and ``Balance.once``. The oracle: each message is pushed once, none is lost, none is early, and
when no scheduler starts or stops any more, the shares are even and stay as they are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits, Round
from celery_wheel.scheduler.share import Balance
from celery_wheel.store.model import Row
from celery_wheel.timing import ManualClock
from tests.kit.holder import message
from tests.simulation.happenings import ACTIVITIES, START_MS, WEIGHTS, Violation
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore

NAMES = ("a", "b", "c")


class Scheduler:
    def __init__(self, fleet: Fleet, name: str) -> None:
        self.name, self.activities, self.fleet = name, fleet.activities, fleet
        self.clock = ManualClock(fleet.clock_ms)
        store = ModelStore(fleet.disk, fleet.fault)
        limits, options = fleet.limits, fleet.engine_options()
        self.engines = [
            Engine(shard, name, store, fleet.broker(server), self.clock, limits, **options)
            for shard, server in enumerate(fleet.servers)
        ]
        self.balance = Balance(store, name, self.engines, self.clock)
        self.rounds: dict[tuple[int, str], Iterator[str | Round]] = {}

    def step(self, shard: int, activity: str) -> None:
        place = shard, activity
        if place not in self.rounds:
            self.rounds[place] = getattr(self.engines[shard], activity)()
        self.fleet.acting = activity
        step = next(self.rounds[place], None)
        if step is None or isinstance(step, Round):
            del self.rounds[place]

    def finish(self, shard: int, activity: str) -> None:
        self.step(shard, activity)
        while (shard, activity) in self.rounds:
            self.step(shard, activity)

    def leave(self) -> None:
        """Stop as a process does on a signal: finish every round, then release the shards."""
        for shard in range(len(self.engines)):
            for activity in self.activities:
                while (shard, activity) in self.rounds:
                    self.step(shard, activity)
            self.finish(shard, "release")


LIMITS = Limits(lease_ms=300, window_ms=5_000, retention_ms=10**10)


class Fleet:
    limits = LIMITS
    activities: tuple[str, ...] = ACTIVITIES
    weights: tuple[int, ...] = WEIGHTS
    steps = (0, 0, 1, 3)  #: milliseconds between two events
    works = 20  #: turns of the last part in which there is work; later ones look at the shares

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock_ms = START_MS
        self.disk = Disk(lambda: self.clock_ms)
        self.servers = [RedisServer() for _ in range(self.rng.randrange(2, 6))]
        for shard in range(len(self.servers)):
            self.disk.shard(shard)
        self.pushes: Counter[tuple[str, int]] = Counter()
        self.sent = self.started = 0
        self.acting = ""  #: the activity of the present step
        self.schedulers = {"a": self.scheduler("a")}

    def scheduler(self, name: str) -> Scheduler:
        return Scheduler(self, name)

    def engine_options(self) -> dict[str, Any]:
        return {}

    def broker(self, server: RedisServer) -> ModelRedis:
        return ModelRedis(server, lambda: self.clock_ms, pushed=self.pushed)

    def fault(self, point: str) -> None:
        """Raise a fault of the store, or do not."""

    def run(self) -> Self:
        try:
            self._run()
        except Violation:
            raise
        except AssertionError as error:  # the store's
            raise Violation(f"seed {self.seed}: {error}") from error
        return self

    def _run(self) -> None:
        for _ in range(1_200):
            self._happen()
        for n in range(300):
            self._calm_down(n)
            for scheduler in self.schedulers.values():
                scheduler.balance.once()
                for shard, engine in enumerate(scheduler.engines):
                    scheduler.finish(shard, "tend")
                    if engine.state is not None and (n < self.works or n % 10 == 0):
                        for activity in self.activities[1:]:
                            scheduler.finish(shard, activity)
            self._pass(200)
            if n == 250:
                before = self._shares()
        self._judge(before)

    def _happen(self) -> None:
        dice, rng = self.rng.random(), self.rng
        self._pass(rng.choice(self.steps))
        if dice < 0.03:
            self._send()
        elif dice < 0.035:
            self._come_or_go(rng.choice(NAMES))
        elif dice < 0.08:
            rng.choice(list(self.schedulers.values())).balance.once()
        else:
            scheduler = rng.choice(list(self.schedulers.values()))
            scheduler.step(rng.randrange(len(self.servers)), rng.choices(self.activities, self.weights)[0])

    def _calm_down(self, n: int) -> None:
        """Act in the last part, in which no scheduler starts or stops."""

    def _come_or_go(self, name: str) -> None:
        if name not in self.schedulers:
            self.started += 1
            self.schedulers[name] = self.scheduler(f"{name}/{self.started}")  # no process id is used twice
        elif len(self.schedulers) > 1:
            gone = self.schedulers.pop(name)
            if self.rng.random() < 0.5:  # otherwise it was killed
                gone.leave()

    def _send(self) -> None:
        self.sent += 1
        due_ms = self.clock_ms + self.rng.choice((-5, 10, 100, 400))
        name = f"00000000-0000-7000-8000-{self.sent:012d}"
        sent = message(envelope_id=name, task_id=name, eta_ms=due_ms, created_ms=self.clock_ms)
        self.rng.choice(self.servers).keys.wheel.append(sent)

    def _pass(self, ms: int) -> None:
        self.clock_ms += ms
        for scheduler in self.schedulers.values():
            scheduler.clock.advance(ms)

    def pushed(self, row: Row, _now_ms: int) -> None:
        place = str(row.id), row.id & 0xFF
        self.pushes[place] += 1
        if self.pushes[place] > 1:
            raise Violation(f"seed {self.seed}: row {row.id} was pushed twice")
        if self.clock_ms < row.eta_ms:
            raise Violation(f"seed {self.seed}: row {row.id} was pushed early")

    def _shares(self) -> dict[str, list[int]]:
        return {
            name: [engine.shard for engine in scheduler.engines if engine.held]
            for name, scheduler in self.schedulers.items()
        }

    def _judge(self, before: dict[str, list[int]]) -> None:
        shares = self._shares()
        counts = sorted(map(len, shares.values()))
        if len(self.pushes) != self.sent:
            raise Violation(f"seed {self.seed}: {self.sent} were sent, {len(self.pushes)} pushed")
        if sum(counts) != len(self.servers) or counts[-1] - counts[0] > 1:
            raise Violation(f"seed {self.seed}: the shares are {shares}")
        if shares != before:
            raise Violation(f"seed {self.seed}: shards still move: {before}, {shares}")
