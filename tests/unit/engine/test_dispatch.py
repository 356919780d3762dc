"""Lanes, which cost nothing while they are idle and close without loss; brokers without an offset, whose second
copies are marked; and drains, which publish rows before they are due.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine.round import Limits, Round, run_round
from celery_wheel.engine.state.gates import Rate
from celery_wheel.engine.state.lane import Lane, Most
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import BrokerError, InvariantBroken, PublishInterrupted
from celery_wheel.store.model import ORIGIN, Position, Row
from celery_wheel.values.text import END_OF_TIME_MS
from tests.simulation.model_store import ModelStore
from tests.unit.engine.conftest import RabbitRig, Rig, fail_next_call

IDLE_MS = 60_000


def limited(names: int, **limits: int) -> Rig:
    """A shard with an empty lane for each of several queues that were limited once."""
    rig = Rig(Limits(rates={f"q{n}": Rate(1, 100) for n in range(names)}, lane_idle_ms=IDLE_MS, **limits))
    for n in range(names):
        rig.send_all([f"{n} {nth}" for nth in range(3)], 0, queue=f"q{n}", routing_key=f"q{n}")
    while len(rig.pushed) < 3 * names:
        rig.run()
        rig.pass_time(50)
    rig.run(rounds=2)
    return rig


def send_later(rig: Rig, queue: str) -> None:
    rig.send_all(["later 0", "later 1", "later 2"], 0, queue=queue, routing_key=queue)


def assert_published_later(rig: Rig) -> None:
    for _ in range(6):
        rig.run(after_ms=100)
    assert rig.pushed[-3:] == ["later 0", "later 1", "later 2"]


def looked_at(rig: Rig) -> int:
    with mock.patch.object(Lane, "next_due_ms", autospec=True, side_effect=Lane.next_due_ms) as asked:
        rig.run("prefetch", "dispatch", "settle")
        rig.engine.wait_ms()
    return asked.call_count


def test_empty_lanes_cost_a_round_nothing() -> None:
    few, many = limited(2), limited(60)
    assert many.engine.state is not None
    assert len(many.state.lanes.all) == 61
    assert looked_at(many) == looked_at(few)


def test_an_idle_lane_stays_open_for_the_rollback_window() -> None:
    assert Limits().lane_idle_ms >= Limits().rollback_window_ms


def test_a_lane_wakes_when_a_row_enters_it() -> None:
    rig = limited(2)
    state = rig.state
    assert list(state.lanes.awake) == [0]
    send_later(rig, "q1")
    rig.run(rounds=2)
    assert [lane.place for lane in state.lanes] == [None, ("queue", "q1")]
    assert_published_later(rig)
    assert list(state.lanes.awake) == [0]


class TestClose:
    def closed(self, names: int = 3) -> Rig:
        rig = limited(names)
        rig.run("tend", "keep_house", after_ms=IDLE_MS - 10_000)
        assert len(rig.store.lanes(0)) == names + 1, "not before their time"
        rig.run("tend", "keep_house", after_ms=10_000)
        return rig

    def test_long_idle_lanes_are_deleted_from_memory_store_and_broker(self) -> None:
        rig = self.closed()
        state = rig.state
        assert [lane.lane for lane in rig.store.lanes(0)] == list(state.lanes.all) == [0]
        assert set(rig.server.keys.fence.offsets) == {0}

    def test_the_next_holder_drops_closed_lanes_after_a_crash(self) -> None:
        rig = limited(3)
        rig.pass_time(IDLE_MS)
        for step in rig.engine.keep_house():
            if step == "applied":
                break
        assert len(rig.server.keys.fence.offsets) == 4
        rig.take_over(after_ms=5_000)
        rig.run(rounds=3)
        assert set(rig.server.keys.fence.offsets) == {0}
        assert rig.engine.stats.rollbacks == 0

    @pytest.mark.parametrize("point", ["before", "after"])
    def test_an_adoption_that_fails_after_the_drop_is_repeated(self, point: str) -> None:
        """The lane that the broker does not know yet comes next; seeds of the simulation hardly ever fail there."""
        rig = limited(3)
        rig.pass_time(IDLE_MS)
        rig.stopped_at("keep_house", "applied")
        send_later(rig, "q1")
        rig.run("ingest", "prefetch", "dispatch")
        rig.take_over(after_ms=5_000)
        adopting = rig.stopped_at("tend", "closed lanes dropped in the broker")
        fail_next_call(rig, point)
        assert run_round(adopting) is Round.FAILED
        assert_published_later(rig)
        assert len(set(rig.pushed)) == len(rig.pushed)
        assert rig.engine.stats.rollbacks == 0

    def test_a_broker_that_does_not_answer_the_drop_ends_no_state(self) -> None:
        rig = limited(3)
        rig.pass_time(IDLE_MS)
        with mock.patch.object(rig.broker, "drop_lanes", side_effect=BrokerError("away")):
            rig.run("tend", "keep_house")
        assert len(rig.store.lanes(0)) == 1

    def test_rows_of_a_closed_lane_count_as_published(self) -> None:
        """The history has them: a cancel is too late, and a replay finds them."""
        rig = self.closed()
        moved = next(one for one in rig.data.rows.values() if one.row.lane > 0)
        row_id, task_id = str(moved.row.id), rig.task_id(moved.row.id)
        assert rig.ask("cancel", task_ids=[task_id]) == {task_id: "too_late"}
        assert rig.ask("replay", rows=[row_id]) == {row_id: "done"}
        rig.run(rounds=2)
        assert rig.pushed.count(task_id) == 2

    def test_a_place_gets_a_new_lane_after_its_lane_was_closed(self) -> None:
        rig = limited(1)
        (before,) = [lane.lane for lane in rig.store.lanes(0) if lane.lane]
        rig.run("tend", "keep_house", after_ms=IDLE_MS)
        send_later(rig, "q0")
        rig.run(rounds=2)
        (after,) = [lane.lane for lane in rig.store.lanes(0) if lane.lane]
        assert after > before
        assert_published_later(rig)

    def test_memory_keeps_nothing_of_closed_lanes(self) -> None:
        """A place that is limited from time to time has a lane of another number each time."""
        assert set(self.closed().state.window._weights) <= {0}

    def test_a_lane_that_wakes_meanwhile_is_not_closed(self) -> None:
        rig = limited(1)
        rig.run("tend", after_ms=IDLE_MS)
        send_later(rig, "q0")
        rig.run("ingest")
        steps = rig.stopped_at("keep_house", "idle lanes found")
        rig.run("dispatch")
        assert list(steps)
        assert len(rig.store.lanes(0)) == 2
        rig.run(rounds=6, after_ms=500)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda lane: lane.reserve(Position(10, 1)),
        lambda lane: lane.settled(Position(11, 0)),
        lambda lane: [lane.take_doubtful([], Position(11, 0)), lane.take({}, 0, Most(1, 1))],
    ],
    ids=["reserve before the watermark", "settle after the watermark", "take twice"],
)
def test_a_lane_reports_a_broken_invariant(misuse: Callable[[Lane], object]) -> None:
    lane = Lane(0, watermark=Position(10, 1))
    with pytest.raises(InvariantBroken):
        misuse(lane)


def test_a_broken_invariant_ends_the_state_and_not_the_process(rig: Rig) -> None:
    rig.send("a", 0)
    rig.run("tend", "ingest", "prefetch")
    rig.state.lanes[0].horizon = ORIGIN  # memory says that it has less than it takes
    rig.run("dispatch")
    assert (rig.engine.state, rig.engine.stats.guard_trips, rig.pushed) == (None, 1, [])
    rig.run(rounds=3)
    assert rig.pushed == ["a"]


def test_the_end_of_a_state_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Each activity that is under way finds that its epoch is over."""
    rig.run()
    rig.send("a", 0)
    rounds = [rig.stopped_at("ingest", "reserved"), rig.engine.keep_house()]
    assert rig.store.acquire(0, "two", rig.clock.now_ms() + 10_000, 2_000)
    caplog.clear()
    for steps in rounds:
        run_round(steps)
    ended = [record.levelname for record in caplog.records if "is adopted anew" in record.getMessage()]
    assert ended == ["ERROR"]


