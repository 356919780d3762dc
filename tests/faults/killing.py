"""Two schedulers that share the shards of a store, one of which is killed again and again.

A kill takes mostly a scheduler that holds a shard, sometimes both at once; another starts in its place at once, as a
supervisor would.
"""

import random
import time
from pathlib import Path
from typing import Any

from tests.faults.load import SCHEDULERS
from tests.kit.patience import wait_until
from tests.kit.stack import Broker, Stack

SHARDS = 3

LEASE_S = 1.0

#: Seconds between two kills: a takeover may be complete, under way or not begun.
PAUSES_S = (0.1, 3.0)


class KilledSchedulers(Stack):
    """Two schedulers; ``way_of_a`` is the URL of the store for the first scheduler, where it is another."""

    def __init__(
        self, folder: Path, server: Broker | str, store: str, rng: random.Random, way_of_a: str = "", **settings: Any
    ) -> None:
        super().__init__(folder, server, store, **{"wheel_shards": SHARDS, "wheel_lease": LEASE_S, **settings})
        self.rng = rng
        self._ways = {SCHEDULERS[0]: {"wheel_store": way_of_a}} if way_of_a else {}
        self.kills = self.kills_of_holders = 0

    def start_schedulers(self) -> None:
        self.declare_queues()
        first, second = SCHEDULERS
        self.start_scheduler(first)
        wait_until(lambda: len(self.holders()) == self.settings["wheel_shards"], "all shards have holders")
        self.start_scheduler(second)  # at once it could wait too long for the tables that the first one makes

    def start_scheduler(self, name: str) -> None:
        self.beat(name, **self._ways.get(name, {}))

    def shards_of(self, name: str) -> int:
        return list(self.holders().values()).count(self[name].pid)

    def kill_after_a_pause(self) -> None:
        """Kill a scheduler, mostly one that holds a shard, and now and then both."""
        time.sleep(self.rng.uniform(*PAUSES_S))
        holders = set(self.holders().values())
        holding = [name for name in SCHEDULERS if self[name].pid in holders]
        likely = holding if holding and self.rng.random() < 0.8 else SCHEDULERS
        names = SCHEDULERS if self.rng.random() < 0.1 else [self.rng.choice(likely)]
        for name in names:
            self[name].kill()
        for name in names:
            self.start_scheduler(name)
        self.kills += len(names)
        self.kills_of_holders += len(set(names) & set(holding))
