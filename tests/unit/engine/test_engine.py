"""One engine on the models of store and broker: the life of messages, errors, clocks and commands."""

from unittest import mock

import pytest

from celery_wheel.engine.due_clock import ClockReadings
from celery_wheel.engine.engine import SHOW_MS, Engine
from celery_wheel.engine.round import Limits, Round, run_round
from celery_wheel.engine.state.lane import RETRY_FIRST_MS, Most
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import MAX_SEQ, STOPPED, Message, Position, Unreadable
from celery_wheel.timing import ManualClock
from celery_wheel.values.format import format_utc
from tests.simulation.model_redis import Keys, ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore
from tests.unit.engine.conftest import START_MS, Rig, fail_next_call


def test_the_queue_is_trimmed_only_of_messages_in_the_store(rig: Rig) -> None:
    rig.send("a", 10)
    rig.run("tend")
    for step in rig.engine.ingest():
        if step == "committed":
            assert rig.server.keys.wheel, "it must still be in the queue when it is committed"
    assert rig.server.keys.wheel == []
    assert len(rig.data.rows) == 1


def test_a_repeated_message_is_accepted_once(rig: Rig) -> None:
    message = rig.send("a", 10)
    rig.run(rounds=2)
    rig.server.keys.wheel.append(message)
    rig.run(rounds=2)
    assert rig.server.keys.wheel == []
    assert rig.engine.stats.known == 1
    rig.run(rounds=2, after_ms=10)
    assert rig.pushed == ["a"]


def test_an_unreadable_message_is_rejected_with_its_bytes_and_stops_nothing(rig: Rig) -> None:
    rig.server.keys.wheel.append(Unreadable("00000000-0000-5000-8000-000000000001", "not JSON", b"\xff{"))
    rig.send("a", -1)
    rig.run(rounds=2)
    assert rig.pushed == ["a"]
    shard = rig.data
    (outcome,) = shard.outcomes
    stored = shard.rows[outcome.timer_id]
    assert (outcome.kind, outcome.reason, stored.row.lane) == ("rejected", "not JSON", STOPPED)
    assert isinstance(stored.message, Unreadable)
    assert stored.message.raw == b"\xff{"


def test_the_window_stays_within_its_count_and_nothing_is_lost_by_it() -> None:
    rig = Rig(Limits(window_count=10, load_count=3, intake_count=7))
    for n in range(100):
        rig.send(str(n), 1_000 + n)
    for _ in range(40):
        rig.run()
        assert len(rig.state.window.rows) <= 10
    rig.run(rounds=60, after_ms=2_000)
    assert rig.pushed == [str(n) for n in range(100)]


def test_the_window_stays_within_its_bytes_but_a_larger_message_is_still_published() -> None:
    rig = Rig(Limits(window_bytes=1_000, load_bytes=500))
    for n in range(5):
        rig.send(str(n), 100 + n, body=b"x" * (5_000 if n == 2 else 300))
    rig.run(rounds=20)
    assert rig.state.window.bytes <= 1_000
    rig.run(rounds=20, after_ms=200)
    assert rig.pushed == ["0", "1", "2", "3", "4"]
    assert rig.state.window.bytes == 0


def test_a_task_beyond_the_window_is_only_in_the_store_until_it_is_near() -> None:
    rig = Rig(Limits(window_ms=10_000))
    rig.send("far", 3_600_000)
    rig.run(rounds=3)
    assert rig.state.window.rows == {}
    rig.run(rounds=3, after_ms=3_600_000 - 2_000)
    assert len(rig.state.window.rows) == 1
    rig.run(rounds=2, after_ms=2_000)
    assert rig.pushed == ["far"]


def test_one_settlement_moves_the_offset_over_many_chunks() -> None:
    rig = Rig(Limits(chunk_count=2))
    rig.send_all(map(str, range(10)), 0)
    rig.run("tend", "ingest", "prefetch")
    rig.run("dispatch", rounds=6)
    rig.run("settle")
    shard = rig.data
    assert sum(settlement.count for settlement in shard.settlements) == 10
    assert len(shard.settlements) == 1
    assert shard.lanes[0].offset == max(stored.row.position for stored in shard.rows.values())
    assert not any(shard.tally.values())


