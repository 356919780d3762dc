"""The same world over RabbitMQ: connections that die within a chunk, full queues, missed heartbeats.

A task may reach its queue twice, but the second copy is marked; tasks that a queue refuses wait for it, in order, and
delay no other queue. Also worlds whose producers write half of their messages into the inbox, in packs, as
``schedule_many`` does: a new message and up to two that were sent before, perhaps twice in one pack.
"""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace

from celery_wheel.engine.port import Broker
from celery_wheel.engine.state.lane import MAIN
from celery_wheel.store.message_pack import WHOLE, pack
from celery_wheel.store.model import MESSAGES, STOPPED, Message, Outcome, Position, Row, Unreadable
from tests.simulation.happenings import Happenings
from tests.simulation.model_rabbit import ModelRabbit, RabbitServer
from tests.simulation.model_store import ModelStore
from tests.simulation.world import World

FULL = ("mail", "celery")


class RabbitWorld(World):
    def make_server(self) -> None:
        self.loses = False
        # A holder is idle for the rest of a lease that ran out: no shorter than a few of its steps.
        self.limits = replace(self.limits, lease_ms=self.rng.choice((100, 400)))
        self.rabbit = RabbitServer()
        self.lag_rng = random.Random(self.seed + 3_000_003)

    def make_broker(self) -> Broker:
        return ModelRabbit(
            self.rabbit,
            lambda: self.clock_ms,
            fault=self.broker_fault,
            dies=lambda: not self.quiet and self._fails("connection dies", self.rng, self.fault_rate / 2),
            lags=lambda: self.lag_rng.random() < 0.3,
            confirmed=lambda ids: {row_id for row_id in ids if self.rng.random() < 0.5},
            pushed=self.pushed_to_rabbit,
            refused=self.refused.add,
            trimmed=self.trimmed,
        )

    def wheel(self) -> list[Message | Unreadable]:
        return self.rabbit.wheel

    def queues(self) -> dict[str, list[int]]:
        return self.rabbit.queues

    def wrote(self) -> None:
        return

    def spoil(self, mend: bool = False) -> None:
        self.rabbit.missing ^= {"broken"}
        if mend:
            self.rabbit.missing.clear()

    def takes_nothing(self, row: Row) -> bool:
        """Whether the row's queue refuses it, or did a moment ago, so that the row waits for its next try."""
        return row.route.target in ("broken", *FULL)

    def _happen(self) -> None:
        dice = self.rng.random()
        if dice < 0.01:
            self.rabbit.full ^= {self.rng.choice(FULL)}
            self.log.append(f"rabbitmq: full are {sorted(self.rabbit.full)}")
        elif dice < 0.02:
            scheduler = self.rng.choice(self.schedulers)
            assert isinstance(scheduler.broker, ModelRabbit)
            scheduler.broker.cut_off()
            self.meetings.come("cut off", scheduler.at)
            self.log.append("rabbitmq: a connection is cut off")
        super()._happen()

    def _is_done(self) -> bool:
        return super()._is_done() and not any(self.rabbit.unacked.values())

    def _calm_down(self) -> None:
        self.rabbit.full.clear()
        super()._calm_down()

    def pushed_to_rabbit(self, row: Row, now_ms: int, redelivered: bool) -> None:
        self.redelivered = redelivered
        self.pushed(row, now_ms)

    def _once(self, row: Row) -> None:
        first = self.pushes[row.id] == 1
        if not first:
            self.counts["sent twice"] += 1
        if not first and not self.redelivered:
            raise self._violation(f"row {row.id} was sent twice, and the second is not marked")
        if self.disk.shard(0).rows[row.id].row.lane == STOPPED:
            raise self._violation(f"row {row.id} was pushed although it was retired")
        if self.redelivered:
            return
        if row.position <= self.last.get(row.lane, Position(0, 0)):
            raise self._violation(f"row {row.id} was overtaken")
        self.last[row.lane] = row.position
        if not self.clock_steps:
            self._in_order_of_eta(row)

    def may_pass(self, row: Row, other: Row) -> bool:
        # A pause takes the rows of a queue that has refused some to its own lane, one at a time: at its end the others
        # are before those that have gone.
        lanes = self.disk.shard(0).lanes
        has_gone = lanes[row.lane].scope is None and row.lane != MAIN and lanes[other.lane].scope is not None
        return other.route.target != row.route.target or has_gone

    def _judge_resting(self, row_id: int, outcomes: Sequence[Outcome]) -> None:
        """A task in doubt may be rejected when it is published again."""
        if row_id in self.pushes and self.pushes[row_id] and self.fault_rate:
            return
        super()._judge_resting(row_id, outcomes)


class _Packs(Happenings):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._pack_rng = random.Random(seed + 5_000_003)

    def deliver(self, message: Message) -> None:
        # A task that is sent anew by the inbox, behind the request that names it, is not cancelled.
        if self._pack_rng.random() < 0.5 or self.asking.names(message.task_id):
            super().deliver(message)
            return
        sent = [id_ for id_, one in self.sent.items() if not self.asking.names(one.task_id)]
        ids = [message.envelope_id, *(self._pack_rng.choices(sent, k=self._pack_rng.randrange(3)) if sent else ())]
        self._pack_rng.shuffle(ids)
        ModelStore(self.disk).put_inbox(0, [(MESSAGES, pack([(WHOLE, [id_]) for id_ in ids]))])
        self.counts["packed"] += 1
        self.counts["sent again in a pack"] += len(ids) > 1

    def decode(self, raw: bytes) -> Message:
        message = self.sent.get(raw.decode())
        return super().decode(raw) if message is None else copy.copy(message)


class PackWorld(_Packs, World):
    pass


class RabbitPackWorld(_Packs, RabbitWorld):
    pass
