"""A whole installation in one thread from one seed: schedulers, store, Redis, network, clock, producers, workers.

Each scheduler's activities are the product's own generators; the world advances one of them by one step at a
time, and between any two steps may crash a scheduler, freeze it past its lease, lose an answer, step its clock,
duplicate a message, cancel a task, or make Redis forget its last writes. The oracles watch from outside:

    on every push       not early; on a Redis that lost nothing: once, never a cancelled one, in order
    on every trim       what goes from the wheel queue is in the store
    at the end          every accepted message was in its queue; the tally says zero; the guard never tripped

``World(seed).run()`` raises ``Violation`` with the seed and the last steps; the same seed gives the same run.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import fields

from celery_wheel.engine.context import Round
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.gates import Rate
from celery_wheel.engine.limits import Limits
from celery_wheel.engine.port import Broker
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.store.model import REST, WITHDRAWN, Message, Position, Row, Unreadable, Withdrawn
from celery_wheel.timing import ManualClock
from tests.simulation.asking import Asking, Known
from tests.simulation.claiming import Claiming
from tests.simulation.gating import GATES, Gating
from tests.simulation.loading import Loading
from tests.simulation.model_loads import ModelLoads
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore
from tests.simulation.recalling import Recalling

START_MS = 1_700_000_000_000
ACTIVITIES = ("tend", "ingest", "load", "dispatch", "settle", "announce", "forget")
WEIGHTS = (2, 6, 5, 8, 3, 1, 1)
#: Steps that say nothing to a reader of the log.
DULL = {
    Round.IDLE,
    Round.BUSY,
    "forgotten",
    "clock compared",
    "inbox read",
    "loads read",
    "snapshot taken",
    "hands compared",
}
DULL |= {"reaped", "peeked", "settlement made"}
QUEUES = ("celery", "mail", "broken")


class Violation(AssertionError):
    """A promise was broken."""


class Scheduler:
    """One beat process: an engine, its rounds under way, and whether it is frozen."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = ManualClock(world.clock_ms)
        store = world.store_class(world.disk, fault=world.store_fault)
        self.broker = world.make_broker()
        self.broker.decode = world.loading.decode  # type: ignore[method-assign]
        self.engine = Engine(0, name, store, self.broker, self.clock, world.limits, on_withdrawn=world.tell)
        self.rounds: dict[str, Iterator[str | Round]] = {}
        self.frozen_until_ms = 0

    def step(self, activity: str) -> None:
        round_ = self.rounds.get(activity)
        if round_ is None:
            round_ = self.rounds[activity] = getattr(self.engine, activity)()
        term = self.engine.term
        step = next(round_, None)
        self.world.gating.stepped(step, term.lanes.values() if term else (), self.world.disk.shard(0))
        if step is None or isinstance(step, Round):
            del self.rounds[activity]
        if step not in DULL and not self.world.quiet:
            self.world.log.append(f"{self.world.clock_ms - START_MS:>6} {self.name}.{activity}: {step}")
        data, term = self.world.disk.shard(0), self.engine.term
        if activity == "ingest" and term is not None and isinstance(step, str):
            self.world.claiming.step(step, data, term)
        self.world.claiming.look(data, self.world.pushes)

    def finish(self, activity: str) -> None:
        """Run a round to its end."""
        self.step(activity)
        while activity in self.rounds:
            self.step(activity)