class TestShares:
    """Each lane has its share of the window: rows of one lane keep no row of another out."""

    def paused(self, limits: Limits, body: bytes = b"body") -> Rig:
        """A shard with 200 due tasks that are paused, and 60 tasks that are due in 20 s."""
        rig = Rig(limits)
        rig.run()
        rig.ask("pause", gates=["queue:mail"])
        rig.send_all([f"paused {n}" for n in range(200)], 0, queue="mail", routing_key="mail", body=body)
        rig.run(rounds=10)
        rig.send_all([f"open {n}" for n in range(60)], 20_000, body=body)
        rig.run(rounds=10)
        assert rig.pushed == []
        return rig

    @pytest.mark.parametrize(
        "limits",
        [Limits(window_bytes=200_000, load_bytes=50_000), Limits(window_count=100, load_count=50)],
        ids=["bytes", "count"],
    )
    def test_a_paused_queue_keeps_no_due_row_out_of_the_window(self, limits: Limits) -> None:
        rig = self.paused(limits, b"x" * 2_000)
        state = rig.state
        assert len(state.window.rows) <= limits.window_count
        assert state.window.bytes <= limits.window_bytes
        rig.run(rounds=10, after_ms=20_000)
        assert rig.pushed == [f"open {n}" for n in range(60)]

    def test_many_lanes_over_their_share_are_evicted_in_one_pass(self) -> None:
        """All are over it when another lane wakes: one pass a lane took longer than the lease."""

        class Rows(dict[int, Row]):
            passes = 0

            def values(self) -> Any:
                self.passes += 1
                return super().values()

        rig = limited(60)
        state = rig.state
        for nth in range(5):
            for n in range(60):
                rig.send(f"{n} more {nth}", 0, queue=f"q{n}", routing_key=f"q{n}")
        rig.run("ingest", "dispatch")
        state.window.max_count = 300
        state.window.rows = rows = Rows(state.window.rows)
        before = len(rows)
        state.window.evict(state.lanes)
        assert before - len(rows) > 60
        assert rows.passes == 1

    def test_resumed_rows_do_not_wait_for_room_in_the_main_lane(self) -> None:
        rig = self.paused(Limits(window_count=100, load_count=50))
        rig.ask("resume", gates=["queue:mail"])
        rig.run(rounds=60)
        assert rig.pushed == [f"paused {n}" for n in range(200)]


