"""Commands: requeue and replay, keys that complete tasks, a disputed wall clock that the operator accepts, limits of
groups, requests that are withdrawn while a holder carries them out, and the audit log's part of a person's command.
"""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_wheel.engine.engine import SHOW_MS
from celery_wheel.engine.intake.inbox import MAX_SKEW_MS, audit_entries, parse
from celery_wheel.engine.round import Limits, run_round
from celery_wheel.store.model import (
    ACCEPT_CLOCK,
    MAX_RUNTIME_MS,
    STOPPED,
    UNANNOUNCED,
    GroupLimit,
    InboxItem,
    Position,
    Unreadable,
    Watch,
)
from celery_wheel.store.schedule_model import RUN_ENDED_TASK, RunReport
from celery_wheel.values.ids import uuid7
from tests.unit.engine.conftest import START_MS, RabbitRig, Rig
from tests.unit.engine.test_intake import states_by_task

NUMBER = "00000000-0000-4000-8000-000000000001"
HOUR = 3_600_000


def ask(rig: Rig, kind: str, names: Sequence[str]) -> dict[str, str] | None:
    listed = {"replay": "rows", "pause": "gates"}.get(kind, "task_ids")
    found: dict[str, str] | None = rig.ask(kind, **{listed: list(names)}, reason="why", actor="ann")
    return found


def row_of(rig: Rig, task_id: str) -> str:
    return next(str(row_id) for row_id in rig.data.rows if rig.task_id(row_id) == task_id)


class TestRequeue:
    def test_a_rejected_task_is_requeued_and_due_now(self, rig: Rig) -> None:
        rig.server.wrong_types.add("celery")
        rig.send("bad", 10)
        rig.run()
        rig.run(rounds=2, after_ms=20)
        assert rig.store.last_outcomes(0, ["bad"]) == {"bad": "rejected"}
        rig.server.wrong_types.clear()
        rig.pass_time(100)
        assert ask(rig, "requeue", ["bad"]) == {"bad": "done"}
        assert rig.pending() == 1
        rig.run("dispatch", "settle")
        assert rig.pushed == ["bad"]
        assert rig.pending() == 0
        last = rig.data.outcomes[-1]
        assert (last.kind, last.reason, last.actor) == ("moved", "why", "ann")

    def test_pending_published_cancelled_and_unknown_tasks_are_not_requeued(self, rig: Rig) -> None:
        rig.send("left", 10)
        rig.send_all(["waits", "rests"], HOUR)
        rig.run()
        rig.put("cancel", task_ids=["rests"])
        rig.run(rounds=2, after_ms=20)
        expected = {"left": "too_late", "waits": "too_late", "rests": "too_late", "nobody": "unknown"}
        assert ask(rig, "requeue", list(expected)) == expected
        assert rig.store.last_outcomes(0, ["rests"]) == {"rests": "cancelled"}
        rig.run()
        assert rig.pushed == ["left"]


class TestReplay:
    def left(self, rig: Rig, *task_ids: str) -> None:
        rig.send_all(task_ids, 10)
        rig.run()
        rig.run(rounds=2, after_ms=20)
        assert rig.pushed == list(task_ids)

    def test_published_tasks_are_replayed_in_the_order_of_the_command(self, rig: Rig) -> None:
        self.left(rig, "a", "b", "c")
        names = [row_of(rig, "c"), row_of(rig, "a")]
        assert ask(rig, "replay", names) == dict.fromkeys(names, "done")
        assert rig.pending() == 2
        rig.run("dispatch", "settle")
        assert rig.pushed == ["a", "b", "c", "c", "a"]
        assert rig.pending() == 0

    def test_a_replayed_task_delays_no_other_in_a_lane_of_its_own(self, rig: Rig) -> None:
        self.left(rig, "a")
        ask(rig, "replay", [row_of(rig, "a")])
        rig.send("new", 0)
        rig.run()
        assert [lane.redelivered for lane in rig.store.lanes(0)] == [False, True]
        assert rig.data.rows[int(row_of(rig, "new"))].row.lane == 0
        ask(rig, "replay", [row_of(rig, "a")])
        assert len(rig.store.lanes(0)) == 2

    def test_pending_and_retired_tasks_are_not_replayed(self, rig: Rig) -> None:
        self.left(rig, "a")
        rig.send_all(["waits", "rests"], HOUR)
        rig.run()
        rig.put("cancel", task_ids=["rests"])
        rig.run()
        waits, rests = row_of(rig, "waits"), row_of(rig, "rests")
        assert ask(rig, "replay", [waits, rests, "7"]) == {waits: "too_late", rests: "too_late", "7": "unknown"}
        assert rig.data.rows[int(rests)].row.lane == STOPPED

    def test_a_replayed_task_cannot_be_cancelled(self, rig: Rig) -> None:
        self.left(rig, "a")
        ask(rig, "replay", [row_of(rig, "a")])
        assert ask(rig, "cancel", ["a"]) == {"a": "too_late"}

    def test_a_row_that_a_later_adoption_may_need_is_not_replayed(self, rig: Rig) -> None:
        """Otherwise the next adoption would find a row missing in the range and assume a loss."""
        rig.send("a", 10)
        rig.run()
        rig.run("dispatch", after_ms=20)
        settling = rig.engine.settle()
        next(settling)  # under way to the store: the checksum that goes with b begins before a
        rig.send("b", 0)
        rig.run("ingest", "dispatch")
        run_round(settling)
        row = row_of(rig, "a")
        assert ask(rig, "replay", [row]) == {row: "too_late"}
        rig.take_over(after_ms=rig.limits.lease_ms + 1)
        rig.run(rounds=3)
        assert rig.pushed == ["a", "b"]
        assert ask(rig, "replay", [row]) == {row: "done"}