class World:
    store_class: type[ModelStore] = ModelStore
    redis_class: type[ModelRedis] = ModelRedis
    loads_class: type[ModelLoads] = ModelLoads

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.dense = rng.random() < 0.6  #: whether much is due while the schedulers are at work on it
        self.steps = 1_400 if self.dense else 300
        self.loses = rng.random() < 0.4  #: whether this Redis may lose writes it had acknowledged
        self.clock_steps = rng.random() < 0.2
        self.fault_rate = rng.choice((0.0, 0.0, 0.02, 0.08))
        self.clock_ms = START_MS
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
            # Not where a step of the clock, or a Redis that brings it back, outlasts it: the real floor is an hour.
            rates={"mail": Rate(2, 10)} if rng.random() < 0.2 else {},
            retention_ms=10**10 if self.loses or self.clock_steps else rng.choice((6_000, 10**10)),
        )
        self.make_server()
        self.claiming = Claiming(rng, ModelStore(self.disk), self._violation)
        self.to_send = [self._message(n) for n in range(60 if self.dense else 20)]
        self.sent: dict[str, Message] = {}
        self.excused = self.claiming.lost  #: messages that Redis lost before they were accepted
        self.pushes: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self.refused: set[int] = set()
        self.executed: set[int] = set()
        self.told: Counter[int] = Counter()  #: rows that were announced as cancelled
        self.last: dict[int, Position] = {}
        self.fair = self.quiet = False
        self.asking = Asking(rng, ModelStore(self.disk), self._violation)
        self.gating = Gating(rng, ModelStore(self.disk), self._violation)
        self.gates = rng.random() < 0.3  #: whether somebody pauses and resumes
        self.disk.loads = self.loads_class()
        self.loading = Loading(random.Random(~seed), self.disk, self._violation)
        self.load_rng = random.Random(seed + 1_000_003)  # its own: what else happens does not depend on it
        self.bulk = self.load_rng.random() < 0.3  #: whether somebody loads
        self.recalling = Recalling(rng, ModelStore(self.disk), self._violation)
        self.recalls = rng.random() < 0.25  #: whether somebody lets tasks leave once more
        self.schedulers = [Scheduler(self, "a"), Scheduler(self, "b")]

    def tell(self, rows: Sequence[Withdrawn]) -> set[int]:
        """Whoever keeps the books of tasks; it does not always answer."""
        data = self.disk.shard(0)
        for one in rows:
            if not any(outcome.timer_id == one.row.id and outcome.kind == "cancelled" for outcome in data.outcomes):
                raise self._violation(f"row {one.row.id} was announced as cancelled, and was not")
        seen_to = {one.row.id for one in rows if self.quiet or self.rng.random() < 0.7}
        self.told.update(seen_to)
        return seen_to

    # -- the broker --------------------------------------------------------------------------------

    def make_server(self) -> None:
        self.server = RedisServer(keeps_past=12 if self.loses else 0)

    def make_broker(self) -> Broker:
        return self.redis_class(
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
        """A queue that takes nothing from now on, or does so again."""
        self.server.wrong_types = set() if self.server.wrong_types or mend else {"broken"}

    def takes_nothing(self, row: Row) -> bool:
        return row.queue in self.server.wrong_types or row.queue == "broken"

    # -- what happens ------------------------------------------------------------------------------

    def run(self) -> World:
        try:
            for _ in range(self.steps):
                self._happen()
            self._calm_down()
            self._judge()
        except Violation:
            raise
        except Exception as error:
            raise self._violation(f"{type(error).__name__}: {error}") from error
        return self

    def happened(self) -> Counter[str]:
        """What came about in this run, to see that the oracles had something to judge."""
        found: Counter[str] = Counter()
        for scheduler in self.schedulers:
            stats = scheduler.engine.stats
            found.update({field.name: getattr(stats, field.name) for field in fields(stats)})
        found["lanes beside the main one"] = len(self.disk.shard(0).lanes) - 1
        found["lost by redis"] = len(self.excused)
        found["told"] = len(self.told)
        found["told twice"] = sum(n > 1 for n in self.told.values())
        found["taken back"] = len(self.asking.taken_back)
        found.update(self.claiming.counts)
        found.update(self.recalling.counts)
        found.update(verdict for one in self.asking.questions.values() for verdict in one.verdicts.values())
        found.update(self.loading.counts)
        found.update(self.counts)
        return found

    def _happen(self) -> None:
        rng, dice = self.rng, self.rng.random()
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
            rng.choice(self.schedulers).frozen_until_ms = self.clock_ms + rng.choice((50, 600, 1_500))
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
        holding = [one for one in awake if one.engine.term is not None]
        if awake:
            # Mostly the holder, or whoever believes it is: the other has little to do.
            scheduler = self.rng.choice(holding if holding and self.rng.random() < 0.8 else awake)
            scheduler.step(self.rng.choices(ACTIVITIES, WEIGHTS)[0])

    def _pass_time(self, ms: int) -> None:
        self.clock_ms += ms
        for scheduler in self.schedulers:
            scheduler.clock.advance(ms)

    def _message(self, n: int) -> Message:
        rng = self.rng
        delays_ms = (-2_000, 0, 1, 5, 10, 20, 30, 50) if self.dense else (-1, 10, 100, 200, 500, 3_000, 60_000)
        envelope_id = f"00000000-0000-7000-8000-{n:012d}"
        message = Message(
            envelope_id=envelope_id,
            task_id=f"task-{n}",
            task="tasks.add",
            eta_ms=rng.choice(delays_ms),  # made absolute when it is sent
            created_ms=0,
            exchange="",
            exchange_type="direct",
            routing_key=(queue := rng.choices(QUEUES, (6, 3, 1))[0]),
            queue=queue,
            priority=None,
            key=None,
            expires_ms=None,
            queue_expires_ms=None,
            headers=b"{}",
            properties=b"{}",
            body=b"x" * rng.choice((1, 100)),
        )
        return self.claiming.dress(message)

    def _send(self) -> None:
        message = self.to_send.pop()
        message.eta_ms += self.clock_ms
        message.created_ms = self.clock_ms
        self.wrote()
        self.wheel().append(message)
        self.sent[message.envelope_id] = message
        if self.rng.random() < 0.1:  # a producer that did not hear the answer sends again
            self.wheel().append(copy.copy(message))
        if self.rng.random() < 0.2 and self.fault_rate:
            self.spoil()
        self.log.append(f"producer: {message.task_id} due {message.eta_ms - START_MS}")

    def _ask(self) -> None:
        if self.rng.random() < 0.3:
            self.log.append(f"user: {self.claiming.ask(self.sent.values())}")
            return
        data = self.disk.shard(0)
        self.asking.collect(data)
        hand = data.lanes[0].hand
        waiting, left = list[str](), list[str]()
        for *at, row_id in data.order.get(0, []):
            message = data.rows[row_id].message
            assert isinstance(message, Message)
            (waiting if tuple(at) > hand else left).append(message.task_id)
        queued = [m.task_id for m in self.wheel() if isinstance(m, Message) and m.envelope_id not in data.envelopes]
        unsent = [*self.loading.unknown(), *(m.task_id for m in self.to_send)]
        known = Known(unsent, queued, waiting, left)
        self.log.append(f"user: {self.asking.ask(known, self.clock_ms)}")

    def _work(self) -> None:
        for ids in self.queues().values():
            self.executed.update(ids)
            if ids:
                self.wrote()
                ids.clear()

    def _crash(self, scheduler: Scheduler) -> None:
        self.log.append(f"{scheduler.name}: crash")
        scheduler.broker.close()
        self.schedulers[self.schedulers.index(scheduler)] = Scheduler(self, scheduler.name)

    def _give(self, scheduler: Scheduler) -> None:
        """Where there are several shards, a scheduler gives one to another, and may have it back later."""
        scheduler.engine.wanted = not scheduler.engine.wanted
        self.log.append(f"{scheduler.name}: is {'' if scheduler.engine.wanted else 'not '}to have the shard")

    def _lose(self) -> None:
        before, now = self.server.lose(self.rng.randrange(1, 12))
        kept, stored = {id(message) for message in now.wheel}, self.disk.shard(0).envelopes
        gone = [m.envelope_id for m in before.wheel if id(m) not in kept and m.envelope_id not in stored]
        self.excused.update(gone)
        self.log.append(f"redis: lost writes, {len(gone)} messages with them")

    def _step_clock(self, scheduler: Scheduler) -> None:
        ms = self.rng.choice((-3_000, -300, 300, 3_000, 100_000))
        scheduler.clock.step(ms)
        self.log.append(f"{scheduler.name}: clock stepped by {ms}")

    # -- faults --------------------------------------------------------------------------------------

    def store_fault(self, point: str) -> None:
        if not self.quiet and self.rng.random() < self.fault_rate / 2:
            self.log.append(f"fault: store, {point}")
            raise StoreError(f"simulated, {point}")

    def broker_fault(self, point: str) -> None:
        if not self.quiet and self.rng.random() < self.fault_rate:
            self.log.append(f"fault: redis, {point}")
            raise BrokerError(f"simulated, {point}")

    # -- oracles -------------------------------------------------------------------------------------

    def pushed(self, row: Row, now_ms: int) -> None:
        self.gating.pushed(row)
        self.pushes[row.id] = self.pushes.get(row.id, 0) + 1
        self.log.append(f"redis: push of row {row.id} at {row.due_ms - START_MS}, lane {row.lane}")
        if now_ms < row.eta_ms and not self.clock_steps:  # it may be stepped back between take and publish
            raise self._violation(f"row {row.id} was pushed {row.eta_ms - now_ms} ms early")
        slack_ms = self.limits.max_clock_step_ms + self.limits.max_clock_skew_ms if self.clock_steps else 0
        if self.clock_ms + slack_ms < row.eta_ms:
            raise self._violation(f"row {row.id} was pushed early by the true time")
        if not self.quiet:
            waited = self.disk.shard(0).rows[row.id].accepted_ms < row.eta_ms
            self.counts["pushed while busy, after a wait" if waited else "pushed while busy"] += 1
        if self.loses:
            return
        self._once(row)
        if not self.clock_steps:
            self._in_order_of_eta(row)

    def _once(self, row: Row) -> None:
        if self.pushes[row.id] > self.recalling.times(self.disk.shard(0), row.id):
            raise self._violation(f"row {row.id} was pushed once too often, and Redis had lost nothing")
        if self.disk.shard(0).rows[row.id].row.lane == REST:
            raise self._violation(f"row {row.id} was pushed although it had been laid to rest")
        if row.position <= self.last.get(row.lane, Position(0, 0)):
            raise self._violation(f"row {row.id} was overtaken")
        self.last[row.lane] = row.position

    def _in_order_of_eta(self, row: Row) -> None:
        """Of the tasks that were accepted before they were due, none that is due earlier is waiting still."""
        rows = self.disk.shard(0).rows
        self.asking.collect(self.disk.shard(0))
        if rows[row.id].accepted_ms >= row.eta_ms or row.id in self.asking.moved:
            return
        for other in rows.values():
            earlier = (other.row.eta_ms, other.row.id) < (row.eta_ms, row.id)
            waits = other.row.lane != REST and other.row.id not in self.pushes
            waits &= other.row.id not in self.asking.moved
            waits &= other.row.target == row.target or not (self.gating.used or self.limits.rates)
            if earlier and waits and not self.takes_nothing(other.row) and other.accepted_ms < other.row.eta_ms:
                raise self._violation(f"row {row.id} overtook row {other.row.id}")

    def trimmed(self, arrivals: Sequence[Message | Unreadable]) -> None:
        stored = self.disk.shard(0).envelopes
        for arrival in arrivals:
            if arrival.envelope_id not in stored:
                raise self._violation(f"{arrival.envelope_id} went from the wheel queue and is not in the store")

    def _calm_down(self) -> None:
        """No more faults; everything that is waiting gets the time it needs."""
        self.quiet = True
        self.spoil(mend=True)
        while self.to_send:
            self._send()
        self.loading.calm()
        self.sent.update(self.loading.committed)
        for gate in GATES if self.gates else ():
            self.gating.ask("resume", gate)
        for scheduler in self.schedulers:
            scheduler.frozen_until_ms = 0
            scheduler.engine.wanted = True
            scheduler.clock.step(self.clock_ms - scheduler.clock.now_ms())
        for n in range(1_000):
            for scheduler in self.schedulers:
                for activity in ACTIVITIES:
                    scheduler.finish(activity)
            self.asking.collect(self.disk.shard(0))
            self._pass_time(10 if n < 30 else 2_000)
            if n % 5 == 4 and self._is_done():
                return
        raise self._violation("the installation did not come to rest: " + ", ".join(self._missing()))

    def _is_done(self) -> bool:
        data = self.disk.shard(0)
        settled = all(
            not self.disk.shard(0).order.get(lane.lane, []) or data.order[lane.lane][-1][:2] <= lane.hand
            for lane in data.lanes.values()
        )
        untold = any(one.kind == WITHDRAWN for one in data.watches)
        return settled and not self.wheel() and not data.inbox and not untold and self.loading.is_done()

    def _missing(self) -> list[str]:
        data = self.disk.shard(0)
        return [
            stored.message.envelope_id
            for stored in data.rows.values()
            if stored.row.lane != REST and stored.row.position > data.lanes[stored.row.lane].hand
        ] + [arrival.envelope_id for arrival in self.wheel()]

    def _judge(self) -> None:
        data = self.disk.shard(0)
        ever = {**data.forgotten, **data.rows}
        accepted = {stored.message.envelope_id for stored in ever.values()}
        for envelope_id in self.sent:
            if envelope_id not in accepted and envelope_id not in self.excused:
                raise self._violation(f"{envelope_id} was never accepted")
        in_queue = {row_id for ids in self.queues().values() for row_id in ids}
        for row_id, stored in ever.items():
            if stored.row.lane == REST:
                self._judge_resting(row_id)
            elif row_id not in in_queue and row_id not in self.executed:
                raise self._violation(f"row {row_id} was accepted and never reached its queue")
        self.asking.judge(data, self.pushes, {self.sent[one].task_id for one in self.excused}, self.loses)
        self.claiming.judge()
        self.loading.judge(accepted)
        self.recalling.judge(data, self.pushes, exactly=not self.loses)
        if any(data.tally.values()):
            raise self._violation(f"the tally is {data.tally} when nothing is pending")
        for scheduler in self.schedulers:
            if scheduler.engine.stats.guard_trips:
                raise self._violation("the guard tripped")
            if scheduler.engine.stats.rollbacks and not self.loses:
                raise self._violation("a rollback was seen, and Redis had lost nothing")

    def _judge_resting(self, row_id: int) -> None:
        """What does not leave has a reason, and did not leave."""
        if self.recalling.recalled(self.disk.shard(0))[row_id]:
            return  # it was refused once more
        outcomes = [one for one in self.disk.shard(0).outcomes if one.timer_id == row_id and one.kind != "moved"]
        outcome = outcomes[0].kind if outcomes else None
        if row_id in self.pushes and not self.loses:  # what Redis lost may be refused or cancelled when it leaves again
            raise self._violation(f"row {row_id} rests ({outcome}) and was pushed")
        if outcome == "cancelled" and not self.told[row_id] and self._ends_with(row_id):
            raise self._violation(f"row {row_id} was cancelled, and nobody was told")
        if outcome == "rejected" and outcomes[0].actor == "broker" and row_id not in self.refused:
            raise self._violation(f"row {row_id} rests as rejected, and Redis never refused it")

    def _ends_with(self, row_id: int) -> bool:
        """Whether it is the last message of its task."""
        rows = self.disk.shard(0).rows
        ids = {row: one.message.task_id for row, one in rows.items() if isinstance(one.message, Message)}
        return row_id in ids and not any(row > row_id and task_id == ids[row_id] for row, task_id in ids.items())

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self.seed}: {what}\n  " + "\n  ".join(self.log))
