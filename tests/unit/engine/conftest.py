"""One engine on the models of store and broker, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits, Round, run_round
from celery_wheel.store.model import Message
from celery_wheel.timing import ManualClock
from tests.kit.holder import message
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore

START_MS = 1_700_000_000_000


@dataclass
class Rig:
    """``run`` does whole rounds; ``pushed`` are the task ids that reached their queue, in order."""

    limits: Limits = field(default_factory=Limits)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    disk: Disk = field(default_factory=Disk)
    server: RedisServer = field(default_factory=lambda: RedisServer(keeps_past=100))
    pushed: list[str] = field(default_factory=list)
    true_ms: Callable[[], int] | None = None
    sent: int = 0

    def __post_init__(self) -> None:
        self.engine = self.new_engine()

    def new_engine(self, name: str = "one") -> Engine:
        self.store = ModelStore(self.disk)
        self.broker = ModelRedis(
            self.server,
            self.true_ms or self.clock.now_ms,
            pushed=lambda row, now_ms: self.pushed.append(self.task_id(row.id)),
        )
        return Engine(0, name, self.store, self.broker, self.clock, self.limits)

    def task_id(self, row_id: int) -> str:
        message = self.disk.shard(0).rows[row_id].message
        assert isinstance(message, Message)
        return message.task_id

    def send(self, task_id: str, delay_ms: int, **changes: object) -> Message:
        self.sent += 1
        now_ms, id_ = self.clock.now_ms(), f"00000000-0000-7000-8000-{self.sent:012d}"
        own = {
            "envelope_id": id_,
            "task_id": task_id,
            "task": "tasks.add",
            "eta_ms": now_ms + delay_ms,
            "created_ms": now_ms,
        }
        sent = message(**{**own, "body": b"body", **changes})
        self.server.keys.wheel.append(sent)
        return sent

    def run(self, *activities: str, rounds: int = 1) -> Round:
        result = Round.IDLE
        for _ in range(rounds):
            for activity in activities or ("tend", "ingest", "prefetch", "dispatch", "settle"):
                result = run_round(getattr(self.engine, activity)())
        return result

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)


@pytest.fixture
def rig() -> Rig:
    return Rig()
