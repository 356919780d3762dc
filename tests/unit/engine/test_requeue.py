"""Rejected tasks are requeued and published tasks are replayed, each with a result."""

from __future__ import annotations

import json
from collections.abc import Sequence

from celery_wheel.engine.round import Limits, run_round
from celery_wheel.store.model import STOPPED
from tests.unit.engine.conftest import Rig

NUMBER = "00000000-0000-4000-8000-000000000001"
HOUR = 3_600_000


def ask(rig: Rig, kind: str, names: Sequence[str], number: str = NUMBER) -> dict[str, str] | None:
    listed = {"replay": "rows", "pause": "gates"}.get(kind, "task_ids")
    asked = {listed: list(names), "id": number, "reason": "why", "actor": "ann"}
    rig.store.put_inbox(0, [(kind, json.dumps(asked).encode())])
    rig.run("ingest")
    return rig.store.answer(number)


def row_of(rig: Rig, task_id: str) -> str:
    return next(str(row_id) for row_id in rig.disk.shard(0).rows if rig.task_id(row_id) == task_id)


def pending(rig: Rig) -> int:
    return sum(rig.store.pending(0).values())


class TestRequeue:
    def rejected(self, rig: Rig) -> None:
        rig.server.wrong_types.add("celery")
        rig.send("bad", 10)
        rig.run()
        rig.pass_time(20)
        rig.run(rounds=2)
        assert rig.store.last_outcomes(0, ["bad"]) == {"bad": "rejected"}
        rig.server.wrong_types.clear()

    def test_a_rejected_task_is_requeued_and_due_now(self, rig: Rig) -> None:
        self.rejected(rig)
        rig.pass_time(100)
        assert ask(rig, "requeue", ["bad"]) == {"bad": "done"}
        assert pending(rig) == 1
        rig.run("dispatch", "settle")
        assert rig.pushed == ["bad"]
        assert pending(rig) == 0
        last = rig.disk.shard(0).outcomes[-1]
        assert (last.kind, last.reason, last.actor) == ("moved", "why", "ann")

    def test_pending_published_and_unknown_tasks_are_not_requeued(self, rig: Rig) -> None:
        rig.send("left", 10)
        rig.send("waits", HOUR)
        rig.run()
        rig.pass_time(20)
        rig.run(rounds=2)
        asked = ["left", "waits", "nobody"]
        assert ask(rig, "requeue", asked) == {"left": "too_late", "waits": "too_late", "nobody": "unknown"}
        rig.run()
        assert rig.pushed == ["left"]

    def test_a_cancelled_task_is_not_requeued(self, rig: Rig) -> None:
        rig.send("one", HOUR)
        rig.run()
        rig.store.put_inbox(0, [("cancel", b'{"task_ids": ["one"]}')])
        rig.run()
        assert ask(rig, "requeue", ["one"]) == {"one": "too_late"}
        assert rig.store.last_outcomes(0, ["one"]) == {"one": "cancelled"}

    def test_a_requeued_task_survives_a_crash(self, rig: Rig) -> None:
        self.rejected(rig)
        assert ask(rig, "requeue", ["bad"]) == {"bad": "done"}
        rig.engine = rig.new_engine("two")
        rig.pass_time(rig.limits.lease_ms + 1)
        rig.run(rounds=3)
        assert rig.pushed == ["bad"]


