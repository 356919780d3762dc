"""The same random history on a real store and on the simulation's store in memory: every read agrees."""

import random
from collections.abc import Callable

import pytest

from celery_wheel.store.model import (
    ORIGIN,
    STOPPED,
    Change,
    LaneState,
    Move,
    Position,
    Settlement,
    StoredMessage,
    TallyKey,
)
from celery_wheel.store.ports import Retention, Store
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import model
from tests.contract.stores.test_history import note
from tests.kit.holder import END, EVERYTHING, NOW, Holder
from tests.kit.rows import values_of

LANES = (STOPPED, 0, 1, 2)
SPAN = 60


class Pair:
    def __init__(self, real: Store, model_: Store, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stores = (real, model_)
        self.holders = [Holder(store) for store in self.stores]
        self.rows: list[StoredMessage] = []
        self.at_ms = NOW

    def position(self) -> Position:
        return self.rng.choice([ORIGIN, END, Position(NOW + self.rng.randrange(SPAN), self.rng.randrange(2**14))])

    def change(self) -> Change:
        rng, holder = self.rng, self.holders[0]
        change = Change()
        new = [holder.row(NOW + rng.randrange(SPAN), lane=rng.choice(LANES[1:])) for _ in range(rng.randrange(6))]
        for row in new:
            row.message.queue = rng.choice([None, "", "a"])
        change.rows = new
        self.rows += new
        if rng.random() < 0.3:
            change.rejects = [holder.reject(rng.randbytes(8), at_ms=self.at_ms)]
        there = {row.id for lane in LANES for row in self.stores[0].slice(0, lane, *EVERYTHING)}
        messages = [row.id for row in self.rows if row.id in there]
        for row_id in rng.sample(messages, min(len(messages), rng.randrange(3))):
            change.moves.append(Move(row_id, rng.choice(LANES), NOW + rng.randrange(SPAN), holder.seq()))
            change.outcomes.append(holder.outcome(row_id, "moved", self.at_ms))
        if rng.random() < 0.4:
            from_, to = sorted((self.position(), self.position()))
            lane = rng.choice(LANES[1:])
            change.settlements = [Settlement(holder.seq(), lane, from_, to, 1, rng.randrange(200), self.at_ms)]
            change.lanes = [LaneState(lane, *sorted((self.position(), to)))]
        change.tally = {TallyKey(hour, "q", "t"): rng.randrange(1, 5) for hour in range(rng.randrange(3))}
        change.seq = holder.highest_seq
        return change

    def step(self) -> None:
        self.at_ms += self.rng.randrange(20)
        if self.rng.random() < 0.15:
            before, most, limit = NOW + self.rng.randrange(900), self.rng.randrange(3_000), self.rng.randrange(1, 30)
            only, number = self.rng.random() < 0.5, self.rng.randrange(self.stores[0].state(0).seq + 1)
            for store in self.stores:
                note(store, {0: number})
            keep = Retention(before, most, only)
            self.same(lambda store: store.forget(0, store.state(0).epoch, keep, limit))
        else:
            change = self.change()
            for store in self.stores:
                store.apply(0, store.state(0).epoch, change)

    def same(self, ask: Callable[[Store], object]) -> None:
        answers = [ask(store) for store in self.stores]
        assert answers[0] == answers[1]

    def compare(self) -> None:
        rng = self.rng
        for lane in LANES:
            after, upto = sorted((self.position(), self.position()))
            count, weight = rng.randrange(1, 20), rng.randrange(400)
            self.same(lambda store: store.count(0, lane, after, upto))  # noqa: B023 - called at once
            if lane != STOPPED:  # the model keeps a rejected message's bytes elsewhere
                self.same(lambda store: [values_of(row) for row in store.slice(0, lane, after, upto)])  # noqa: B023
                self.same(lambda store: store.summary(0, lane, after, upto))  # noqa: B023
                self.same(lambda store: store.slice_end(0, lane, after, upto, count, weight))  # noqa: B023
                self.same(lambda store: store.settlement_start(0, lane, upto, NOW + count))  # noqa: B023
        self.same(lambda store: store.lanes(0))
        self.same(lambda store: store.pending(0))
        self.same(lambda store: store.state(0).seq)
        envelopes = [row.message.envelope_id for row in self.rows]
        self.same(lambda store: store.known(0, envelopes))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_any_history_reads_the_same(sql_store: SqlStore, seed: int) -> None:
    pair = Pair(sql_store, model()(), seed)
    for _ in range(60):
        pair.step()
        pair.compare()