def test_an_unanswered_publish_is_repeated_and_the_message_is_sent_once(rig: Rig) -> None:
    rig.send_all(["a", "b"], 0)
    rig.run("tend", "ingest", "prefetch")

    def lose_the_answer(point: str) -> None:
        if point == "after":
            rig.broker.fault = lambda point: None
            raise BrokerError("no answer")

    rig.broker.fault = lose_the_answer
    assert rig.run("dispatch") is Round.FAILED
    rig.run("dispatch")
    assert rig.pushed == ["a", "b"]


def test_a_commit_without_an_answer_ends_the_state_and_the_shard_is_adopted_under_a_new_epoch(rig: Rig) -> None:
    rig.run()
    epoch = rig.state.epoch
    rig.send("a", 0)
    rig.fail_once("before commit")
    assert rig.run("ingest") is Round.FAILED
    assert rig.engine.state is None
    assert rig.engine.held, "a state in doubt is no lost shard"
    rig.run(rounds=3)
    assert rig.state.epoch == epoch + 1
    assert rig.pushed == ["a"]


def test_a_row_too_many_in_the_store_trips_the_guard_and_nothing_is_published(rig: Rig) -> None:
    rig.send("a", 10)
    rig.send("b", 20)
    rig.run(rounds=2)
    rig.state.window.remove(next(iter(rig.state.window.rows)))  # memory forgets a row that the store has
    rig.pass_time(30)
    assert rig.run("dispatch") is Round.FAILED
    assert (rig.pushed, rig.engine.stats.guard_trips, rig.engine.state) == ([], 1, None)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]


def test_a_standby_takes_over_when_the_lease_runs_out_and_the_former_holder_is_fenced(rig: Rig) -> None:
    rig.send("a", 100)
    rig.run(rounds=2)
    former = rig.engine
    rig.engine = rig.new_engine("two")
    rig.run()
    assert not rig.engine.held
    rig.run(rounds=3, after_ms=3_000)
    assert rig.engine.held
    assert rig.pushed == ["a"]
    assert run_round(former.dispatch()) is Round.FAILED
    assert former.state is None
    assert rig.pushed == ["a"]


@pytest.mark.parametrize("delayed", [False, True], ids=["reads after the takeover", "delayed in its read"])
def test_rows_of_a_later_epoch_do_not_enter_the_memory_of_a_former_holder(rig: Rig, delayed: bool) -> None:
    """Their positions are after those that the former holder assigns, and its next row would get one of them."""
    rig.run()
    former = rig.engine
    rig.pass_time(rig.limits.window_ms)
    steps = former.prefetch()
    while delayed and next(steps) != "horizon moved":
        pass
    rig.engine = rig.new_engine("two")
    rig.send_all(["a", "b"], 100)
    rig.run("tend", "ingest")
    rig.pass_time(100)
    prefetched, dispatching = run_round(steps), former.dispatch()
    while next(dispatching, "taken") != "taken":
        pass
    rig.send("c", 0)
    run_round(former.ingest())
    assert (former.stats.guard_trips, prefetched, former.state) == (0, Round.FAILED, None)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b", "c"]


def test_standing_down_settles_and_frees_the_shard_at_once(rig: Rig) -> None:
    rig.send("a", 0)
    rig.run("tend", "ingest", "prefetch", "dispatch")
    run_round(rig.engine.release())
    shard = rig.data
    assert shard.holder is None
    assert shard.lanes[0].offset > Position(0, 0)


def test_nothing_is_dispatched_between_the_last_settlement_and_the_release(rig: Rig) -> None:
    rig.send("a", 0)
    rig.send("b", 10)
    rig.run("tend", "ingest", "prefetch", "dispatch")
    steps = rig.stopped_at("release", "settlement made")
    rig.pass_time(100)
    assert rig.run("dispatch") is Round.FAILED
    run_round(steps)
    assert rig.pushed == ["a"]
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]
    assert rig.pending() == 0


def test_a_long_inbox_does_not_delay_the_wheel_queue() -> None:
    rig = Rig(Limits(inbox_count=3))
    rig.run("tend")
    rig.store.put_inbox(0, [("levitate", bytes([n])) for n in range(7)])
    rig.send("a", 100)
    rig.run("ingest")
    assert "a" in {row.message.task_id for row in rig.data.rows.values() if isinstance(row.message, Message)}
    assert [item.payload for item in rig.data.inbox.values()] == [bytes([n]) for n in range(3, 7)]