def test_gates_are_read_while_lanes_open(rig: Rig) -> None:
    """A pause that ends slowly counts the rows of each lane while dispatch opens a lane."""
    rig.run()
    state, count = rig.engine.state, rig.store.count
    assert state is not None

    def counting(*args: object) -> int:
        with state.lock:
            state.lanes.wake(state.lanes.for_place(("queue", f"q{len(state.lanes.all)}")))
        return count(*args)  # type: ignore[arg-type]

    rig.ask("pause", gates=["all:"])
    with mock.patch.object(rig.store, "count", counting):
        assert rig.ask("resume", gates=["all:"], per_ms=1_000) == {"all:": "done"}


def test_a_unit_writes_no_lane_that_it_does_not_touch(rig: Rig) -> None:
    """A lane that another unit opened may be settled further before this unit commits."""
    rig.send("first", 0)
    rig.run()
    state = rig.state
    with state.active():
        state.lanes.wake(state.lanes._open(None))
        work = UnitOfWork(state, rig.clock.now_ms())
        work.save(state.lanes[0])
        work.reserve()
    assert [one.lane for one in work.change.lanes] == [0]


AHEAD = Limits(ahead_ms=END_OF_TIME_MS)
YEAR_MS = 365 * 86_400_000


def test_every_pending_task_is_published_in_order_of_due_time() -> None:
    rig = Rig(limits=AHEAD)
    for n, delay_ms in enumerate([YEAR_MS, 5, 100 * YEAR_MS, 3_600_000]):
        rig.send(f"task {n}", delay_ms)
    rig.run(rounds=3)
    assert rig.pushed == ["task 1", "task 3", "task 0", "task 2"]


def test_a_task_sent_after_a_drain_is_published_at_its_own_time() -> None:
    rig = Rig(limits=AHEAD)
    rig.send("far", YEAR_MS)
    rig.run(rounds=3)
    rig.run("release")
    rig.limits = Limits()
    rig.engine = rig.new_engine("two")
    rig.send("near", 500)
    rig.run(rounds=3)
    assert rig.pushed == ["far"]
    rig.run(rounds=3, after_ms=500)
    assert rig.pushed == ["far", "near"]


def in_doubt(rig: RabbitRig) -> None:
    """Prepare a chunk of two rows and let the holder die: both rows are in doubt."""
    rig.send_in("due soon", eta_ms=rig.clock.now_ms() + 60_000)
    rig.send_in("due later", eta_ms=rig.clock.now_ms() + 120_000)
    rig.run("tend", "ingest", "prefetch")
    for step in rig.engine.dispatch():
        if step == "applied":
            break
    rig.limits = replace(rig.limits, ahead_ms=0)
    wheel = rig.rabbit.wheel
    rig.engine = rig.new_engine("two")
    rig.rabbit.wheel = wheel
    rig.run(rounds=3, after_ms=rig.limits.lease_ms + 1)
    assert rig.engine.held


