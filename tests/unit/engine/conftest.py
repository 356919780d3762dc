"""One engine on the models of store and broker, with a clock that stands still; ``RabbitRig`` is it on RabbitMQ."""

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits, Round, RoundSteps, run_round
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.store.model import Message
from celery_wheel.timing import ManualClock
from tests.kit.holder import message
from tests.simulation.model_rabbit import ModelRabbit, RabbitServer
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore, ShardData, no_fault

START_MS = 1_700_000_000_000


@dataclass
class Rig:
    """``run`` does whole rounds, after a time; ``pushed`` are the task ids that reached their queue, in order."""

    limits: Limits = field(default_factory=Limits)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    disk: Disk = field(default_factory=Disk)
    server: RedisServer = field(default_factory=lambda: RedisServer(keeps_past=100))
    pushed: list[str] = field(default_factory=list)
    true_ms: Callable[[], int | None] | None = None
    sent: int = 0
    asked: int = 0
    begun: list[RoundSteps] = field(default_factory=list)

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

    def send_all(self, task_ids: Iterable[str], delay_ms: int, **changes: object) -> None:
        for task_id in task_ids:
            self.send(task_id, delay_ms, **changes)

    def fail_once(self, point: str) -> None:
        """Let the store fail the next time that it comes to a point: ``before commit``, ``after commit``, ``read``."""

        def fault(at: str) -> None:
            if at == point:
                self.store.fault = no_fault
                raise StoreError("simulated")

        self.store.fault = fault

    @property
    def data(self) -> ShardData:
        return self.disk.shard(0)

    @property
    def state(self) -> ShardState:
        """Return the memory of the holder; it must hold the shard."""
        assert self.engine.state is not None
        return self.engine.state

    def pending(self) -> int:
        return sum(self.data.tally.values())

    def task_id(self, row_id: int) -> str:
        message = self.data.rows[row_id].message
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

    def put(self, kind: str, **fields: object) -> str:
        """Put a command into the inbox; return its number."""
        self.asked += 1
        number = str(uuid.UUID(int=self.asked))
        self.store.put_inbox(0, [(kind, json.dumps({"id": number, **fields}).encode())])
        return number

    def run(self, *activities: str, rounds: int = 1, after_ms: int = 0) -> Round:
        result = Round.IDLE
        self.pass_time(after_ms)
        for _ in range(rounds):
            for activity in activities or ("tend", "ingest", "prefetch", "dispatch", "settle"):
                result = run_round(getattr(self.engine, activity)())
        return result

    def ask(self, kind: str, **fields: object) -> Any:
        """Carry out a command; return its answer."""
        number = self.put(kind, **fields)
        self.run("ingest")
        return self.store.answer(number)

    def stopped_at(self, activity: str, step: str) -> RoundSteps:
        """Begin a round; return its steps after one of them. A round that a test does not end stays there."""
        steps: RoundSteps = getattr(self.engine, activity)()
        self.begun.append(steps)
        run_until(steps, step)
        return steps

    def take_over(self, name: str = "two", after_ms: int = 10_000) -> None:
        """Let another process have the engine, when the lease of the former one is over."""
        self.engine = self.new_engine(name)
        self.pass_time(after_ms)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)


def fail_next_call(rig: Rig, point: str) -> None:
    """Let the broker fail once, before or after it has carried out a call."""

    def fault(at: str) -> None:
        if at == point:
            rig.broker.fault = no_fault
            raise BrokerError("simulated")

    rig.broker.fault = fault


def run_until(steps: RoundSteps, step: str) -> None:
    while next(steps) != step:
        pass


class RabbitRig(Rig):
    def new_engine(self, name: str = "one") -> Engine:
        self.rabbit = RabbitServer()
        self.sent_as: list[tuple[str, bool]] = []
        self.model = ModelRabbit(
            self.rabbit,
            self.clock.now_ms,
            pushed=lambda row, now_ms, redelivered: self.sent_as.append((self.task_id(row.id), redelivered)),
        )
        self.store = ModelStore(self.disk)
        return Engine(0, name, self.store, self.model, self.clock, self.limits)

    def send_in(self, task_id: str, **changes: object) -> None:
        self.rabbit.wheel.append(self.send(task_id, 0, **changes))

    def try_again(self) -> None:
        self.run("tend", "dispatch", rounds=3, after_ms=5_000)


@pytest.fixture
def rabbit() -> RabbitRig:
    return RabbitRig()


@pytest.fixture
def rig() -> Rig:
    return Rig()
