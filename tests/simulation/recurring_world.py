"""A simulated installation with recurring schedules beside everything else that happens."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from celery_wheel.store.model import Row
from tests.simulation.model_store import ModelStore
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.rendering import Renderer
from tests.simulation.scheduling import Scheduling
from tests.simulation.world import World


class RecurringWorld(World):
    def __init__(self, seed: int) -> None:
        self.renderer = Renderer()
        self.overlapped: list[str] = []
        super().__init__(seed)
        self.recurring_rng = rng = random.Random(seed + 3_000_003)
        self.limits = replace(
            self.limits,
            look_ahead_ms=rng.choice((0, 10, 100)),
            late_ms=rng.choice((20, 100)),
            occurrence_count=rng.choice((1, 3, 1_000)),
            herd_count=rng.choice((1, 2, 1_000)),
            herd_ms=rng.choice((500, 5_000)),
            herd_per_s=rng.choice((1, 5, 100)),
        )
        for scheduler in self.schedulers:
            scheduler.engine._ctx.limits = self.limits
        self.recalls = False  # a requeued occurrence stands for no instant
        self.scheduling = Scheduling(rng, ModelStore(self.disk), self.dense, self._violation)

    def engine_options(self) -> dict[str, Any]:
        return {"renderer": self.renderer, "on_overlap": self.overlapped.extend}

    def happened(self) -> Counter[str]:
        found = super().happened() + self.scheduling.counts
        found["runs cancelled for a later one"] = len(self.overlapped)
        return found

    def _happen(self) -> None:
        dice, data = self.recurring_rng.random(), self.disk.shard(0)
        if dice < 0.02:
            self.log.append(f"user: {self.scheduling.ask(self.clock_ms)}")
        elif dice < 0.05:
            self.log.append(f"worker: {self.scheduling.end_a_run(data, self.pushes)}")
        super()._happen()
        self.scheduling.look(data, self.clock_ms)

    def _calm_down(self) -> None:
        self.scheduling.calm(self.clock_ms)
        super()._calm_down()

    def _is_done(self) -> bool:
        self.scheduling.look(self.disk.shard(0), self.clock_ms)
        return super()._is_done()

    def pushed(self, row: Row, now_ms: int) -> None:
        super().pushed(row, now_ms)
        self.scheduling.look(self.disk.shard(0), self.clock_ms)
        if not self.loses:
            self.scheduling.pushed(self.disk.shard(0), row, now_ms)

    def _judge(self) -> None:
        super()._judge()
        if not self.clock_steps:
            self.scheduling.judge(self.disk.shard(0))


class RecurringRabbitWorld(RecurringWorld, RabbitWorld):
    """The same on RabbitMQ, where rows in doubt are published again with a mark."""
