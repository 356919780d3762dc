"""A whole installation in one thread from one seed, and the events that happen to it; ``world`` has the oracles.

Each scheduler's activities are the product's own generators; the world advances one of them by one step at a
time, and between any two steps may crash a scheduler, freeze it past its lease, lose an answer, step its clock,
duplicate a message, cancel a task, or make Redis forget its last writes.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.port import Broker
from celery_wheel.engine.round import Limits, Round
from celery_wheel.engine.state.gates import Rate
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.store.model import WAITING, Message, Position, Row, Unreadable
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from celery_wheel.timing import ManualClock
from tests.kit.holder import message
from tests.simulation.asking import Asking, Known
from tests.simulation.claiming import Claiming
from tests.simulation.collapsing import Collapsing
from tests.simulation.gating import Gating
from tests.simulation.loading import Loading
from tests.simulation.meetings import Meetings
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore
from tests.simulation.recalling import Recalling

START_MS = 1_700_000_000_000
ACTIVITIES = ("tend", "ingest", "prefetch", "dispatch", "settle", "announce", "keep_house")
WEIGHTS = (2, 6, 5, 8, 3, 1, 1)
#: Steps that the log leaves out.
DULL = {Round.IDLE, Round.BUSY, "forgotten", "clock compared", "inbox read", "loads read", "snapshot taken"}
DULL |= {"offsets verified", "listens", "reaped", "peeked", "settlement made"}
QUEUES = ("celery", "mail", "broken")
#: Steps that an activity takes without a pause when it runs ahead.
HURRY = 8


class Violation(AssertionError):
    """A promise of the product is broken; the message has the seed and the last steps."""


class Scheduler:
    def __init__(self, world: Happenings, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = ManualClock(world.clock_ms + world.wrong_ms())
        store = ModelStore(world.disk, fault=world.store_fault)
        self.broker = world.make_broker()
        self.broker.decode = world.decode  # type: ignore[method-assign]
        options = world.engine_options()
        self.engine = Engine(0, name, store, self.broker, self.clock, world.limits, on_cancelled=world.tell, **options)
        self.rounds: dict[str, Iterator[str | Round]] = {}
        self.began_ms: dict[str, int] = {}  #: when each round began
        self.at: dict[str, str | Round | None] = {}  #: the step at which each round under way stands
        self.frozen_until_ms = 0
        self.due_offset_ms = self._due_offset_ms()

    def _due_offset_ms(self) -> int:
        return self.engine.clock.now_ms() - self.clock.monotonic_ms()

    def step(self, activity: str) -> str | Round | None:
        round_ = self.rounds.get(activity)
        if round_ is None:
            round_ = self.rounds[activity] = getattr(self.engine, activity)()
            self.began_ms[activity] = self.world.clock_ms
        self.world.acting_since_ms = self.began_ms[activity]
        state, data = self.engine.state, self.world.disk.shard(0)
        self.world.meetings.acts(activity, self.at.get(activity))
        step = self.at[activity] = next(round_, None)
        if step == "clock compared":
            before_ms, self.due_offset_ms = self.due_offset_ms, self._due_offset_ms()
            self.world.counts["clocks disputed"] += self.engine.clock.disputed_ms != 0
            self.world.counts["clocks followed"] += before_ms != self.due_offset_ms
        self.world.gating.stepped(step, state.lanes if state else (), data)
        self.world.stepped(self, activity, step)
        if step is None or isinstance(step, Round):
            del self.rounds[activity], self.at[activity]
        if step not in DULL and not self.world.quiet:
            self.world.log.append(f"{self.world.clock_ms - START_MS:>6} {self.name}.{activity}: {step}")
        state = self.engine.state
        if step == "prefetched" and state is not None and any(r.seq > state.seq for r in state.window.rows.values()):
            raise self.world._violation(f"{self.name} has a row of a later epoch in memory")
        if activity == "ingest" and state is not None and isinstance(step, str):
            self.world.claiming.step(step, data, state)
            if step == "committed":
                self.world.asking.committed(data)
        self.world.claiming.look(data, self.world.pushes)
        return step

    def finish(self, activity: str) -> str | Round | None:
        """Run a round to its end; returns how it ended."""
        end = self.step(activity)
        while activity in self.rounds:
            end = self.step(activity)
        return end


class Happenings(ABC):
    activities: tuple[str, ...] = ACTIVITIES
    weights: tuple[int, ...] = WEIGHTS
    #: The chances that many tasks fall due at once, that Redis loses writes, that clocks step, and that messages have
    #: keys of ``collapsing``; the rates of faults, of which a world takes one. ``focused`` has others.
    density, loss, steps_of_clocks, keys = 0.6, 0.4, 0.2, 0.2
    fault_rates = (0.0, 0.0, 0.02, 0.08)
    hurries = 0.2  #: the chance that an activity runs ahead
    aims: frozenset[tuple[str, str]] = frozenset()  #: cells of ``meetings`` that are to be met

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.dense = rng.random() < self.density  #: whether many tasks fall due at once
        self.steps = 1_400 if self.dense else 300
        self.loses = rng.random() < self.loss  #: whether this Redis may lose writes it had acknowledged
        self.clock_steps = rng.random() < self.steps_of_clocks
        self.fault_rate = rng.choice(self.fault_rates)
        self.clock_ms = START_MS
        self.acting_since_ms = START_MS  #: when the round began that is acting
        self.log: deque[str] = deque(maxlen=400)
        self.disk = Disk(lambda: self.clock_ms)
        self.limits = Limits(
            tick_ms=rng.choice((1, 10)),
            wheel_size=rng.choice((2, 20)),
            window_ms=rng.choice((50, 5_000)),
            window_count=rng.choice((4, 8, 1_000)),
            window_bytes=rng.choice((300, 10**6)),
            chunk_count=rng.choice((1, 3, 1_000)),
            load_count=rng.choice((1, 3, 1_000)),
            intake_count=rng.choice((1, 4, 1_000)),
            lease_ms=rng.choice((10, 20)) if self.dense else 400,
            rollback_window_ms=10**9,
            # A closed lane cannot be put back, so no lane is closed where Redis loses confirmed writes.
            lane_idle_ms=10**10 if self.loses else rng.choice((0, 30, 10**10)),
            rates={"mail": Rate(2, 10)} if rng.random() < 0.2 else {},
            # A clock step, or writes that Redis loses, must not outlast the retention: its real floor is an hour.
            retention_ms=10**10 if self.loses or self.clock_steps else rng.choice((6_000, 10**10)),
        )
        self.make_server()
        # A random source of its own, so that other events do not depend on it.
        collapse_rng = random.Random(seed + 23_002_418)
        self.collapsing = Collapsing(collapse_rng, self.keys, self.dense, self.clock_steps, self._violation)
        self.claiming = Claiming(rng, ModelStore(self.disk), self._violation, self.collapsing)
        self.to_send = [self._message(n) for n in range(60 if self.dense else 20)]
        self.sent: dict[str, Message] = {}
        self.excused = self.claiming.lost  #: messages that Redis lost before they were accepted
        self.pushes: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self.meetings = Meetings()
        self.refused: set[int] = set()
        self.executed: set[int] = set()
        self.told: Counter[int] = Counter()  #: rows that were announced as cancelled
        self.wrongly_told: set[int] = set()
        self.last: dict[int, Position] = {}
        self.fair = self.quiet = False
        self.asking = Asking(rng, ModelStore(self.disk), self._violation)
        self.gating = Gating(rng, ModelStore(self.disk), self._violation)
        self.gates = rng.random() < 0.3  #: whether users pause and resume
        self.loading = Loading(random.Random(~seed), self.disk, self._violation)
        # Random sources of their own, so that other events do not depend on these.
        self.load_rng = random.Random(seed + 1_000_003)
        self.clock_rng = random.Random(seed + 2_000_003)
        self.listen_rng = random.Random(seed + 19_000_003)
        #: Whether the job listen runs; else ingest always peeks, as where the broker cannot wait.
        self.listens = self.listen_rng.random() < 0.5
        self.listen_fault_rng = random.Random(seed + 20_000_003)
        self.flush_rng = random.Random(seed + 5_000_003)
        self.bulk = self.load_rng.random() < 0.3  #: whether jobs write bulk loads
        self.recalling = Recalling(rng, ModelStore(self.disk), self._violation)
        self.recalls = rng.random() < 0.25  #: whether users requeue and replay
        self.schedulers = [Scheduler(self, "a"), Scheduler(self, "b")]

    # -- oracles --------------------------------------------------------------------------------

    @abstractmethod
    def tell(self, rows: Sequence[Row]) -> set[int]:
        """Judge the announcement of cancelled rows; return the ids that were announced."""

    @abstractmethod
    def pushed(self, row: Row, now_ms: int) -> None:
        """Judge a row that a broker has put into its queue."""

    @abstractmethod
    def stepped(self, scheduler: Scheduler, activity: str, step: str | Round | None) -> None:
        """Look at a scheduler after one of its steps."""

    @abstractmethod
    def trimmed(self, arrivals: Sequence[Message | Unreadable]) -> None:
        """Judge messages that were removed from the wheel queue."""

    def engine_options(self) -> dict[str, Any]:
        return {}

    def limit(self, **limits: Any) -> None:
        """Give the schedulers other limits, before anything happens."""
        self.limits = replace(self.limits, **limits)
        for scheduler in self.schedulers:
            scheduler.engine.ctx.limits = self.limits

    # -- the broker --------------------------------------------------------------------------------

    def make_server(self) -> None:
        self.server = RedisServer(keeps_past=12 if self.loses else 0)

    def make_broker(self) -> Broker:
        return ModelRedis(
            self.server,
            lambda: self.clock_ms,
            fault=self.broker_fault,
            pushed=self.pushed,
            refused=self.refused.add,
            trimmed=self.trimmed,
        )

    def wheel(self) -> list[Message | Unreadable]:
        """The wheel queue, oldest first."""
        return self.server.keys.wheel

    def queues(self) -> dict[str, list[int]]:
        return self.server.keys.queues

    def wrote(self) -> None:
        self.server.wrote()

    def spoil(self, mend: bool = False) -> None:
        self.server.wrong_types = set() if self.server.wrong_types or mend else {"broken"}

    def takes_nothing(self, row: Row) -> bool:
        return row.route.queue in self.server.wrong_types or row.route.queue == "broken"

    # -- what happens ------------------------------------------------------------------------------

    def _happen(self) -> None:
        rng, dice = self.rng, self.rng.random()
        if self.aims:
            self._aim()
        self._pass_time(rng.choice((0, 0, 0, 1, 2) if self.dense else (0, 1, 5, 20)))
        if rng.random() < (0.003 if self.dense else 0.03):
            self._pass_time(rng.choice((100, 500, 2_000)))
        if self.bulk and self.load_rng.random() < 0.05:
            self.log.append(self.loading.turn(self.clock_ms))
            self.sent.update(self.loading.committed)
        if dice < 0.10 and self.to_send:
            self._send()
        elif dice < 0.16:
            if self.asking.questions and rng.random() < 0.15:
                self.log.append(f"user: {self.asking.repent()}")
            elif self.recalls and rng.random() < 0.3:
                self.log.append(f"user: {self.recalling.ask(self.disk.shard(0))}")
            elif self.gates and rng.random() < 0.2:
                self.log.append(f"user: {self.gating.turn()}")
            else:
                self._ask()
        elif dice < 0.17:
            self._work()
        elif dice < 0.175:
            self._crash(rng.choice(self.schedulers))
        elif dice < 0.18:
            ms = rng.choice((50, 600, 1_500))
            self._freeze(rng.choice(self.schedulers), ms)
        elif dice < 0.185:
            self._give(rng.choice(self.schedulers))
        elif dice < 0.20 and self.loses:
            self._lose()
        elif dice < 0.21 and self.clock_steps:
            self._step_clock(rng.choice(self.schedulers))
        else:
            self._step()

    def _step(self) -> None:
        awake = [one for one in self.schedulers if one.frozen_until_ms <= self.clock_ms]
        holding = [one for one in awake if one.engine.state is not None]
        if awake:
            # Mostly the holder, or a scheduler that believes to be the holder: a standby has little to do.
            scheduler = self.rng.choice(holding if holding and self.rng.random() < 0.8 else awake)
            activity = self.rng.choices(self.activities, self.weights)[0]
            # Threads seldom take turns: sometimes one runs a whole round while the others stand still in theirs.
            for _ in range(HURRY if self.rng.random() < self.hurries else 1):
                scheduler.step(activity)
            if self.listens and self.listen_rng.random() < 0.2:
                scheduler.step("listen")

    def _pass_time(self, ms: int) -> None:
        self.clock_ms += ms
        for scheduler in self.schedulers:
            scheduler.clock.advance(ms)

    def _message(self, n: int) -> Message:
        rng = self.rng
        delays_ms = (-2_000, 0, 1, 5, 10, 20, 30, 50) if self.dense else (-1, 10, 100, 200, 500, 3_000, 60_000)
        sent = message(
            envelope_id=f"00000000-0000-7000-8000-{n:012d}",
            task_id=f"task-{n}",
            task="tasks.add",
            eta_ms=rng.choice(delays_ms),  # made absolute when it is sent
            created_ms=0,
            routing_key=(queue := rng.choices(QUEUES, (6, 3, 1))[0]),
            queue=queue,
            body=b"x" * rng.choice((1, 100)),
        )
        return self.claiming.dress(sent)

    def _send(self) -> None:
        message = self.to_send.pop()
        message.eta_ms += self.clock_ms
        message.created_ms = self.clock_ms
        self.collapsing.send(message)
        self.wrote()
        self.deliver(message)
        self.sent[message.envelope_id] = message
        if self.rng.random() < 0.1:  # a producer that has not received the answer sends again
            self.wheel().append(copy.copy(message))
        if self.rng.random() < 0.2 and self.fault_rate:
            self.spoil()
        self.log.append(f"producer: {message.task_id} due {message.eta_ms - START_MS}")

    def deliver(self, message: Message) -> None:
        self.wheel().append(message)

    def decode(self, raw: bytes) -> Message:
        """Return the message whose envelope id stands for its raw bytes."""
        return self.loading.decode(raw)

    def _ask(self) -> None:
        if self.rng.random() < 0.3:
            self.log.append(f"user: {self.claiming.ask(self.sent.values())}")
            return
        data = self.disk.shard(0)
        self.asking.collect(data)
        self.recalling.collect(data)
        offset = data.lanes[0].offset
        waiting, left = list[str](), list[str]()
        for *at, row_id in (*data.order.get(0, []), *data.order.get(WAITING, [])):
            stored = data.rows[row_id].message
            assert isinstance(stored, Message)
            (waiting if tuple(at) > offset else left).append(stored.task_id)
        arrivals = [one for one in self.wheel() if isinstance(one, Message) and one.task != RUN_ENDED_TASK]
        queued = [one.task_id for one in arrivals if one.envelope_id not in data.envelopes]
        known = Known([*self.loading.unknown(), *(m.task_id for m in self.to_send)], queued, waiting, left)
        self.log.append(f"user: {self.asking.ask(known, self.clock_ms)}")

    def _work(self) -> None:
        for ids in self.queues().values():
            self.executed.update(ids)
            if ids:
                self.wrote()
                ids.clear()

    def _aim(self) -> None:
        """Let a fault come to a scheduler that stands at a step of a cell which is to be met."""
        faults: dict[str, Callable[[Scheduler], None]] = {"crash": self._crash, "give": self._give}
        faults["freeze"] = lambda scheduler: self._freeze(scheduler, 600)
        if self.clock_steps:
            faults["clock"] = self._step_clock
        for scheduler in self.schedulers:
            standing = {f"{activity}: {step}" for activity, step in scheduler.at.items()}
            for fault, comes in faults.items():
                if not self.aims.isdisjoint((step, fault) for step in standing) and self.rng.random() < 0.5:
                    comes(scheduler)
                    return

    def _crash(self, scheduler: Scheduler) -> None:
        self.log.append(f"{scheduler.name}: crash")
        self.meetings.come("crash", scheduler.at)
        scheduler.broker.close()
        self.schedulers[self.schedulers.index(scheduler)] = Scheduler(self, scheduler.name)

    def _freeze(self, scheduler: Scheduler, ms: int) -> None:
        scheduler.frozen_until_ms = self.clock_ms + ms
        self.meetings.come("freeze", scheduler.at)

    def _give(self, scheduler: Scheduler) -> None:
        """Where there are several shards, a scheduler gives one to another, and may have it back later."""
        self.meetings.come("give", scheduler.at)
        scheduler.engine.wanted = not scheduler.engine.wanted
        self.log.append(f"{scheduler.name}: is {'' if scheduler.engine.wanted else 'not '}to have the shard")

    def _lose(self) -> None:
        writes = self.rng.randrange(1, 12)
        flushed = self.flush_rng.random() < 0.2
        before, now = self.server.flush() if flushed else self.server.lose(writes)
        kept, stored = {id(message) for message in now.wheel}, self.disk.shard(0).envelopes
        gone = [m.envelope_id for m in before.wheel if id(m) not in kept and m.envelope_id not in stored]
        self.excused.update(gone)
        for scheduler in self.schedulers:
            self.meetings.come("broker loses", scheduler.at)
        self.log.append(f"redis: lost {'everything' if flushed else 'writes'}, {len(gone)} messages with them")

    def _step_clock(self, scheduler: Scheduler) -> None:
        """Step the clock of a scheduler, or set it right, as its time service does."""
        right_ms = self.clock_ms - scheduler.clock.now_ms()
        ms = self.rng.choice((-3_000, -300, -60, 60, 300, 3_000, 100_000, right_ms, right_ms))
        scheduler.clock.step(ms)
        self.meetings.come("clock", scheduler.at)
        self.log.append(f"{scheduler.name}: clock stepped by {ms}")

    def wrong_ms(self) -> int:
        """Return the error of a starting scheduler's clock: never ahead, since tasks would then be early by that."""
        return self.clock_rng.choice((0, 0, -60, -3_000, -60_000)) if self.clock_steps else 0

    # -- faults --------------------------------------------------------------------------------------

    def store_fault(self, point: str) -> None:
        if not self.quiet and self._fails(f"store, {point}", self.rng, self.fault_rate / 2):
            raise StoreError(f"simulated, {point}")

    def broker_fault(self, point: str) -> None:
        rng = self.listen_fault_rng if point == "listening" else self.rng
        if not self.quiet and self._fails(f"broker, {point}", rng, self.fault_rate):
            raise BrokerError(f"simulated, {point}")

    def _fails(self, point: str, rng: random.Random, rate: float) -> bool:
        self.meetings.reaches(point)
        if rng.random() >= (0.5 if self.fault_rate and (self.meetings.at, point) in self.aims else rate):
            return False
        self.log.append(f"fault: {point}")
        self.meetings.fails(point)
        return True

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self.seed}: {what}\n  " + "\n  ".join(self.log))