class TestCancel:
    def test_a_cancelled_task_is_not_published_and_has_its_actor(self, rig: Rig) -> None:
        rig.send_all(["a", "b"], 100)
        rig.run(rounds=2)
        rig.put("cancel", task_ids=["a"], actor="ann")
        rig.run()
        rig.run(rounds=2, after_ms=100)
        assert rig.pushed == ["b"]
        (outcome,) = rig.data.outcomes
        assert (outcome.kind, outcome.actor) == ("cancelled", "ann")
        assert rig.pending() == 0

    def test_a_task_that_arrives_with_the_command_and_a_task_beyond_the_window_are_cancelled(self) -> None:
        rig = Rig(Limits(window_ms=1_000))
        rig.send("far", 100_000)
        rig.put("cancel", task_ids=["far"])
        rig.run(rounds=2)
        rig.run(rounds=3, after_ms=100_000)
        assert rig.pushed == []

    def test_a_cancel_of_a_published_or_unknown_task_changes_nothing(self, rig: Rig) -> None:
        rig.send("a", 0)
        rig.run(rounds=2)
        for task_id in ("a", "nobody"):
            rig.put("cancel", task_ids=[task_id])
        rig.run()
        assert (rig.pushed, rig.data.outcomes, rig.data.inbox) == (["a"], [], {})

    def put_message(self, rig: Rig, task_id: str) -> None:
        self.sent = {**getattr(self, "sent", {}), task_id: rig.send(task_id, 100, watch=["order:1"])}
        del rig.server.keys.wheel[-1]
        rig.broker.decode = lambda raw: self.sent[raw.decode()]  # type: ignore[method-assign]
        rig.store.put_inbox(0, [("message", task_id.encode())])

    def test_a_task_sent_again_after_its_cancel_is_not_cancelled(self, rig: Rig) -> None:
        rig.send("order", 100)
        rig.run(rounds=2)
        self.put_message(rig, "early")
        rig.put("cancel", task_ids=["order"])
        self.put_message(rig, "order")
        self.put_message(rig, "other")
        rig.put("cancel", task_ids=["early"])
        rig.run("ingest")
        assert [item.payload for item in rig.data.inbox.values()] == [b"order"]
        rig.run("ingest")
        rig.run(rounds=2, after_ms=100)
        assert sorted(rig.pushed) == ["order", "other"]

    @pytest.mark.parametrize("for_good", [False, True], ids=["a cancel", "a revoke"])
    def test_a_task_sent_in_the_inbox_after_its_cancel_is_published_and_a_revoke_is_for_good(
        self, rig: Rig, for_good: bool
    ) -> None:
        """A transaction that postpones a reminder does this, whether the reminder is pending or not."""
        rig.run()
        rig.put("cancel", task_ids=["order"], for_good=for_good)
        self.put_message(rig, "order")
        rig.run(rounds=2)
        rig.run(rounds=2, after_ms=100)
        assert rig.pushed == ([] if for_good else ["order"])

    @pytest.mark.parametrize("kind", ["cancel", "move", "complete"])
    def test_a_command_after_a_message_sent_again_finds_it(self, rig: Rig, kind: str) -> None:
        rig.send("order", 100)
        rig.run(rounds=2)
        rig.put("cancel", task_ids=["order"])
        self.put_message(rig, "order")
        number = rig.put(kind, **({"keys": ["order:1"]} if kind == "complete" else {"task_ids": ["order"]}))
        rig.run("ingest", rounds=2)
        said = {"order:1": {"done": 1, "too_late": 0}} if kind == "complete" else {"order": "done"}
        assert rig.store.answer(number) == said
        rig.run(rounds=2)
        assert rig.pushed == (["order"] if kind == "move" else [])

    @pytest.mark.parametrize("before", ["left", "cancelled"])
    def test_a_result_waits_for_a_later_message_of_the_same_task(self, before: str) -> None:
        """A retry has the id of a published task, and a cancelled task may be sent again."""
        rig = Rig(Limits(intake_count=2))
        rig.send("a", 0 if before == "left" else 100)
        rig.run(rounds=2)
        if before == "cancelled":
            rig.put("cancel", task_ids=["a"])
            rig.run("ingest")
        rig.send_all(map(str, range(5)), 1_000)
        rig.send("a", 100)
        number = rig.put("cancel", task_ids=["a"])
        rig.run("ingest")
        assert rig.store.answer(number) is None
        rig.run("ingest", rounds=3)
        assert rig.store.answer(number) == {"a": "done"}
        rig.run(rounds=2, after_ms=100)
        assert rig.pushed == (["a"] if before == "left" else [])

    def test_a_second_cancel_results_in_already(self, rig: Rig) -> None:
        rig.send_all(["a", "b"], 100)
        rig.run(rounds=2)
        asked = [rig.put("cancel", task_ids=task_ids) for task_ids in (["a"], ["a", "b"])]
        rig.run("ingest", rounds=2)
        assert [rig.store.answer(number) for number in asked] == [{"a": "done"}, {"a": "already", "b": "done"}]
        assert rig.data.tombstones == {}


