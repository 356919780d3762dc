"""Walks of pages during random changes, against a plain model: complete, without a line twice, and finite."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_wheel.store.model import HOUR_MS, ORIGIN, STOPPED, LaneState, Position, StoredMessage, TallyKey
from celery_wheel.store.ports import Retention
from celery_wheel.store.ports.pages import Criteria, Page
from celery_wheel.store.sql.browse import pages
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, hour_of, place

pytestmark = pytest.mark.slow

TASKS, QUEUES, LANES = ("app.a", "app.b", "app.rare"), ("x", "y"), (0, 1, 2)
GROUPS = ("tenant:1", "tenant:2")
HOURS = 6


class World:
    """Holders of two shards that make random changes, and a model of the store's content."""

    def __init__(self, store: SqlStore, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.forgetting, self.forgot = seed % 2 == 0, False
        self.holders = [Holder(store, shard) for shard in range(2)]
        self.rows: dict[int, StoredMessage] = {}
        self.shard: dict[int, int] = {}
        self.place: dict[int, tuple[int, Position]] = {}  #: id → lane and position
        self.kind: dict[int, str] = {}
        self.offsets = dict.fromkeys([(shard, lane) for shard in range(2) for lane in LANES], ORIGIN)
        self.left_ms: dict[int, int] = {}  #: the first time that it left
        self.now = NOW
        for holder in self.holders:
            holder.apply(lanes=[LaneState(lane, ORIGIN, ORIGIN, "x" if lane else None) for lane in LANES])

    def settled(self, row_id: int) -> bool:
        lane, position = self.place[row_id]
        return lane != STOPPED and position <= self.offsets[self.shard[row_id], lane]

    def pending(self, criteria: Criteria) -> dict[int, Position]:
        found = {i: p for i, (lane, p) in self.place.items() if lane != STOPPED and not self.settled(i)}
        return {i: p for i, p in found.items() if self.fits(i, criteria)}

    def fits(self, row_id: int, criteria: Criteria) -> bool:
        message, due_ms = self.rows[row_id].message, self.place[row_id][1].due_ms
        return (
            criteria.task in (None, message.task)
            and criteria.queue in (None, message.queue or message.routing_key)
            and criteria.group in (None, message.group)
            and criteria.shard in (None, self.shard[row_id])
            and (criteria.from_ms is None or due_ms >= criteria.from_ms)
            and (criteria.to_ms is None or due_ms < criteria.to_ms)
        )

    def happen(self) -> None:
        self.now += 1_000
        self.rng.choice([self.accept, self.accept, self.settle, self.move, self.retire, self.forget])()

    def accept(self) -> None:
        holder = self.rng.choice(self.holders)
        lane = self.rng.choice(LANES)
        floor = max(NOW, self.offsets[holder.shard, lane].due_ms)
        for _ in range(self.rng.randrange(1, 8)):
            due_ms = floor + self.rng.choice([0, 1, self.rng.randrange(HOURS * HOUR_MS)])
            task = self.rng.choices(TASKS, (10, 10, 1))[0]
            route = {"queue": self.rng.choice([*QUEUES, None]), "routing_key": self.rng.choice(QUEUES)}
            row = holder.row(due_ms, lane=lane, task=task, group=self.rng.choice([None, *GROUPS]), **route)
            holder.apply(rows=[row], tally={hour_of(row): 1})
            self.rows[row.id], self.shard[row.id] = row, holder.shard
            self.place[row.id] = (lane, place(row))

    def settle(self) -> None:
        """Settle some rows of a lane; now and then some dispatched rows again, as a replay does."""
        (shard, lane), offset = self.rng.choice(list(self.offsets.items()))
        mine = sorted((p, i) for i, (at, p) in self.place.items() if at == lane and self.shard[i] == shard)
        ahead = [(p, i) for p, i in mine if p > offset][: self.rng.randrange(1, 10)]
        before = [p for p, _ in mine if p < offset]
        if not ahead:
            return
        holder = self.holders[shard]
        to = ahead[-1][0]
        again = self.rng.choice(before) if before and self.rng.random() < 0.3 else offset
        settlement = holder.settlement(again, to, at_ms=self.now, lane=lane)
        tally: dict[TallyKey, int] = {}
        for position, i in ahead:
            key = self.key(i, position)
            tally[key] = tally.get(key, 0) - 1
            self.left_ms[i] = self.now
        holder.apply(settlements=[settlement], lanes=[LaneState(lane, to, to)], tally=tally)
        self.offsets[shard, lane] = to

    def key(self, row_id: int, position: Position) -> TallyKey:
        return hour_of(self.rows[row_id])._replace(hour=position.due_ms // HOUR_MS)

    def some(self) -> int | None:
        waiting = list(self.pending(Criteria()))
        return self.rng.choice(waiting) if waiting else None

    def move(self) -> None:
        if (row_id := self.some()) is None:
            return
        holder, lane = self.holders[self.shard[row_id]], self.rng.choice(LANES)
        was = self.place[row_id][1]
        due_ms = max(self.rng.choice([was.due_ms, NOW + HOUR_MS]), self.offsets[holder.shard, lane].due_ms)
        move = holder.move(self.rows[row_id], due_ms, lane)
        tally = {self.key(row_id, was): -1}
        key = self.key(row_id, place(move))
        tally[key] = tally.get(key, 0) + 1
        holder.apply(moves=[move], tally=tally)
        self.place[row_id] = (lane, place(move))

    def retire(self) -> None:
        if (row_id := self.some()) is None:
            return
        holder, was = self.holders[self.shard[row_id]], self.place[row_id][1]
        kind = self.rng.choice(["rejected", "cancelled", "expired"])
        move = holder.stop(self.rows[row_id], self.now)
        outcome = holder.outcome(row_id, kind, self.now)
        holder.apply(moves=[move], outcomes=[outcome], tally={self.key(row_id, was): -1})
        self.place[row_id], self.kind[row_id] = (STOPPED, place(move)), kind

    def forget(self) -> None:
        if not self.forgetting or self.rng.random() < 0.7:
            return
        holder = self.rng.choice(self.holders)
        self.forgot |= self.store.forget(holder.shard, holder.epoch, Retention(self.now - 100_000, 2**60), 3) > 0
        for row_id in [i for i in self.place if self.shard[i] == holder.shard]:
            if self.store.browse.detail(row_id) is None:
                assert self.settled(row_id) or row_id in self.kind, "something pending was forgotten"
                del self.place[row_id]


def walk(
    turn: Callable[[Position], Page[Any]], start: Position = ORIGIN, between: Callable[[], object] = lambda: None
) -> list[Any]:
    """Return the lines of all pages; positions shrink from END on. Each ``next`` must advance."""
    found, backward = list[Any](), start == pages.END
    while True:
        page = turn(start)
        places = [one.position for one in page.items]
        assert places == sorted(places, reverse=backward)
        found += page.items
        if page.next is None:
            return found
        assert page.next < start if backward else page.next > start
        start = page.next
        between()


def criteria_of(rng: random.Random) -> Criteria:
    hour = NOW + rng.randrange(HOURS) * HOUR_MS
    return Criteria(
        shard=rng.choice([None, None, 0, 1]),
        task=rng.choice([None, *TASKS]),
        queue=rng.choice([None, *QUEUES]),
        group=rng.choice([None, None, *GROUPS]),
        from_ms=rng.choice([None, -5, 0, hour, hour + 1]),
        to_ms=rng.choice([None, hour + HOUR_MS, 2**62]),
    )


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SCAN": 12, "SCAN_LEAST": 2, "SPANS": 4, "HOURS": (1, 3)}.items():
        monkeypatch.setattr(pages, name, value)


@pytest.mark.parametrize("seed", range(2))  # one forgets, one does not
def test_a_task_that_stays_comes_once_whatever_changes_between_two_pages(sql_store: SqlStore, seed: int) -> None:
    world = World(sql_store, seed)
    for _ in range(40):
        world.happen()
    for _ in range(10):
        wanted, limit = criteria_of(world.rng), world.rng.randrange(1, 6)
        throughout = set(world.pending(wanted).items())

        def between(wanted: Criteria = wanted, throughout: set[tuple[int, Position]] = throughout) -> None:
            world.happen()
            throughout.intersection_update(world.pending(wanted).items())

        found = walk(partial(sql_store.browse.pending, wanted, limit=limit), between=between)
        lines = [one.position for one in found]
        assert len(set(lines)) == len(lines)
        assert throughout <= {(one.id, one.position) for one in found}
        assert all(
            world.fits(one.id, Criteria(task=wanted.task, queue=wanted.queue, group=wanted.group)) for one in found
        )


@pytest.mark.parametrize("seed", range(2))  # one forgets, one does not
def test_without_changes_every_page_equals_the_models(sql_store: SqlStore, seed: int) -> None:
    world = World(sql_store, seed)
    for _ in range(90):
        world.happen()
    for _ in range(10):
        wanted, limit = criteria_of(world.rng), world.rng.randrange(1, 9)
        found = walk(partial(sql_store.browse.pending, wanted, limit=limit))
        assert {one.id: one.position for one in found} == world.pending(wanted)
        left = walk(partial(sql_store.browse.dispatched, wanted, limit=limit), pages.END)
        assert {one.id for one in left} == {i for i in world.place if world.settled(i) and world.fits(i, wanted)}
        if not world.forgot:  # else the time of a dispatch may be unknown, or be that of a replay
            assert {one.id: one.dispatched_ms for one in left} == {one.id: world.left_ms[one.id] for one in left}
    for row_id in world.place:
        one = sql_store.browse.detail(row_id)
        assert one is not None
        waits = "dispatched" if world.settled(row_id) else "pending"
        assert one.state == world.kind.get(row_id, waits)