class TestReplay:
    def left(self, rig: Rig, *task_ids: str) -> None:
        for task_id in task_ids:
            rig.send(task_id, 10)
        rig.run()
        rig.pass_time(20)
        rig.run(rounds=2)
        assert rig.pushed == list(task_ids)

    def test_published_tasks_are_replayed_in_the_order_of_the_command(self, rig: Rig) -> None:
        self.left(rig, "a", "b", "c")
        names = [row_of(rig, "c"), row_of(rig, "a")]
        assert ask(rig, "replay", names) == dict.fromkeys(names, "done")
        assert pending(rig) == 2
        rig.run("dispatch", "settle")
        assert rig.pushed == ["a", "b", "c", "c", "a"]
        assert pending(rig) == 0

    def test_a_replayed_task_delays_no_other_in_a_lane_of_its_own(self, rig: Rig) -> None:
        self.left(rig, "a")
        ask(rig, "replay", [row_of(rig, "a")])
        rig.send("new", 0)
        rig.run()
        assert [lane.redelivered for lane in rig.store.lanes(0)] == [False, True]
        assert rig.disk.shard(0).rows[int(row_of(rig, "new"))].row.lane == 0
        ask(rig, "replay", [row_of(rig, "a")], "00000000-0000-4000-8000-000000000002")
        assert len(rig.store.lanes(0)) == 2

    def test_pending_and_retired_tasks_are_not_replayed(self, rig: Rig) -> None:
        self.left(rig, "a")
        rig.send("waits", HOUR)
        rig.send("rests", HOUR)
        rig.run()
        rig.store.put_inbox(0, [("cancel", b'{"task_ids": ["rests"]}')])
        rig.run()
        waits, rests = row_of(rig, "waits"), row_of(rig, "rests")
        assert ask(rig, "replay", [waits, rests, "7"]) == {waits: "too_late", rests: "too_late", "7": "unknown"}
        assert rig.disk.shard(0).rows[int(rests)].row.lane == STOPPED

    def test_a_replayed_task_cannot_be_cancelled(self, rig: Rig) -> None:
        self.left(rig, "a")
        ask(rig, "replay", [row_of(rig, "a")])
        assert ask(rig, "cancel", ["a"], "00000000-0000-4000-8000-000000000002") == {"a": "too_late"}

    def test_a_row_that_a_later_adoption_may_need_is_not_replayed(self, rig: Rig) -> None:
        """Otherwise the next adoption would find a row missing in the range and assume a loss."""
        rig.send("a", 10)
        rig.run()
        rig.pass_time(20)
        rig.run("dispatch")
        settling = rig.engine.settle()
        next(settling)  # under way to the store: the checksum that goes with b begins before a
        rig.send("b", 0)
        rig.run("ingest", "dispatch")
        run_round(settling)
        row = row_of(rig, "a")
        assert ask(rig, "replay", [row]) == {row: "too_late"}
        rig.engine = rig.new_engine("two")
        rig.pass_time(rig.limits.lease_ms + 1)
        rig.run(rounds=3)
        assert rig.pushed == ["a", "b"]
        assert ask(rig, "replay", [row], "00000000-0000-4000-8000-000000000002") == {row: "done"}

    def test_a_replayed_task_is_published_from_its_lane_after_a_crash(self, rig: Rig) -> None:
        self.left(rig, "a", "b")
        ask(rig, "replay", [row_of(rig, "a")])
        rig.engine = rig.new_engine("two")
        rig.pass_time(rig.limits.lease_ms + 1)
        rig.run(rounds=3)
        assert rig.pushed == ["a", "b", "a"]
        assert pending(rig) == 0


def test_a_replay_of_names_that_are_no_row_numbers_is_unreadable(rig: Rig) -> None:
    rig.run()
    assert ask(rig, "replay", ["a"]) is None
    assert [one.kind for one in rig.disk.shard(0).outcomes] == ["rejected"]


def test_forgotten_history_is_unknown() -> None:
    rig = Rig(limits=Limits(retention_ms=HOUR))
    TestReplay().left(rig, "a")
    row = row_of(rig, "a")
    rig.pass_time(2 * HOUR)
    rig.run("keep_house")
    assert ask(rig, "replay", [row]) == {row: "unknown"}


def test_a_replayed_row_behind_a_gate_is_too_late_to_cancel_also_when_it_is_not_in_memory() -> None:
    """Its lane is not empty: the row is in the store, and due at the horizon."""
    rig = Rig()
    rig.send("left", 0, queue="mail", routing_key="mail")
    rig.run(rounds=3)
    assert rig.pushed == ["left"]
    rig.pass_time(1_000)
    for number, queue in enumerate(("mail", "celery")):
        ask(rig, "pause", [f"queue:{queue}"], f"00000000-0000-4000-8000-00000000002{number}")
    rig.send("held", -10)
    rig.run(rounds=2)
    assert ask(rig, "replay", [row_of(rig, "left")]) == {row_of(rig, "left"): "done"}
    rig.run("dispatch", rounds=2)
    assert rig.engine.state is not None
    rig.engine.state.window.max_count = 1
    rig.engine.state.window.evict(rig.engine.state.lanes)
    rig.engine.state.window.max_count = 2
    rig.send("earlier", -20, queue="mail", routing_key="mail")
    rig.run("ingest", "dispatch", "settle")
    assert ask(rig, "cancel", ["left"], "00000000-0000-4000-8000-000000000030") == {"left": "too_late"}
