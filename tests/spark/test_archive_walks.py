"""Random walks over a store: retention removes only archived events, at last all of them; an archive lacks none.

The store's side of the job ``archive``, without Spark: the survey, the events that it reads, and its marks.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.archive import survey_store
from celery_wheel.pipeline.source.options import format_events
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, STOPPED, LaneState, Position, Row
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql import schema
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.spark.stores import read_history
from tests.spark.test_archive import KEY, Event


def _shard_of(_key: str | None, task_id: str, shards: int) -> int:
    return task_id.encode()[-1] % shards


class Walk:
    def __init__(self, seed: int, url: str) -> None:
        self.random, self.url, self.shards, self.now_ms = random.Random(seed), url, 2, NOW
        self.marks: dict[int, int] = {}
        self.noted: dict[int, int] = {}
        self.archived = set[Event]()
        self.name: str | None = None
        self.open()

    def open(self) -> None:
        self.store = open_store(self.url, shards=self.shards, durability="memory")
        self.holders = [Holder(self.store, shard) for shard in range(self.shards)]

    def events(self, **options: str) -> set[Event]:
        return {tuple(row[name] for name in KEY) for row in read_history(self.url, **options)}

    def lane(self, holder: Holder, lane: int | None = None) -> LaneState:
        return self.random.choice([one for one in self.store.lanes(holder.shard) if lane in (None, one.lane)])

    def free_due_ms(self, holder: Holder) -> int:
        return max(self.now_ms, self.lane(holder, 0).offset.due_ms + 1) + self.random.randint(0, 20)

    def pending(self, holder: Holder, lane: LaneState) -> list[Row]:
        return holder.slice(lane.offset, lane=lane.lane)

    def accept(self, holder: Holder) -> None:
        holder.accept(*(self.free_due_ms(holder) for _ in range(self.random.randint(1, 4))))

    def settle(self, holder: Holder) -> None:
        lane = self.lane(holder)
        if rows := self.pending(holder, lane):
            holder.settle(lane.offset, place(self.random.choice(rows)), at_ms=self.now_ms, lane=lane.lane)

    def cancel(self, holder: Holder) -> None:
        if rows := self.pending(holder, self.lane(holder)):
            [row] = self.random.sample(rows, 1)
            rests = holder.stop(row, self.now_ms)
            holder.apply(moves=[rests], outcomes=[holder.outcome(row.id, at_ms=self.now_ms)])

    def replay(self, holder: Holder) -> None:
        """Move a pending, dispatched or resting row to a later time, mostly with an outcome."""
        if rows := holder.slice(lane=self.random.choice([0, STOPPED])):
            row = self.random.choice(rows)
            outcome = holder.outcome(row.id, "moved", self.now_ms)
            move = holder.move(row, self.free_due_ms(holder))
            holder.apply(moves=[move], outcomes=[outcome] * self.random.randint(0, 1))

    def note_late(self, holder: Holder) -> None:
        if rows := holder.slice(lane=self.random.choice([0, STOPPED])):
            holder.apply(outcomes=[holder.outcome(self.random.choice(rows).id, "rejected", self.now_ms)])

    def move_to_lane(self, holder: Holder) -> None:
        lanes = {one.lane: one for one in self.store.lanes(holder.shard)}
        if rows := self.pending(holder, lanes[0]):
            number, row = self.random.randint(1, 2), self.random.choice(rows)
            lane = lanes.get(number, LaneState(number, ORIGIN, ORIGIN, "beside"))
            move = holder.move(row, max(row.due_ms, lane.offset.due_ms + 1), number)
            holder.apply(moves=[move], lanes=[] if number in lanes else [lane])

    def roll_back(self, holder: Holder) -> None:
        lane = self.lane(holder)
        own = (schema.settlement.c.shard == holder.shard, schema.settlement.c.lane == lane.lane)
        last = select(schema.settlement).where(*own).order_by(schema.settlement.c.id.desc()).limit(3)
        with self.store.database.reading() as connection:
            found = connection.execute(last).all()
        if found and (offset := Position(*self.random.choice(found)[3:5])) < lane.offset:
            holder.put_offset(offset, lane.lane)

    def wait(self, _holder: Holder) -> None:
        self.now_ms += self.random.choice([1, 5, 50, -20])

    def forget(self, holder: Holder, before_ms: int | None = None) -> None:
        before, last_ms = self.events(), self.now_ms - self.random.choice([0, 5, 30])
        most, limit = self.random.choice([0, NO_LIMIT]), self.random.choice([1, 3, 1_000])
        self.store.forget(holder.shard, holder.epoch, Retention(before_ms or last_ms, most, archived_only=True), limit)
        assert before - self.events() <= self.archived

    def archive(self, _holder: Holder, *, mark: bool | None = None) -> None:
        survey = survey_store(self.url, self.name, self.marks, self.noted)
        self.archived |= self.events(events=format_events(survey.ranges))
        self.name, self.marks = survey.store, survey.numbers
        assert survey.lost == []
        assert self.events() <= self.archived
        if mark or self.random.random() < 0.8:
            self.store.maintenance.note_archived(self.marks)
            self.noted = self.marks

    def reshard(self, _holder: Holder) -> None:
        for holder in self.holders:
            self.store.release(holder.shard, holder.epoch)
        before, shards = self.events(), self.random.randint(1, 4)
        try:
            self.store.maintenance.reshard(shards, _shard_of, self.now_ms, archived_only=True)
            self.shards = shards
        except StoreUnusable as error:
            if "is not archived" not in str(error):
                raise
        assert before - self.events() <= self.archived
        self.store.close()
        self.open()

    def end(self) -> None:
        for holder in self.holders:
            for lane in self.store.lanes(holder.shard):
                if rows := self.pending(holder, lane):
                    holder.settle(lane.offset, place(rows[-1]), at_ms=self.now_ms, lane=lane.lane)
        self.archive(self.holders[0], mark=True)
        for holder in self.holders:
            while self.store.forget(holder.shard, holder.epoch, Retention(2**53, NO_LIMIT, archived_only=True), 1_000):
                pass
        with self.store.database.reading() as connection:
            tables = (schema.timer, schema.settlement, schema.outcome)
            left = [connection.scalar(select(func.count()).select_from(table)) for table in tables]
            assert (left, connection.scalar(select(func.sum(schema.shard.c.history_bytes)))) == ([0, 0, 0], 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_only_archived_events_are_removed_and_in_the_end_all_are(tmp_path: Path, seed: int) -> None:
    walk = Walk(seed, f"sqlite:///{tmp_path}/wheel.sqlite3")
    steps: dict[Callable[[Holder], None], int] = {
        walk.accept: 10,
        walk.settle: 10,
        walk.cancel: 3,
        walk.replay: 3,
        walk.note_late: 2,
        walk.move_to_lane: 3,
    }
    steps |= {walk.roll_back: 3, walk.wait: 5, walk.forget: 10, walk.archive: 4, walk.reshard: 1}
    try:
        for _ in range(80):
            [step] = walk.random.choices([*steps], [*steps.values()])
            step(walk.random.choice(walk.holders))
        walk.end()
    finally:
        walk.store.close()
