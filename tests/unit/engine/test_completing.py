"""Tasks that watch a key, and the command that completes them before they are due."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from celery_wheel.engine.round import Limits, run_round
from celery_wheel.errors import StoreError
from celery_wheel.store.model import STOPPED, UNANNOUNCED, Watch
from tests.unit.engine.conftest import Rig
from tests.unit.engine.test_unique import states


def ask(rig: Rig, *keys: str, how: str = "cancel", **words: str) -> str:
    number = str(uuid.uuid4())
    payload = json.dumps({"keys": keys, "how": how, "id": number, "actor": "shop", **words})
    rig.store.put_inbox(0, [("complete", payload.encode())])
    return number


def complete(rig: Rig, *keys: str, **how: str) -> dict[str, tuple[int, int]]:
    """Complete keys; return the answer: key → done and too late."""
    number = ask(rig, *keys, **how)
    rig.run("ingest")
    return answer(rig, number)


def answer(rig: Rig, number: str) -> dict[str, tuple[int, int]]:
    found: dict[str, Any] = rig.store.answer(number) or {}
    return {key: (counts["done"], counts["too_late"]) for key, counts in found.items()}


def watches(rig: Rig) -> list[str]:
    return [one.key for one in rig.disk.shard(0).watches if one.kind != UNANNOUNCED]


def test_watches_are_in_the_store_with_the_message(rig: Rig) -> None:
    rig.send("a", 100, watch=["order:42", "cart:7", "order:42"])
    rig.run(rounds=2)
    [row_id] = rig.disk.shard(0).rows
    assert rig.disk.shard(0).watches == [Watch("watch", "order:42", row_id), Watch("watch", "cart:7", row_id)]


def test_a_task_that_watches_the_key_is_cancelled_with_a_reason(rig: Rig) -> None:
    rig.send("a", 100, watch=["order:42"])
    rig.send("b", 100, watch=["order:43"])
    rig.send("c", 100, watch=["order:1", "order:42"])
    rig.run(rounds=2)
    assert complete(rig, "order:42", reason="paid") == {"order:42": (2, 0)}
    rig.pass_time(100)
    rig.run(rounds=2)
    assert rig.pushed == ["b"]
    outcomes = rig.disk.shard(0).outcomes
    assert [(one.kind, one.reason, one.actor) for one in outcomes] == [
        ("cancelled", "completed by the key 'order:42': paid", "shop")
    ] * 2
    assert watches(rig) == ["order:43"]
    assert not any(rig.disk.shard(0).tally.values())
    assert rig.engine.stats.completed == 2


def test_a_task_that_watches_the_key_runs_at_once_and_is_completed_once(rig: Rig) -> None:
    rig.send("a", 10**7, watch=["order:42"], unique="u")
    rig.send("b", 20, watch=["order:43"])
    rig.run(rounds=2)
    number = ask(rig, "order:42", how="run")
    rig.run("ingest")
    assert complete(rig, "order:42") == {"order:42": (0, 0)}, "it is on its way, and waits for nothing any more"
    rig.run(rounds=2)
    assert answer(rig, number) == {"order:42": (1, 0)}
    assert rig.pushed == ["a"]
    assert watches(rig) == ["u", "order:43"], "until it left it is the only one of its unique key"
    assert rig.disk.shard(0).outcomes[0].reason == "completed by the key 'order:42'"


def test_a_task_that_watches_two_of_the_keys_counts_for_both_and_is_cancelled_once(rig: Rig) -> None:
    rig.send("a", 100, watch=["x", "y"])
    rig.run(rounds=2)
    assert complete(rig, "x", "y", "z") == {"x": (1, 0), "y": (1, 0), "z": (0, 0)}
    assert len(rig.disk.shard(0).outcomes) == 1


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
    dispatch = rig.engine.dispatch()
    while next(dispatch) != "taken":
        pass
    assert complete(rig, "k") == {"k": (0, 1)}
    assert watches(rig) == ["k"], "whether it left is not known yet"
    run_round(dispatch)
    rig.run("settle")
    assert rig.pushed == ["a"]
    assert rig.disk.shard(0).outcomes == []


def test_a_key_may_be_used_again(rig: Rig) -> None:
    for _ in range(3):
        rig.send(f"task-{rig.sent}", 100, watch=["k"])
        rig.run(rounds=2)
        assert complete(rig, "k") == {"k": (1, 0)}
    assert watches(rig) == []


def test_messages_sent_before_are_accepted_before_a_key_is_completed() -> None:
    rig = Rig(Limits(intake_count=2))
    rig.run()
    for n in range(5):
        rig.send(str(n), 100, watch=["k"])
    number = ask(rig, "k")
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
    rig.pass_time(300_000)
    rig.run(rounds=3)
    assert rig.pushed == ["farther"]


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_a_commit_of_unknown_result_completes_once(rig: Rig, point: str) -> None:
    rig.send("a", 10_000, watch=["k"])
    rig.run(rounds=2)
    number = ask(rig, "k")

    def fault(at: str) -> None:
        if at == point:
            rig.store.fault = lambda _: None
            raise StoreError("lost")

    rig.store.fault = fault
    rig.run("ingest")
    rig.run(rounds=2)
    assert answer(rig, number) == {"k": (1, 0)}
    assert states(rig) == {"a": "cancelled"}
    assert len(rig.disk.shard(0).outcomes) == 1


def test_cancelled_and_replaced_tasks_watch_nothing(rig: Rig) -> None:
    rig.send("a", 100, watch=["k"])
    rig.send("b", 100, watch=["k"], unique="u")
    rig.run(rounds=2)
    rig.store.put_inbox(0, [("cancel", b'{"task_ids": ["a"]}')])
    rig.send("c", 100, watch=["k"], unique="u", on_conflict="replace")
    rig.run()
    assert watches(rig) == ["k", "u"]
    rig.send("d", 100, watch=["k"], unique="u")
    rig.run()
    assert watches(rig) == ["k", "u"], "what rests from the start claims nothing"
    assert complete(rig, "k") == {"k": (1, 0)}


@pytest.mark.parametrize(
    "given",
    ['{"keys": []}', '{"keys": ["a"], "how": "stop"}', '{"task_ids": ["a"]}', '{"keys": [7]}', r'{"keys": ["\u0000"]}'],
)
def test_an_unreadable_completion_is_kept_as_rejected(rig: Rig, given: str) -> None:
    rig.store.put_inbox(0, [("complete", given.encode())])
    rig.run()
    (outcome,) = rig.disk.shard(0).outcomes
    assert outcome.kind == "rejected"
    assert "cannot be read" in outcome.reason
    assert rig.disk.shard(0).inbox == {}
    assert {stored.row.lane for stored in rig.disk.shard(0).rows.values()} == {STOPPED}
