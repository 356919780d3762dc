"""Bulk actions in the holder: random walks between stops, continues, kills and failures, on a real store.

Promises: at every moment the counts are those of the store. Each task that was there at the beginning is cancelled and
counted once, or was dispatched; every later task is dispatched.
"""

import json
import random
import uuid
from collections import Counter
from typing import Any

import pytest

from celery_wheel.engine import bulk_action
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.intake.inbox import parse
from celery_wheel.engine.round import run_round
from celery_wheel.errors import StoreError, WheelError
from celery_wheel.store.bulk_model import DISCARDED, FINISHED, RUNNING, STOPPED, BulkPart, BulkProgress
from celery_wheel.store.model import BULK, Change, InboxItem, Unreadable
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql import bulk as sql_bulk
from celery_wheel.store.sql.store import SqlStore
from tests.simulation.model_redis import ModelRedis
from tests.unit.engine.conftest import Rig

ACTION = "0190f000-0000-7000-8000-000000000001"


class BulkRig(Rig):
    """The rig on a SQL store."""

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        super().__init__()

    def new_engine(self, name: str = "one") -> Engine:
        self.broker = ModelRedis(
            self.server, self.clock.now_ms, pushed=lambda row, now_ms: self.pushed.append(self.task_id(row.id))
        )
        return Engine(0, name, self.sql, self.broker, self.clock, self.limits)

    def task_id(self, row_id: int) -> str:
        [row] = self.sql.bulk_task_rows([row_id])
        return row.task_id

    def command(self, do: str, action: str = ACTION, **fields: Any) -> None:
        about = {"bulks": [action], "do": do, "actor": "anna", "reason": "over", "audit": {"origin": "admin"}}
        number = str(uuid.uuid4())
        self.sql.put_commands([(0, BULK, json.dumps({**about, "id": number, **fields}).encode())])

    def begin(self, verb: str = "cancel", action: str = ACTION, **fields: Any) -> None:
        self.command("begin", action, **{"verb": verb, "criteria": {}, **fields})

    def part(self, action: str = ACTION) -> BulkPart:
        found = self.sql.next_bulk(0, action)
        assert found is not None
        return found

    def cancelled(self) -> list[str]:
        return [one.task_id for one in self.sql.browse.outcomes(["cancelled"], Criteria(), limit=10_000).items]

    def ingest(self, rounds: int = 1) -> None:
        self.run("ingest", rounds=rounds, after_ms=1)

    def kill(self) -> None:
        """End the holder, whose memory is gone, and let another engine take the shard."""
        self.engine = self.new_engine("two")
        self.run("tend", rounds=3)


@pytest.fixture
def rig(sql_store: SqlStore) -> BulkRig:
    found = BulkRig(sql_store)
    found.run("tend", rounds=2)
    return found


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_action, "ROWS_AT_ONCE", 3)


def test_an_action_is_counted_and_carried_out_in_steps(rig: BulkRig) -> None:
    rig.send_all([f"t{n}" for n in range(7)], 60_000)
    rig.run()
    rig.begin()
    rig.ingest()
    assert (rig.part().state, rig.part().progress.found, rig.part().progress.is_counted) == (RUNNING, 7, False)
    rig.ingest()
    assert rig.part().progress.is_counted
    for done in (3, 6, 7):
        rig.ingest()
        assert rig.part().progress.results == {"done": done}
        assert len(rig.cancelled()) == done
    rig.ingest()
    assert rig.part().state == FINISHED
    assert not rig.sql.has_arrivals(0), "nothing is left to do"
    assert sum(rig.sql.pending(0).values()) == 0


def test_a_due_task_is_dispatched_between_two_steps(rig: BulkRig) -> None:
    rig.send_all([f"t{n}" for n in range(9)], 60_000)
    rig.send("due", 1_000, queue="other", routing_key="other")
    rig.run()
    rig.begin(criteria={"queue": "celery"})
    rig.ingest(rounds=3)
    assert rig.part().progress.count == 3
    rig.run("prefetch", "dispatch", after_ms=1_000)
    assert rig.pushed == ["due"]
    assert rig.part().progress.count == 3, "the action goes on after it"
    rig.ingest(rounds=3)
    assert rig.part().progress.results == {"done": 9}