def test_forgotten_history_is_unknown() -> None:
    rig = Rig(limits=Limits(retention_ms=HOUR))
    TestReplay().left(rig, "a")
    row = row_of(rig, "a")
    rig.run("keep_house", after_ms=2 * HOUR)
    assert ask(rig, "replay", [row]) == {row: "unknown"}


def test_a_replayed_row_behind_a_gate_is_too_late_to_cancel_also_when_it_is_not_in_memory(rig: Rig) -> None:
    """Its lane is not empty: the row is in the store, and due at the horizon."""
    rig.send("left", 0, queue="mail", routing_key="mail")
    rig.run(rounds=3)
    assert rig.pushed == ["left"]
    rig.pass_time(1_000)
    for queue in ("mail", "celery"):
        ask(rig, "pause", [f"queue:{queue}"])
    rig.send("held", -10)
    rig.run(rounds=2)
    assert ask(rig, "replay", [row_of(rig, "left")]) == {row_of(rig, "left"): "done"}
    rig.run("dispatch", rounds=2)
    rig.state.window.max_count = 1
    rig.state.window.evict(rig.state.lanes)
    rig.state.window.max_count = 2
    rig.send("earlier", -20, queue="mail", routing_key="mail")
    rig.run("ingest", "dispatch", "settle")
    assert ask(rig, "cancel", ["left"]) == {"left": "too_late"}


def ask_to_complete(rig: Rig, *keys: str, how: str = "cancel", **words: str) -> str:
    return rig.put("complete", keys=keys, how=how, actor="shop", **words)


def complete(rig: Rig, *keys: str, **how: str) -> dict[str, tuple[int, int]]:
    """Complete keys; return the answer: key → done and too late."""
    number = ask_to_complete(rig, *keys, **how)
    rig.run("ingest")
    return answer(rig, number)


def answer(rig: Rig, number: str) -> dict[str, tuple[int, int]]:
    found: dict[str, Any] = rig.store.answer(number) or {}
    return {key: (counts["done"], counts["too_late"]) for key, counts in found.items()}


def watches(rig: Rig) -> list[str]:
    return [one.key for one in rig.data.watches if one.kind != UNANNOUNCED]


def test_watches_are_in_the_store_with_the_message(rig: Rig) -> None:
    rig.send("a", 100, watch=["order:42", "cart:7", "order:42"])
    rig.run(rounds=2)
    [row_id] = rig.data.rows
    assert rig.data.watches == [Watch("watch", "order:42", row_id), Watch("watch", "cart:7", row_id)]


def test_a_task_that_watches_the_key_is_cancelled_with_a_reason(rig: Rig) -> None:
    rig.send("a", 100, watch=["order:42"])
    rig.send("b", 100, watch=["order:43"])
    rig.send("c", 100, watch=["order:1", "order:42"])
    rig.run(rounds=2)
    assert complete(rig, "order:42", reason="paid") == {"order:42": (2, 0)}
    rig.run(rounds=2, after_ms=100)
    assert rig.pushed == ["b"]
    assert [(one.kind, one.reason, one.actor) for one in rig.data.outcomes] == [
        ("cancelled", "completed by the key 'order:42': paid", "shop")
    ] * 2
    assert watches(rig) == ["order:43"]
    assert rig.pending() == 0
    assert rig.engine.stats.completed == 2


