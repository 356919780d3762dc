"""A renderer without Celery: the message of an occurrence names its schedule and its instant.

A simulated installation with recurring schedules beside everything else that happens.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery_wheel.engine.recurring.occurrence import Occurrence, header_of
from celery_wheel.engine.round import Round
from celery_wheel.errors import BrokerError
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import Message, Row
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule
from tests.kit.holder import message
from tests.simulation.happenings import Scheduler
from tests.simulation.model_history import ShardData
from tests.simulation.model_store import ModelStore
from tests.simulation.policies import Policies
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.scheduling import Scheduling
from tests.simulation.world import World


class Renderer:
    """Each call makes another task id: name, instant, number of the call."""

    def __init__(
        self,
        fault: Callable[[Schedule], None] = lambda _: None,
        decided: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.fault = fault
        self.rendered = 0
        self.decided: dict[str, tuple[int, int]] = {}  #: task id → the decision to make it was between these instants
        self._decided = decided
        self.lost: list[str] = []

    def queue_lost(self, name: str) -> None:
        self.lost.append(name)

    def is_watched(self, schedule: Schedule) -> bool:
        return schedule.name.startswith("watched")

    def render(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        self.fault(schedule)
        instant_ms = occurrence.instant_ms
        self.rendered += 1
        headers = json.dumps({OCCURRENCE: header_of(schedule, definition, occurrence)}).encode()
        task_id = f"{schedule.name} {instant_ms} {self.rendered}"
        self.decided[task_id] = self._decided()
        parts = {"task_id": task_id, "task": "tasks.recurring", "created_ms": instant_ms, "headers": headers}
        return message(**parts, group=definition.call.wheel.get("group"))


class RecurringWorld(World):
    def __init__(self, seed: int) -> None:
        self.renderer = Renderer(self._render_fault, lambda: (self.acting_since_ms, self.clock_ms))
        self.overlapped: list[str] = []
        super().__init__(seed)
        self.recurring_rng = rng = random.Random(seed + 3_000_003)
        self.limit(
            look_ahead_ms=rng.choice((0, 10, 100)),
            late_ms=rng.choice((20, 100)),
            occurrence_count=rng.choice((1, 3, 1_000)),
            herd_count=rng.choice((1, 1, 2, 1_000)),
            herd_ms=rng.choice((500, 5_000)),
            herd_per_s=rng.choice((1, 1, 5, 100)),
        )
        self.recalls = False  # a requeued occurrence stands for no instant
        self.policies = policies = Policies(self.limits, self.renderer.decided, self.clock_steps, self._violation)
        self.scheduling = Scheduling(rng, ModelStore(self.disk), self.dense, policies, self._violation)
        for _ in range(3):
            self.scheduling.ask(self.clock_ms, "create")

    def _lose(self) -> None:
        before = {row_id for ids in self.queues().values() for row_id in ids}
        super()._lose()
        self.policies.rolled_back |= before.difference(*self.queues().values())

    def engine_options(self) -> dict[str, Any]:
        return {"renderer": self.renderer, "on_overlap": self.overlapped.extend}

    def happened(self) -> Counter[str]:
        found = super().happened() + self.scheduling.counts
        found["runs cancelled for a later one"] = len(self.overlapped)
        return found

    def _happen(self) -> None:
        dice, data = self.recurring_rng.random(), self.disk.shard(0)
        if dice < 0.025:
            self.log.append(f"user: {self.scheduling.ask(self.clock_ms)}")
        elif dice < 0.05:
            self.log.append(f"worker: {self.scheduling.end_a_run(data, self.pushes)}")
        elif dice < (0.09 if self.scheduling.is_away else 0.065):
            self._move(data)
        super()._happen()
        self.scheduling.look(data, self.clock_ms)

    def _move(self, data: ShardData) -> None:
        if not self.scheduling.is_away:
            if not self.scheduling.may_be_drained(data, self.clock_ms):
                return
            for scheduler in list(self.schedulers):
                self._crash(scheduler)
        self.log.append(f"user: {self.scheduling.move(data, self.clock_ms)}")
        self.scheduling.counts["moves"] += 1

    def _render_fault(self, schedule: Schedule) -> None:
        """A result backend that is away for a moment, or a task that the app does not have."""
        dice = self.recurring_rng.random()
        if self.quiet or dice >= self.fault_rate / 4:
            return
        self.log.append(f"fault: schedule {schedule.id} cannot be rendered")
        raise BrokerError("simulated") if dice < self.fault_rate / 8 else LookupError("simulated")

    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None) -> None:
        super().stepped(scheduler, activity, step)
        if self.quiet and step == "committed":
            self.scheduling.look(self.disk.shard(0), self.clock_ms)

    def _calm_down(self) -> None:
        self.scheduling.calm()
        super()._calm_down()

    def pushed(self, row: Row, now_ms: int) -> None:
        super().pushed(row, now_ms)
        if self.loses and self.pushes[row.id] > 1:
            self.policies.rolled_back.add(row.id)
        self.scheduling.look(self.disk.shard(0), self.clock_ms)
        self.scheduling.pushed(self.disk.shard(0), row, now_ms, self.loses)

    def _judge(self) -> None:
        super()._judge()
        self.scheduling.judge(self.disk.shard(0), self.overlapped)


class RecurringRabbitWorld(RecurringWorld, RabbitWorld):
    """The same on RabbitMQ, where rows in doubt are published again with a mark."""
