"""Worlds for planted bugs: settings that favour a mechanism, so that few seeds are enough where it fails.

::

    KeyedWorld      every world has messages whose calls become fewer runs
    CrowdedWorld    two groups, so that most rows wait; users who cancel, set limits and pause groups; holders that last
    BackfillWorld   users ask for many backfills, some beside a trigger, and workers report many ends of runs
    BriefWorld      the history of a group's tasks is shorter than a task may run

In the other worlds such events are rare, and the first seed that shows a bug of them changes with each change of the
engine. None of these settings knows a bug: the events and the oracles are those of the world below.
"""

import random

from tests.simulation.group_world import GroupWorld
from tests.simulation.happenings import Scheduler
from tests.simulation.recurring_world import RecurringWorld
from tests.simulation.world import World


class KeyedWorld(World):
    keys = 1.0
    loss = steps_of_clocks = 0.0


class CrowdedWorld(GroupWorld):
    density = 1.0
    loss = steps_of_clocks = 0.0  # limits are judged without
    fault_rates = (0.0, 0.02, 0.08)
    groups = ("tenant:1", "tenant:1", "tenant:2")
    limit_shares = (0.0, 0.02, 0.1)
    pause_shares = (0.0, 0.02)
    weights = (2, 8, 2, 8, 3, 1, 1, 3)
    hurries = 0.5

    def __init__(self, seed: int) -> None:
        self.crowd_rng = rng = random.Random(seed + 29_000_003)
        self.only_reads_fail = rng.random() < 0.5  #: a commit in doubt would begin the memory anew
        super().__init__(seed)
        self.lasts = rng.random() < 0.5  #: whether one scheduler holds the shard all the time
        if self.lasts:
            self.limit(lease_ms=10**6)

    def _happen(self) -> None:
        super()._happen()
        if self.crowd_rng.random() < 0.1:
            self._ask()

    def _crash(self, scheduler: Scheduler) -> None:
        if not self.lasts:
            super()._crash(scheduler)

    def _give(self, scheduler: Scheduler) -> None:
        if not self.lasts:
            super()._give(scheduler)

    def store_fault(self, point: str) -> None:
        if not self.only_reads_fail or "commit" not in point:
            super().store_fault(point)


class BriefWorld(GroupWorld):
    loss = steps_of_clocks = 0.0  # limits are judged without

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.limit(retention_ms=50)


class BackfillWorld(RecurringWorld):
    loss = steps_of_clocks = 0.0
    fault_rates = (0.0, 0.0, 0.02)
    share = 0.03  #: of the events, each

    def __init__(self, seed: int) -> None:
        self.backfill_rng = random.Random(seed + 31_000_003)
        super().__init__(seed)

    def _happen(self) -> None:
        super()._happen()
        dice = self.backfill_rng.random()
        at_once = dice < self.share / 2  #: all three, before the triggered run is published
        if dice < self.share and not self.quiet:
            for do in ("trigger", "backfill") if at_once else ("backfill",):
                self.log.append(f"user: {self.scheduling.ask(self.clock_ms, do)}")
        if at_once or self.share <= dice < 2 * self.share:
            self.log.append(f"worker: {self.scheduling.end_a_run(self.disk.shard(0), self.pushes)}")