def test_a_task_that_watches_the_key_runs_at_once_and_is_completed_once(rig: Rig) -> None:
    rig.send("a", 10**7, watch=["order:42"], unique="u")
    rig.send("b", 20, watch=["order:43"])
    rig.run(rounds=2)
    number = ask_to_complete(rig, "order:42", how="run")
    rig.run("ingest")
    assert complete(rig, "order:42") == {"order:42": (0, 0)}, "it is on its way, and waits for nothing any more"
    rig.run(rounds=2)
    assert answer(rig, number) == {"order:42": (1, 0)}
    assert rig.pushed == ["a"]
    assert watches(rig) == ["u", "order:43"], "until it left it is the only one of its unique key"
    assert rig.data.outcomes[0].reason == "completed by the key 'order:42'"


def test_a_task_that_watches_two_of_the_keys_counts_for_both_and_is_cancelled_once(rig: Rig) -> None:
    rig.send("a", 100, watch=["x", "y"])
    rig.run(rounds=2)
    assert complete(rig, "x", "y", "z") == {"x": (1, 0), "y": (1, 0), "z": (0, 0)}
    assert len(rig.data.outcomes) == 1


def test_a_published_task_is_too_late_once_and_then_watches_nothing(rig: Rig) -> None:
    rig.send("a", 0, watch=["k"])
    rig.send("b", 100, watch=["k"])
    rig.run(rounds=2)
    assert complete(rig, "k") == {"k": (1, 1)}
    assert rig.pushed == ["a"]
    assert watches(rig) == []
    assert complete(rig, "k") == {"k": (0, 0)}


def test_a_task_in_flight_is_too_late_and_still_watches(rig: Rig) -> None:
    rig.send("a", 0, watch=["k"])
    rig.run("tend", "ingest", "prefetch")
    dispatch = rig.stopped_at("dispatch", "taken")
    assert complete(rig, "k") == {"k": (0, 1)}
    assert watches(rig) == ["k"], "whether it left is not known yet"
    run_round(dispatch)
    rig.run("settle")
    assert rig.pushed == ["a"]
    assert rig.data.outcomes == []


def test_a_key_may_be_used_again(rig: Rig) -> None:
    for _ in range(3):
        rig.send(f"task-{rig.sent}", 100, watch=["k"])
        rig.run(rounds=2)
        assert complete(rig, "k") == {"k": (1, 0)}
    assert watches(rig) == []


def test_messages_sent_before_are_accepted_before_a_key_is_completed() -> None:
    rig = Rig(Limits(intake_count=2))
    rig.run()
    rig.send_all(map(str, range(5)), 100, watch=["k"])
    number = ask_to_complete(rig, "k")
    rig.run("ingest")
    assert answer(rig, number) == {}
    rig.run("ingest", rounds=3)
    assert answer(rig, number) == {"k": (5, 0)}


def test_a_task_beyond_the_window_is_completed_too() -> None:
    rig = Rig(Limits(window_ms=1_000))
    rig.send("far", 100_000, watch=["k"])
    rig.send("farther", 200_000, watch=["l"])
    rig.run(rounds=2)
    assert complete(rig, "k") == {"k": (1, 0)}
    assert complete(rig, "l", how="run") == {"l": (1, 0)}
    rig.run(rounds=2)
    assert rig.pushed == ["farther"]
    rig.run(rounds=3, after_ms=300_000)
    assert rig.pushed == ["farther"]


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_a_commit_of_unknown_result_completes_once(rig: Rig, point: str) -> None:
    rig.send("a", 10_000, watch=["k"])
    rig.run(rounds=2)
    number = ask_to_complete(rig, "k")
    rig.fail_once(point)
    rig.run("ingest")
    rig.run(rounds=2)
    assert answer(rig, number) == {"k": (1, 0)}
    assert states_by_task(rig) == {"a": "cancelled"}
    assert len(rig.data.outcomes) == 1