def test_rows_in_doubt_that_are_not_due_wait_for_their_time() -> None:
    rig = RabbitRig(limits=AHEAD)
    in_doubt(rig)
    assert rig.sent_as == []
    settlements = len(rig.data.settlements)
    rig.run(rounds=5)
    assert len(rig.data.settlements) == settlements, "and nothing is written meanwhile"
    rig.run(rounds=3, after_ms=60_000)
    assert rig.sent_as == [("due soon", True)]
    rig.send_in("new", eta_ms=rig.clock.now_ms())
    rig.run(rounds=3, after_ms=60_000)
    assert sorted(rig.sent_as) == [("due later", True), ("due soon", True), ("new", False)]


def test_another_drain_publishes_rows_in_doubt_at_once() -> None:
    rig = RabbitRig(limits=AHEAD)
    in_doubt(rig)
    rig.run("release")
    rig.limits = AHEAD
    rig.engine = rig.new_engine("three")
    rig.run(rounds=3)
    assert rig.sent_as == [("due soon", True), ("due later", True)]


@pytest.mark.parametrize(("exchange", "marked"), [("", False), ("news", True)])
def test_a_message_refused_by_one_queue_of_an_exchange_is_marked_as_redelivered(
    rabbit: RabbitRig, exchange: str, marked: bool
) -> None:
    rabbit.send_in("a", exchange=exchange, exchange_type="direct")
    rabbit.run("tend", "ingest", "prefetch")
    rabbit.rabbit.full.add(next(iter(rabbit.data.rows.values())).row.route.target)
    rabbit.run("dispatch", rounds=3)
    rabbit.try_again()
    assert rabbit.sent_as == []
    rabbit.rabbit.full.clear()
    rabbit.try_again()
    assert rabbit.sent_as == [("a", marked)]


@pytest.mark.parametrize("seconds", [0, 2], ids=["never full", "full"])
def test_a_queue_that_has_refused_messages_keeps_its_rate(seconds: int) -> None:
    rig = RabbitRig(limits=Limits(rates={"celery": Rate(1, 1_000)}))
    for number in range(40):
        rig.send_in(str(number))
    rig.pass_time(100)
    rig.run("tend")
    rig.run("ingest", rounds=20)
    rig.rabbit.full |= {"celery"} if seconds else set()
    for _ in range(seconds):
        rig.run("tend", "prefetch", "dispatch", "settle", rounds=10, after_ms=1_000)
    rig.rabbit.full.clear()
    for _ in range(10):
        rig.run("tend", "prefetch", "dispatch", "settle", rounds=10, after_ms=1_000)
    assert 10 <= len(rig.sent_as) <= 11 + seconds
    assert [name for name, _ in rig.sent_as] == sorted((name for name, _ in rig.sent_as), key=int)


def test_a_former_holder_does_not_publish_a_chunk_in_doubt_again(
    rabbit: RabbitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine and its monotonic clock stood still, so that the lease seems valid."""
    rabbit.send_in("a")
    rabbit.run("tend", "ingest", "prefetch")
    monkeypatch.setattr(
        rabbit.model, "publish", mock.Mock(side_effect=PublishInterrupted("the connection ended", set()))
    )
    rabbit.run("dispatch")
    monkeypatch.undo()
    now_ms = rabbit.clock.now_ms() + 60_000
    assert ModelStore(rabbit.disk).acquire(0, "two", now_ms, 2_000) is not None
    rabbit.run("dispatch", rounds=3)
    assert rabbit.sent_as == []
    assert rabbit.engine.state is None


def test_a_peek_from_before_the_command_does_not_count(rabbit: RabbitRig) -> None:
    """The round was delayed after its peek; a message that was sent before the command may have arrived since."""
    rabbit.run("tend")
    number = rabbit.put("cancel", task_ids=["a"])
    rabbit.run("ingest")
    steps = rabbit.stopped_at("ingest", "found")
    rabbit.run("tend", after_ms=1_000)
    rabbit.send_in("a")
    list(steps)
    assert rabbit.store.answer(number) is None
    rabbit.run("ingest")
    rabbit.run("tend", "ingest", after_ms=1_000)
    assert rabbit.store.answer(number) == {"a": "done"}