@pytest.mark.slow
def test_the_filter_leaves_other_and_later_tasks_out(rig: BulkRig) -> None:
    for n, (key, group, queue) in enumerate((("a", None, "q"), ("b", None, "q"), (None, "g", "q"), (None, None, "r"))):
        rig.send(f"t{n}", 60_000 + n, key=key, group=group, queue=queue, routing_key=queue)
    rig.run()
    now_ms = rig.clock.now_ms()
    for criteria, task_id in (
        ({"key": "a"}, "t0"),
        ({"group": "g"}, "t2"),
        ({"queue": "r", "task": "tasks.add"}, "t3"),
        ({"from_ms": now_ms + 59_000, "to_ms": now_ms + 60_002}, "t1"),
    ):
        rig.begin(action=str(uuid.uuid4()), criteria=criteria)
        rig.ingest(rounds=6)
        assert rig.cancelled()[0] == task_id, criteria
    rig.begin(criteria={"task": "nobody"})
    rig.ingest()
    rig.send("later", 60_000)
    rig.run()
    rig.ingest(rounds=3)
    assert (rig.part().state, rig.part().progress.found) == (FINISHED, 0)
    assert len(rig.cancelled()) == 4


def test_a_filter_with_few_tasks_among_many_looks_at_a_part_at_a_time(
    rig: BulkRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_bulk, "LOOKED_AT", 4)
    rig.send_all([f"t{n}" for n in range(11)], 60_000)
    rig.send("last", 70_000, key="rare")
    rig.run()
    rig.begin(criteria={"key": "rare"})
    looks = 0
    while not rig.sql.next_bulk(0, ACTION) or rig.part().state == RUNNING:
        rig.ingest()
        looks += 1
        assert looks < 20
    assert looks > 6
    assert rig.cancelled() == ["last"]
    assert rig.part().progress.results == {"done": 1}


def test_tasks_that_may_be_published_are_too_late(rig: BulkRig) -> None:
    rig.send_all(["t0", "t1"], 1_000)
    rig.send("t2", 60_000)
    rig.run()
    rig.begin()
    rig.ingest(rounds=2)
    rig.run("prefetch", "dispatch", after_ms=1_000)  # and not settled
    rig.ingest(rounds=2)
    assert rig.part().progress.results == {"too_late": 2, "done": 1}
    assert sorted(rig.part().progress.problems) == [("t0", "too_late"), ("t1", "too_late")]
    assert rig.cancelled() == ["t2"]


def test_a_move_meets_no_task_twice(rig: BulkRig) -> None:
    rig.send_all([f"t{n}" for n in range(8)], 60_000)
    rig.run()
    rig.begin("move", eta_ms=rig.clock.now_ms() + 90_000)
    rig.ingest(rounds=8)
    assert (rig.part().state, rig.part().progress.results) == (FINISHED, {"done": 8})
    rig.begin("move", action=str(uuid.uuid4()))
    rig.ingest(rounds=8)
    rig.run("prefetch", "dispatch", "settle", after_ms=1, rounds=3)
    assert sorted(rig.pushed) == [f"t{n}" for n in range(8)]