def test_cancelled_and_replaced_tasks_watch_nothing(rig: Rig) -> None:
    rig.send("a", 100, watch=["k"])
    rig.send("b", 100, watch=["k"], unique="u")
    rig.run(rounds=2)
    rig.put("cancel", task_ids=["a"])
    rig.send("c", 100, watch=["k"], unique="u", on_conflict="replace")
    rig.run()
    assert watches(rig) == ["k", "u"]
    rig.send("d", 100, watch=["k"], unique="u")
    rig.run()
    assert watches(rig) == ["k", "u"], "what rests from the start claims nothing"
    assert complete(rig, "k") == {"k": (1, 0)}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("levitate", "{}"),
        ("cancel", "{"),
        ("cancel", '{"task_ids": [7]}'),
        *(
            ("cancel", command % text)
            for command in (
                '{"task_ids": ["%s"]}',
                '{"task_ids": ["a"], "actor": "%s"}',
                '{"task_ids": ["a"], "reason": "%s"}',
            )
            for text in (
                r"a\u0000b",
                r"\ud800",
            )  # PostgreSQL refuses them, and every later state would read the item again
        ),
        ("replay", '{"rows": ["a"]}'),
        ("complete", '{"keys": []}'),
        ("complete", '{"keys": ["a"], "how": "stop"}'),
        ("complete", '{"task_ids": ["a"]}'),
        ("complete", '{"keys": [7]}'),
        ("complete", r'{"keys": ["\u0000"]}'),
        ("resume", "{}"),
        ("resume", '{"gates": []}'),
        ("resume", '{"gates": ["mail"]}'),
        ("resume", '{"gates": [5]}'),
        ("resume", '{"gates": ["all:"], "per_ms": 0}'),
        *(
            ("limit", f'{{"groups": {groups}, "limits": {limits}}}')
            for groups, limits in (
                ("[]", "null"),
                ('["%s"]' % ("a" * 600), "null"),
                ('["a"]', "{}"),
                ('["a"]', "5"),
                ('["a"]', '{"concurrency": 0}'),
                ('["a"]', '{"weight": 3000000000}'),
                ('["a"]', '{"rate_count": 5}'),
            )
        ),
        ("limit", '{"groups": ["a"]}'),
        ("schedule", '{"do": "explode", "names": ["a"]}'),
        ("schedule", '{"do": "create", "names": ["a"]}'),
        ("schedule", '{"do": "pause", "names": []}'),
        ("schedule", '{"do": "backfill", "names": ["a"], "from_ms": 1}'),
        ("schedule", '{"do": "backfill", "names": ["a"], "from_ms": 1, "upto_ms": 2, "overlap": "explode"}'),
        ("schedule", '{"do": "create", "definitions": {"a": {}}, "source": ""}'),
        ("run_ended", '{"run": -1}'),
        ("run_ended", '{"run": true}'),
        ("run_ended", '{"slot": 9223372036854775808}'),
        ("run_ended", '{"slot": null, "run": 5}'),
    ],
)
def test_a_command_that_cannot_be_read_is_kept_as_rejected(rig: Rig, kind: str, payload: str) -> None:
    rig.store.put_inbox(0, [(kind, payload.encode())])
    rig.run(rounds=2)
    (outcome,) = rig.data.outcomes
    assert outcome.kind == "rejected"
    assert "cannot be read" in outcome.reason
    assert outcome.reason.encode().decode().isprintable()
    assert rig.data.inbox == {}
    assert {stored.row.lane for stored in rig.data.rows.values()} == {STOPPED}


SECOND_CLOCKS: dict[str, Callable[[Rig], int | None]] = {
    "none": lambda rig: None,
    "right": lambda rig: START_MS + rig.clock.monotonic_ms(),
}


