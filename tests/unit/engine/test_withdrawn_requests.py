"""A request that is withdrawn while a holder carries it out has no effect."""

from __future__ import annotations

import json

import pytest

from celery_wheel.engine.round import run_round
from celery_wheel.store.model import Position
from tests.unit.engine.conftest import Rig

NUMBER = "00000000-0000-4000-8000-000000000001"


def interrupted(rig: Rig, kind: str, payload: dict[str, object], at: str) -> bool:
    """Ingest a command, and withdraw the request at a step; return whether that was in time."""
    item = rig.store.put_command(0, kind, json.dumps({"id": NUMBER, **payload}).encode())
    in_time = None
    for step in rig.engine.ingest():
        if step == at:
            in_time = rig.store.withdraw(item, (0, kind, b""))
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
    assert rig.disk.shard(0).outcomes == []
    rig.run(rounds=2)
    assert rig.pushed == []
    rig.pass_time(100)
    rig.run(rounds=2)
    assert rig.pushed == ["a", "b"]
    rig.pass_time(400_000)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b", "far"]
    assert rig.engine.stats.adoptions == 1, "that is no reason to drop what is in memory"
    assert not any(rig.disk.shard(0).tally.values())


def test_a_withdrawn_cancel_keeps_no_later_task(rig: Rig) -> None:
    rig.run()
    assert interrupted(rig, "cancel", {"task_ids": ["later"]}, "reserved")
    rig.send("later", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["later"]


@pytest.mark.parametrize("at", ["inbox read", "gates closed"])
def test_a_withdrawn_pause_closes_no_gate(rig: Rig, at: str) -> None:
    rig.run()
    assert interrupted(rig, "pause", {"gates": ["queue:celery"]}, at)
    rig.send("a", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["a"]
    assert rig.store.gates(0) == []


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_withdrawn_pause_or_resume_leaves_the_gate_paused(rig: Rig, kind: str) -> None:
    rig.store.put_command(0, "pause", json.dumps({"gates": ["queue:celery"]}).encode())
    rig.run(rounds=2)
    assert interrupted(rig, kind, {"gates": ["queue:celery"]}, "gates closed")
    rig.send("a", 0)
    rig.run(rounds=3)
    assert rig.pushed == []
    assert len(rig.store.gates(0)) == 1


def test_a_withdrawn_requeue_or_replay_publishes_nothing(rig: Rig) -> None:
    rig.server.wrong_types.add("celery")
    rig.send("bad", 0)
    rig.run(rounds=3)
    rig.server.wrong_types.clear()
    rig.send("good", 0)
    rig.run(rounds=3)
    good = max(rig.disk.shard(0).rows)
    assert interrupted(rig, "requeue", {"task_ids": ["bad"]}, "inbox read")
    assert interrupted(rig, "replay", {"rows": [str(good)]}, "inbox read")
    rig.pass_time(1_000)
    rig.run(rounds=3)
    assert rig.pushed == ["good"]
    rig.send("next", 0)
    rig.run(rounds=2)
    assert rig.pushed == ["good", "next"], "no reservation was left behind"
    assert rig.disk.shard(0).lanes[0].offset > Position(0, 0)


def test_a_withdrawal_that_comes_too_late_finds_an_answer(rig: Rig) -> None:
    rig.send("a", 100)
    rig.run(rounds=2)
    assert not interrupted(rig, "cancel", {"task_ids": ["a"]}, "committed")
    assert rig.store.answer(NUMBER) == {"a": "done"}
    rig.pass_time(100)
    run_round(rig.engine.prefetch())
    rig.run(rounds=2)
    assert rig.pushed == []