@pytest.mark.parametrize("when", ["before commit", "after commit"])
def test_a_kill_in_the_middle_of_a_step_counts_each_task_once(
    rig: BulkRig, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    rig.send_all([f"t{n}" for n in range(10)], 60_000)
    rig.run()
    rig.begin()
    rig.ingest(rounds=3)
    steps = rig.stopped_at("ingest", "step reserved")
    if when == "after commit":
        next(steps)
    rig.kill()
    assert rig.part().progress.count == len(rig.cancelled()) == (6 if when == "after commit" else 3)
    rig.ingest(rounds=6)
    assert (rig.part().state, rig.part().progress.results) == (FINISHED, {"done": 10})
    assert sorted(rig.cancelled()) == sorted(f"t{n}" for n in range(10))


def test_commands_change_only_what_they_may(rig: BulkRig) -> None:
    rig.send_all([f"t{n}" for n in range(9)], 60_000)
    rig.run()
    for do in ("stop", "continue", "discard"):
        rig.command(do)
    rig.ingest()
    assert rig.sql.next_bulk(0, ACTION) is None, "nobody has begun it"
    rig.begin()
    rig.begin("move")  # the same id again
    rig.ingest(rounds=3)
    assert rig.part().request.verb == "cancel"
    for do, state in (
        ("continue", RUNNING),
        ("stop", STOPPED),
        ("stop", STOPPED),
        ("continue", RUNNING),
        ("discard", DISCARDED),
        ("continue", DISCARDED),
    ):
        rig.command(do)
        rig.ingest()
        assert rig.part().state == state, do
    assert rig.part().progress.count == len(rig.cancelled())


def test_begin_and_discard_that_are_read_together_touch_no_task(rig: BulkRig) -> None:
    rig.send_all(["t0"], 60_000)
    rig.run()
    rig.begin()
    rig.command("discard")
    rig.ingest(rounds=4)
    assert (rig.part().state, rig.cancelled()) == (DISCARDED, [])


def test_another_shard_has_no_part_in_an_action_on_one(rig: BulkRig) -> None:
    rig.begin(criteria={"shard": 7})
    rig.ingest()
    assert rig.sql.next_bulk(0, ACTION) is None
    assert not rig.sql.has_arrivals(0)


@pytest.mark.parametrize(
    "wrong",
    [{"do": "burn"}, {"verb": "erase"}, {"verb": "requeue"}, {"criteria": {"key": 1}}, {"criteria": {"keys": "x"}}],
)
def test_a_wrong_command_is_unreadable(wrong: dict[str, Any]) -> None:
    fields = {"bulks": [ACTION], "do": "begin", "verb": "cancel", "criteria": {}, "audit": {"origin": "cli"}, **wrong}
    item = InboxItem(1, BULK, json.dumps(fields).encode())
    [found] = parse(item, lambda raw: Unreadable("", "", raw), lambda name: name)  # type: ignore[misc]
    assert isinstance(found, Unreadable)


def test_the_next_page_of_the_store_is_one_statement_with_what_waits(rig: BulkRig) -> None:
    rig.begin(criteria={"queue": "celery"})
    shown = rig.sql.bulk_shards(ACTION)
    assert [(one.shard, one.asked, one.part.state) for one in shown if one.part] == [
        (one.shard, ("begin",), "asked") for one in shown if one.asked
    ]
    assert rig.sql.bulk_actions(10) == [ACTION]
    rig.ingest()
    first, *_ = rig.sql.bulk_shards(ACTION)
    assert (first.asked, first.holder) == ((), "one")


# -- random walks -----------------------------------------------------------------------------------------


class BulkWalk:
    def __init__(self, rig: BulkRig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.sent: list[str] = []
        self.begun = False

    def send(self) -> None:
        self.sent.append(f"t{len(self.sent)}")
        self.rig.send(self.sent[-1], self.random.choice((5, 500, 5_000, 50_000)))

    def ask(self) -> None:
        if self.begun:
            self.rig.command(self.random.choice(("stop", "continue", "continue")))
        else:
            self.rig.begin()
            self.begun = True

    def step(self) -> None:
        rig, activity = self.rig, self.random.choice(("tend", "ingest", "ingest", "prefetch", "dispatch", "settle"))
        try:
            if self.random.random() < 0.1:
                for _ in zip(getattr(rig.engine, activity)(), range(self.random.randint(1, 9)), strict=False):
                    pass
                rig.kill()
            else:
                run_round(getattr(rig.engine, activity)())
        except WheelError:
            pass
        rig.pass_time(self.random.choice((0, 1, 10, 100)))

    def run(self) -> None:
        for _ in range(self.random.randint(40, 120)):
            self.random.choices((self.send, self.ask, self.step), (3, 1, 10))[0]()
            if (part := self.rig.sql.next_bulk(0, ACTION)) is not None:
                done = part.progress.results.get("done", 0)
                assert done == len(self.rig.cancelled()), "at every moment the count is that of the store"
        self.rig.kill()
        if not self.begun:
            self.ask()
        self.rig.run(rounds=2)
        self.rig.command("continue")
        for _ in range(60):
            self.rig.run(after_ms=2_000)
        self.judge()

    def judge(self) -> None:
        part, cancelled = self.rig.part(), self.rig.cancelled()
        assert part.state == FINISHED
        assert part.progress.results.get("done", 0) == len(cancelled) == len(set(cancelled))
        assert part.progress.count <= part.progress.found
        pushes = Counter(self.rig.pushed)
        assert {one for one in self.sent if pushes[one] != 1} == set(cancelled), "the others are dispatched, once"
        assert not pushes.keys() & set(cancelled)
        assert sum(self.rig.sql.pending(0).values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_counts_are_those_of_the_store(rig: BulkRig, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = BulkWalk(rig, seed)
    real, fails = SqlStore.apply, random.Random(seed)

    def apply(self: SqlStore, shard: int, epoch: int, change: Change) -> None:
        fails_now = change.bulks and fails.random() < 0.1
        if fails_now and fails.random() < 0.5:
            raise StoreError("simulated, before the commit")
        real(self, shard, epoch, change)
        if fails_now:
            raise StoreError("simulated, after the commit")

    monkeypatch.setattr(SqlStore, "apply", apply)
    walk.run()


@pytest.mark.slow
def test_a_holder_that_counts_what_it_did_not_commit_is_found(rig: BulkRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: BulkProgress, results: Any, problems: Any, after: Any) -> None:
        self.results = {"done": self.count + sum(results.values()) + 1}
        self.after = after

    monkeypatch.setattr(BulkProgress, "add", add)
    walk = BulkWalk(rig, 1)
    with pytest.raises(AssertionError):
        walk.run()