def rig_with(second_clock: str, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig()
    monkeypatch.setattr(rig.broker, "now_ms", lambda: SECOND_CLOCKS[second_clock](rig))
    rig.run()
    return rig


def ask_for_the_clock(rig: Rig) -> int:
    payload = {"clocks": ["wall"], "id": NUMBER, "actor": "root", "reason": "NTP"}
    return rig.store.put_command(0, ACCEPT_CLOCK, json.dumps(payload).encode())


@pytest.mark.parametrize(
    ("second_clock", "step_ms", "answer", "due_in_ms"),
    [
        ("none", 29_000, "accepted", 1_000),
        ("none", -30_000, "accepted", 60_000),
        ("none", 0, "agreed", 30_000),
        ("right", 30_000, "refused", 30_000),
        ("right", -4_000, "accepted", 34_000),
    ],
)
def test_due_time_follows_a_wall_clock_that_is_accepted(
    monkeypatch: pytest.MonkeyPatch, second_clock: str, step_ms: int, answer: str, due_in_ms: int
) -> None:
    rig = rig_with(second_clock, monkeypatch)
    rig.send("a", 30_000)
    rig.run()
    rig.clock.step(step_ms)
    rig.run()
    assert rig.engine.clock.disputed_ms == step_ms
    rig.engine.ctx.wake.clear()
    ask_for_the_clock(rig)
    rig.run("ingest")
    assert rig.store.answer(NUMBER) == {"wall": answer}
    assert rig.engine.ctx.wake.is_set() == (answer == "accepted")
    assert rig.engine.clock.disputed_ms == (0 if answer != "refused" else step_ms)
    for passed_ms in (due_in_ms - 1, 1):
        assert rig.pushed == []
        rig.run("prefetch", "dispatch", after_ms=passed_ms)
    assert rig.pushed == ["a"]


def test_a_withdrawn_request_moves_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with("none", monkeypatch)
    rig.clock.step(30_000)
    rig.run("tend")
    item = ask_for_the_clock(rig)
    steps = rig.stopped_at("ingest", "peeked")
    assert rig.store.withdraw(item, (0, ACCEPT_CLOCK, rig.store.command_payload(item) or b""))
    run_round(steps)
    assert rig.engine.clock.disputed_ms == 30_000
    assert rig.store.answer(NUMBER) is None


def test_an_accepted_clock_is_logged_with_its_actor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_with("none", monkeypatch)
    rig.clock.step(30_000)
    rig.run("tend")
    caplog.set_level(logging.WARNING)
    caplog.clear()
    ask_for_the_clock(rig)
    rig.run("ingest")
    assert [record.getMessage() for record in caplog.records] == [
        "shard 0: due time follows the wall clock by +30000 ms, as root accepted"
    ]


def interrupted(rig: Rig, kind: str, payload: dict[str, object], at: str) -> bool:
    """Ingest a command, and withdraw the request at a step; return whether that was in time."""
    item = rig.store.put_command(0, kind, json.dumps({"id": NUMBER, **payload}).encode())
    in_time = None
    for step in rig.engine.ingest():
        if step == at:
            in_time = rig.store.withdraw(item, (0, kind, rig.store.command_payload(item) or b""))
    assert in_time is not None, f"there was no step {at!r}"
    return in_time


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("cancel", {"task_ids": ["a", "far"]}),
        ("move", {"task_ids": ["a", "far"], "eta_ms": None}),
        ("complete", {"keys": ["order:1"]}),
        ("complete", {"keys": ["order:1"], "how": "run"}),
    ],
)
@pytest.mark.parametrize("at", ["inbox read", "peeked", "reserved"])
def test_a_withdrawn_request_changes_nothing(rig: Rig, kind: str, payload: dict[str, object], at: str) -> None:
    rig.send("a", 100, watch=["order:1"])
    rig.send("b", 100)
    rig.send("far", 400_000, watch=["order:1"])
    rig.run(rounds=2)
    assert interrupted(rig, kind, payload, at)
    assert rig.store.answer(NUMBER) is None
    assert rig.data.outcomes == []
    rig.run(rounds=2)
    assert rig.pushed == []
    rig.run(rounds=2, after_ms=100)
    assert rig.pushed == ["a", "b"]
    rig.run(rounds=3, after_ms=400_000)
    assert rig.pushed == ["a", "b", "far"]
    assert rig.engine.stats.adoptions == 1, "that is no reason to drop what is in memory"
    assert rig.pending() == 0