class TestBrokerRollback:
    def dispatched(self, limits: Limits) -> Rig:
        rig = Rig(limits)
        for n in range(3):
            rig.send(str(n), 0)
            rig.run(rounds=2)
            rig.pass_time(60_000)
        rig.run(rounds=2)
        assert rig.pushed == ["0", "1", "2"]
        return rig

    @pytest.mark.parametrize(
        ("limits", "replayed"),
        [(Limits(), ["0", "1", "2"]), (Limits(rollback_window_ms=90_000), ["2"])],
        ids=["all", "at most the settlements of the rollback window"],
    )
    def test_messages_that_the_broker_lost_are_replayed_also_when_no_other_is_due(
        self, limits: Limits, replayed: list[str]
    ) -> None:
        rig = self.dispatched(limits)
        roll_back(rig)
        rig.run(rounds=3)
        assert rig.pushed == ["0", "1", "2", *replayed]
        assert rig.pending() == 0

    @pytest.mark.parametrize("lost", ["its last writes", "everything"])
    def test_nothing_is_replayed_where_the_replay_is_off(self, lost: str) -> None:
        rig = self.dispatched(Limits(replay_on_rollback=False))
        roll_back(rig) if lost == "its last writes" else empty(rig)
        rig.run(rounds=3)
        assert rig.pushed == ["0", "1", "2"]
        assert (rig.engine.stats.rollbacks, rig.engine.stats.emptied) == (
            (1, 0) if lost == "its last writes" else (0, 1)
        )
        rig.send("next", 0)
        rig.run(rounds=2)
        assert rig.pushed == ["0", "1", "2", "next"]

    def test_an_adoption_that_fails_once_the_loss_is_told_is_repeated(self) -> None:
        """Without a replay the offset is the next call; seeds of the simulation hardly ever fail there."""
        rig = self.dispatched(Limits(replay_on_rollback=False))
        roll_back(rig)
        rig.take_over()
        adopting = rig.stopped_at("tend", "rollback seen")
        fail_next_call(rig, "before")
        assert run_round(adopting) is Round.FAILED
        rig.send("next", 0)
        rig.run(rounds=3)
        assert rig.pushed == ["0", "1", "2", "next"]
        assert rig.engine.stats.rollbacks == 1

    def test_rows_that_a_fenced_holder_did_not_know_do_not_count_as_dispatched(self, rig: Rig) -> None:
        """The broker lost the new holder's epoch, so that the former holder could publish the rows in its memory."""
        rig.send("known", 50)
        rig.run(rounds=2)
        former = rig.engine
        rig.pass_time(40)
        rig.take_over(after_ms=3_000)
        rig.run("tend")
        rig.send("unknown to the former", -1)
        rig.engine, following = former, rig.engine
        steps = rig.stopped_at("dispatch", "guarded")
        rig.engine = following
        rig.run("ingest")
        assert former.state is not None
        rig.server.keys.fence.epoch = former.state.epoch
        run_round(steps)
        assert rig.pushed == ["known"]
        rig.run(rounds=4)
        assert sorted(set(rig.pushed)) == ["known", "unknown to the former"]

    @pytest.mark.parametrize("running", [True, False])
    def test_an_emptied_broker_gets_the_tasks_of_the_window_again(
        self, running: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = self.dispatched(Limits(rollback_window_ms=150_000))
        empty(rig, running)
        rig.run(rounds=3)
        assert rig.pushed == ["0", "1", "2", "1", "2"]
        assert "the broker was emptied" in caplog.text
        until = f"--shard 0 --from <time> --to {format_utc(START_MS + 1)};"
        assert f"; 1 older tasks are not, until you run celery -A proj wheel replay {until}" in caplog.text
        assert (rig.engine.stats.emptied, rig.engine.stats.rollbacks) == (1, 0)
        assert rig.pending() == 0

    def test_a_broker_that_is_emptied_twice_gets_them_twice(self) -> None:
        rig = self.dispatched(Limits())
        for _ in range(2):
            empty(rig)
            rig.run(rounds=3)
        assert rig.pushed == ["0", "1", "2"] * 3
        assert rig.engine.stats.emptied == 2

    def test_a_holder_that_dies_while_it_replays_leaves_the_rest_to_the_next(self) -> None:
        """The step after which it dies does not matter."""
        for steps in range(1, 12):
            rig = self.dispatched(Limits())
            empty(rig, running=False)
            adopting = rig.engine.tend()
            for _ in range(steps):
                next(adopting, None)
            rig.take_over(after_ms=3_000)
            rig.run(rounds=3)
            assert rig.pushed == ["0", "1", "2"] * 2, f"it died after {steps} steps"

    def test_a_broker_is_new_where_nothing_was_dispatched(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.send("later", 3_600_000)
        rig.run(rounds=2)
        empty(rig)
        rig.run(rounds=3)
        assert (rig.engine.stats.emptied, rig.engine.stats.rollbacks, rig.pushed) == (0, 0, [])
        assert "emptied" not in caplog.text

    def test_a_chunk_under_way_when_the_broker_is_emptied_comes_to_its_queue(self) -> None:
        rig = self.dispatched(Limits())
        rig.send("under way", 0)
        rig.run("tend", "ingest", "prefetch")
        steps = rig.stopped_at("dispatch", "guarded")
        empty(rig)
        run_round(steps)
        rig.run(rounds=4)
        assert rig.pushed == ["0", "1", "2", "0", "1", "2", "under way"]


def roll_back(rig: Rig) -> None:
    """Let Redis come back as it was before any chunk."""
    rig.server.keys.fence.offsets[0].offset = Position(0, 1)
    rig.server.keys.fence.last = 0


def empty(rig: Rig, running: bool = True) -> None:
    rig.server.keys = Keys()
    if not running:
        rig.take_over(after_ms=3_000)


class TestClock:
    def test_a_step_back_publishes_nothing_twice_and_delays_no_new_task(self, rig: Rig) -> None:
        rig.true_ms = None
        rig.send("a", 0)
        rig.run(rounds=2)
        rig.clock.step(-4_000)
        rig.send("b", 1_000)
        rig.send("c", 500)
        rig.run(rounds=2)
        rig.run(after_ms=500)
        assert rig.pushed == ["a", "c"]
        rig.run(after_ms=500)
        assert rig.pushed == ["a", "c", "b"]

    @pytest.mark.parametrize("step_ms", [4_000, 100_000, -100_000])
    def test_a_wrong_step_moves_no_task_and_loses_no_shard(self, rig: Rig, step_ms: int) -> None:
        rig.true_ms = lambda: START_MS + rig.clock.monotonic_ms()
        rig.engine = rig.new_engine()
        rig.run()
        rig.send("a", 3_000)
        rig.run()
        rig.clock.step(step_ms)
        rig.run("dispatch", "tend", "prefetch", "dispatch", after_ms=2_999)
        assert rig.pushed == []
        rig.run("prefetch", "dispatch", "tend", after_ms=1)
        assert rig.pushed == ["a"]
        assert rig.engine.held
        rig.run("tend", after_ms=SHOW_MS)
        snapshot = rig.data.snapshot
        assert snapshot is not None
        assert (snapshot["clock_disputed_ms"], snapshot["clock_skew_ms"]) == (step_ms, 0)
        assert rig.data.snapshot_at_ms == rig.clock.now_ms(), "readers compare it with this host's clock"

    @pytest.mark.parametrize("second", ["broker", "store"])
    def test_a_scheduler_that_starts_with_a_wrong_clock_holds_nothing_until_it_is_set_right(
        self, rig: Rig, second: str
    ) -> None:
        """The store's clock is the second clock where the broker has none."""
        rig.clock.step(100_000)
        right = lambda: START_MS + rig.clock.monotonic_ms()  # noqa: E731
        rig.true_ms = right if second == "broker" else lambda: None
        rig.disk.now_ms = right if second == "store" else None
        rig.engine = rig.new_engine()
        rig.run(rounds=2)
        assert not rig.engine.held
        rig.clock.step(-100_000)
        rig.run()
        assert rig.engine.held

    def test_a_silent_broker_is_no_reason_to_trust_the_clock(self, rig: Rig) -> None:
        silent = mock.patch.object(rig.broker, "now_ms", side_effect=BrokerError("away"))
        with silent:
            rig.run(rounds=2)
            assert not rig.engine.held
        rig.run()
        assert rig.engine.held
        with silent:
            rig.run()
        assert rig.engine.held, "it was found right before"


def test_a_task_is_published_when_it_is_due_and_not_before(rig: Rig) -> None:
    rig.send("a", 1_000)
    rig.run(rounds=2)
    rig.run(rounds=2, after_ms=999)
    assert rig.pushed == []
    rig.run(after_ms=1)
    assert rig.pushed == ["a"]


def test_tasks_are_published_by_due_time_and_then_by_arrival(rig: Rig) -> None:
    for task_id, delay_ms in (("late", 30), ("first", 10), ("second", 10), ("overdue", -5_000)):
        rig.send(task_id, delay_ms)
    rig.run(rounds=2)
    rig.run(rounds=2, after_ms=50)
    assert rig.pushed == ["overdue", "first", "second", "late"]


def test_dispatch_waits_until_the_next_row_and_at_most_a_second(rig: Rig) -> None:
    rig.run()
    assert rig.engine.wait_ms() == 1_000
    rig.send("a", 300)
    rig.run(rounds=2)
    assert rig.engine.wait_ms() <= 300
    rig.pass_time(300)
    assert rig.engine.wait_ms() == 0


def test_positions_are_unique_and_grow(rig: Rig) -> None:
    for n in range(20):
        rig.send(str(n), n)
    rig.run(rounds=2)
    seqs = [stored.row.seq for stored in rig.data.rows.values()]
    assert seqs == sorted(set(seqs))
    assert max(seqs) <= rig.data.seq <= MAX_SEQ


@pytest.mark.parametrize("activity", ["ingest", "prefetch", "dispatch", "keep_house"])
def test_nothing_happens_while_the_shard_is_not_held(rig: Rig, activity: str) -> None:
    assert rig.run(activity) is Round.IDLE


def test_a_refusing_destination_is_tried_again_after_a_wait(rig: Rig) -> None:
    rig.send("a", 0)
    rig.run("tend", "ingest", "prefetch")
    term = rig.state
    lane = term.lanes[0]
    with term.active():
        term.window.reap(term.lanes, rig.clock.now_ms())
        chunk = term.take(lane, rig.clock.now_ms(), rig.clock.monotonic_ms(), Most(10, 10**6))
        assert chunk is not None
        lane.refuse(chunk, [row.id for row in chunk.rows], rig.clock.monotonic_ms())
    assert rig.engine.wait_ms() == RETRY_FIRST_MS
    rig.pass_time(RETRY_FIRST_MS)
    assert rig.engine.wait_ms() == 0


def test_engines_that_share_a_reading_of_the_clock_each_keep_their_connections_alive() -> None:
    """As a standby, and as a holder, whose lease is renewed with those of others."""
    disk, clock = Disk(), ManualClock(START_MS)
    readings, kept = ClockReadings(clock), list[int]()
    engines = []
    for shard in range(2):
        disk.shard(shard)
        broker = ModelRedis(RedisServer(), clock.now_ms)
        broker.keep_alive = lambda shard=shard: kept.append(shard)  # type: ignore[method-assign]
        engines.append(Engine(shard, "a", ModelStore(disk), broker, clock, readings=readings))
    for engine in engines:
        engine.wanted = False
        run_round(engine.tend())
    assert kept == [0, 1]
    for engine in engines:
        engine.wanted = True
        run_round(engine.tend())
    kept.clear()
    assert all(engine.lease_call() for engine in engines)
    assert kept == [0, 1]