def test_a_withdrawn_cancel_keeps_no_later_task(rig: Rig) -> None:
    rig.run()
    assert interrupted(rig, "cancel", {"task_ids": ["later"]}, "reserved")
    rig.send("later", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["later"]


@pytest.mark.parametrize(
    ("paused", "kind", "at"),
    [
        (False, "pause", "inbox read"),
        (False, "pause", "gates closed"),
        (True, "pause", "gates closed"),
        (True, "resume", "gates closed"),
    ],
)
def test_a_withdrawn_pause_or_resume_leaves_the_gate_as_it_was(rig: Rig, paused: bool, kind: str, at: str) -> None:
    rig.run()
    if paused:
        rig.ask("pause", gates=["queue:celery"])
    assert interrupted(rig, kind, {"gates": ["queue:celery"]}, at)
    rig.send("a", 0)
    rig.run(rounds=3)
    assert (rig.pushed, len(rig.store.gates(0))) == (([], 1) if paused else (["a"], 0))


def test_a_withdrawn_limit_limits_nothing(rig: Rig) -> None:
    rig.run()
    assert interrupted(rig, "limit", {"groups": ["tenant:1"], "limits": {"concurrency": 1}}, "reserved")
    rig.send_all("ab", 0, group="tenant:1")
    rig.run(rounds=3)
    assert (rig.pushed, rig.store.limits(0)) == (["a", "b"], [])
    rig.ask("limit", groups=["tenant:1"], limits={"concurrency": 1})
    assert interrupted(rig, "limit", {"groups": ["tenant:1"], "limits": None}, "reserved")
    rig.send_all("cd", 0, group="tenant:1")
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b", "c"]


class TestLimits:
    def limit(self, rig: Rig, concurrency: int | None, *groups: str) -> dict[str, str]:
        limits = None if concurrency is None else {"concurrency": concurrency}
        found: dict[str, str] = rig.ask("limit", groups=groups, limits=limits, actor="anna")
        return found

    def test_a_limit_holds_at_once_also_for_rows_that_wait(self, rig: Rig) -> None:
        rig.run()
        assert self.limit(rig, 1, "tenant:1") == {"tenant:1": "done"}
        rig.send_all("abcd", 0, group="tenant:1")
        rig.send("other", 0, group="tenant:2")
        rig.run(rounds=3)
        assert sorted(rig.pushed) == ["a", "other"]
        rig.engine.ctx.freed.clear()
        assert self.limit(rig, 3, "tenant:1") == {"tenant:1": "done"}
        assert rig.engine.ctx.freed.is_set()
        rig.run("release_rows", "dispatch", "settle")
        assert rig.pushed[-2:] == ["b", "c"]
        assert self.limit(rig, None, "tenant:1") == {"tenant:1": "done"}
        rig.run("release_rows", "dispatch", "settle")
        assert rig.pushed[-1] == "d"
        assert [one.group for one in rig.data.runs.values()] == ["tenant:1"] * 3, "the last one had no limit"

    def test_the_messages_of_a_group_ask_for_reports_as_soon_as_it_has_a_limit(self, rig: Rig) -> None:
        rig.run()
        self.limit(rig, 5, "tenant:1")
        rig.send("a", 0, group="tenant:1")
        rig.run("ingest", "prefetch")
        rig.stopped_at("dispatch", "guarded")
        [flight] = [lane.in_flight for lane in rig.state.lanes if lane.in_flight is not None]
        assert [one.reports for one in flight.rows] == [True]

    def test_limits_are_in_the_store_and_the_next_holder_has_them(self, rig: Rig) -> None:
        rig.run()
        assert self.limit(rig, 1, "tenant:1", "tenant:2") == {"tenant:1": "done", "tenant:2": "done"}
        assert self.limit(rig, None, "tenant:2", "tenant:3") == {"tenant:2": "done", "tenant:3": "unknown"}
        now_ms = rig.clock.now_ms()
        assert rig.store.limits(0) == [GroupLimit("tenant:1", 1, None, None, None, None, "anna", now_ms)]
        rig.take_over()
        rig.send_all("ab", 0, group="tenant:1")
        rig.run(rounds=3)
        assert rig.pushed == ["a"]

    def test_ends_of_slots_are_counted_by_report_and_by_time_and_a_late_report_is_one(self, rig: Rig) -> None:
        rig.run()
        self.limit(rig, 3, "tenant:1")
        rig.send_all("abc", 0, group="tenant:1")
        rig.run(rounds=3)
        runs = sorted(rig.data.runs)
        self.report(rig, runs[0])
        self.report(rig, runs[0])
        assert (rig.engine.stats.slots_reported, rig.engine.stats.slots_timed_out) == (1, 0)
        rig.clock.advance(MAX_RUNTIME_MS)
        rig.run("tend", "release_rows")
        assert (rig.engine.stats.slots_reported, rig.engine.stats.slots_timed_out) == (1, 2)
        assert rig.state.groups.unreported == {"tenant:1": 2}
        self.report(rig, runs[1])
        assert (rig.engine.stats.slots_reported, rig.state.groups.unreported) == (2, {})

    def report(self, rig: Rig, row_id: int) -> None:
        rig.send("report", 0, task=RUN_ENDED_TASK, body=RunReport(row_id, of_slot=True).payload)
        rig.run("ingest")

    def test_a_report_without_a_signature_is_dropped_where_one_is_needed(self) -> None:
        """It is no task: a person who requeued it would fill a queue that nobody reads."""
        rig = Rig(limits=Limits(unsigned="refuse"))
        rig.run()
        self.limit(rig, 1, "tenant:1")
        rig.send("a", 0, group="tenant:1", signed_for=0)
        rig.run(rounds=3)
        [row_id] = rig.data.runs
        self.report(rig, row_id)
        assert (rig.engine.stats.slots_reported, rig.engine.stats.unsigned, rig.server.keys.wheel) == (0, 1, [])
        assert list(rig.data.rows) == [row_id]
        rig.send("report", 0, task=RUN_ENDED_TASK, body=RunReport(row_id, of_slot=True).payload, signed_for=0)
        rig.run("ingest")
        assert rig.engine.stats.slots_reported == 1

    def test_the_snapshot_has_the_figures_of_groups(self, rig: Rig) -> None:
        rig.run()
        rig.run("tend")
        assert rig.data.snapshot["groups"] is None
        self.limit(rig, 1, "tenant:1")
        rig.send_all("abc", 0, group="tenant:1")
        rig.run(rounds=3)
        rig.run("tend", after_ms=SHOW_MS)
        figures = rig.data.snapshot["groups"]
        assert (figures["count"], figures["waiting"], figures["largest"]) == (1, 2, [["tenant:1", 2, 1, [0]]])

    def test_a_set_replaces_all_limits_of_the_group(self, rig: Rig) -> None:
        rig.run()
        self.limit(rig, 1, "tenant:1")
        rig.ask("limit", groups=["tenant:1"], limits={"rate_count": 5, "rate_per_ms": 1_000, "weight": 3})
        assert rig.store.limits(0) == [GroupLimit("tenant:1", None, 5, 1_000, 3, None, "", rig.clock.now_ms())]

    def test_a_drain_sets_limits_for_the_next_holder_and_not_for_itself(self) -> None:
        rig = Rig(limits=Limits(ahead_ms=10**9))
        rig.run()
        self.limit(rig, 1, "tenant:1")
        rig.send_all("ab", 1_000, group="tenant:1")
        rig.run(rounds=3)
        assert rig.pushed == ["a", "b"]
        assert len(rig.store.limits(0)) == 1

    def test_the_log_has_who_limited_which_group(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.run()
        caplog.set_level("INFO")
        caplog.clear()
        rig.ask("limit", groups=list("abcdef"), limits={"weight": 2}, actor="anna", reason="storm")
        self.limit(rig, None, "a")
        assert [record.getMessage() for record in caplog.records] == [
            "shard 0: set own limits of a, b, c, d, e and others by anna: storm",
            "shard 0: cleared own limits of a by anna",
        ]


def test_a_withdrawn_requeue_or_replay_publishes_nothing(rig: Rig) -> None:
    rig.server.wrong_types.add("celery")
    rig.send("bad", 0)
    rig.run(rounds=3)
    rig.server.wrong_types.clear()
    rig.send("good", 0)
    rig.run(rounds=3)
    good = max(rig.data.rows)
    assert interrupted(rig, "requeue", {"task_ids": ["bad"]}, "inbox read")
    assert interrupted(rig, "replay", {"rows": [str(good)]}, "inbox read")
    rig.run(rounds=3, after_ms=1_000)
    assert rig.pushed == ["good"]
    rig.send("next", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["good", "next"], "no reservation was left behind"
    assert rig.data.lanes[0].offset > Position(0, 0)


@pytest.mark.parametrize("shares", [False, True], ids=["alone", "beside other shards"])
def test_history_that_is_requeued_is_committed_before_its_lock_is_free(rig: Rig, *, shares: bool) -> None:
    rig.engine.ctx.shares = shares
    rig.server.wrong_types.add("celery")
    rig.send("bad", 0)
    rig.run(rounds=3)
    rig.store.put_command(0, "requeue", json.dumps({"id": NUMBER, "task_ids": ["bad"]}).encode())
    rig.stopped_at("ingest", "committed under the history lock")
    assert rig.store.answer(NUMBER) == {"bad": "done"}


def test_a_command_that_is_withdrawn_while_it_waits_for_messages_leaves_nothing_in_memory(rabbit: RabbitRig) -> None:
    item = rabbit.store.put_command(0, "cancel", json.dumps({"id": NUMBER, "task_ids": ["a"]}).encode())
    rabbit.run("tend", "ingest")
    assert list(rabbit.state.first_read_at_ms) == [item]
    assert rabbit.store.withdraw(item, (0, "cancel", rabbit.store.command_payload(item) or b""))
    rabbit.run("ingest")
    assert not rabbit.state.first_read_at_ms


def test_a_withdrawal_that_comes_too_late_finds_an_answer(rig: Rig) -> None:
    rig.send("a", 100)
    rig.run(rounds=2)
    assert not interrupted(rig, "cancel", {"task_ids": ["a"]}, "committed")
    assert rig.store.answer(NUMBER) == {"a": "done"}
    rig.pass_time(100)
    run_round(rig.engine.prefetch())
    rig.run(rounds=2)
    assert rig.pushed == []


def test_a_repeated_revoke_changes_nothing_but_holds_longer(rig: Rig) -> None:
    """Each scheduler that hears a revoke writes it, and the audit log has the first."""
    rig.run()
    assert rig.ask("cancel", task_ids=["gone"], for_good=True) == {"gone": "unknown"}
    until_ms = rig.store.tombstones(0, ["gone"])["gone"].until_ms
    rig.pass_time(1_000)
    assert rig.ask("cancel", task_ids=["gone"], for_good=True) == {"gone": "already"}
    assert rig.store.tombstones(0, ["gone"])["gone"].until_ms == until_ms + 1_000


NOW = 1_800_000_000_000


def command(audit: Any, kind: str = "cancel", programs: bool = True, **fields: Any) -> Any:
    given = {"task_ids": ["a", "b"], "actor": "anna", "reason": "twice", "audit": audit, **fields}
    item = InboxItem(1, kind, json.dumps(given).encode())
    found = parse(item, decode=lambda raw: None, derived_id=lambda name: NUMBER, programs=programs)  # type: ignore[arg-type,return-value]
    return found[0] if isinstance(found, list) else found


def head(**parts: Any) -> dict[str, Any]:
    return {"request": uuid7(), "at_ms": NOW, "origin": "cli", **parts}


def test_a_persons_command_leaves_an_entry() -> None:
    given = head()
    results = {"a": "done", "b": {"result": "done", "task_ids": ["x", "y"]}}
    (one,) = audit_entries(command(given, eta_ms=5), results, NOW)
    assert (one.request, one.bulk, one.at_ms) == (given["request"], None, NOW)
    assert (one.origin, one.actor, one.action, one.reason) == ("cli", "anna", "cancel", "twice")
    assert json.loads(one.details) == {"eta_ms": 5}
    assert json.loads(one.results) == {"a": "done", "b": {"result": "done", "task_ids": 2}}


def test_a_command_of_nobody_known_leaves_an_entry() -> None:
    for given in (None, {}):
        (one,) = audit_entries(command(given), {"a": "done", "b": "already"}, NOW)
        assert (one.origin, one.actor, one.action, one.at_ms) == ("unknown", "anna", "cancel", NOW)
        assert json.loads(one.results) == {"a": "done"}, "a machine's entry has what was changed"


def test_a_programs_command_leaves_an_entry_where_that_is_wanted() -> None:
    given = {"origin": "program"}
    (one,) = audit_entries(command(given), {"a": "done", "b": "too_late"}, NOW)
    assert (one.origin, json.loads(one.results)) == ("program", {"a": "done"})
    assert audit_entries(command(given), {"a": "already", "b": "too_late"}, NOW) == []
    assert audit_entries(command(given, programs=False), {"a": "done"}, NOW) == []
    assert audit_entries(command(head(), programs=False), {"a": "done"}, NOW) != []


@pytest.mark.parametrize(
    ("kind", "fields", "action", "details"),
    [
        ("cancel", {}, "cancel", {}),
        ("move", {"eta_ms": None}, "run_now", {}),
        ("move", {"eta_ms": 5}, "reschedule", {"eta_ms": 5}),
        ("complete", {"keys": ["k"], "how": "run"}, "complete", {"how": "run"}),
        ("limit", {"groups": ["g"], "limits": None}, "clear_limits", {}),
        ("limit", {"groups": ["g"], "limits": {"weight": 2}}, "set_limits", {"limits": {"weight": 2}}),
        ("schedule", {"do": "pause", "names": ["s"]}, "schedule_pause", {}),
    ],
)
def test_the_action_is_what_the_command_does(kind: str, fields: Any, action: str, details: Any) -> None:
    """The asker's word does not count."""
    found = command(head(action="nothing", details={"eta_ms": 1}), kind=kind, **fields)
    assert (found.audit.action, json.loads(found.audit.details)) == (action, details)


def test_a_shard_that_knows_none_of_the_names_leaves_none() -> None:
    results = {"a": "unknown", "b": "unknown"}
    assert audit_entries(command(head(whole=False)), results, NOW) == []
    (one,) = audit_entries(command(head(whole=False)), {**results, "b": "done"}, NOW)
    assert json.loads(one.results) == {"b": "done"}
    (one,) = audit_entries(command(head()), results, NOW)
    assert json.loads(one.results) == results


def test_the_holders_time_counts_where_the_askers_clock_is_wrong() -> None:
    for skew, at_ms in ((MAX_SKEW_MS, NOW), (MAX_SKEW_MS + 1, NOW + MAX_SKEW_MS + 1)):
        (one,) = audit_entries(command(head()), {"a": "done"}, NOW + skew)
        assert one.at_ms == at_ms


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": "7"},
        {"at_ms": "soon"},
        {"at_ms": -1},
        {"origin": ""},
        {"origin": "a\0"},
        {"origin": "root"},
    ],
)
def test_a_wrong_part_makes_the_command_unreadable(wrong: dict[str, Any]) -> None:
    assert isinstance(command(head(**wrong)), Unreadable)
