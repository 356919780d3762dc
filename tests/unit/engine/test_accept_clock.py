"""The operator accepts a disputed wall clock."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from celery_wheel.engine.round import run_round
from celery_wheel.store.model import ACCEPT_CLOCK
from tests.unit.engine.conftest import START_MS, Rig

NUMBER = "00000000-0000-4000-8000-000000000001"
SECOND_CLOCKS: dict[str, Callable[[Rig], int | None]] = {
    "none": lambda rig: None,
    "right": lambda rig: START_MS + rig.clock.monotonic_ms(),
}


def rig_with(second_clock: str, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig()
    monkeypatch.setattr(rig.broker, "now_ms", lambda: SECOND_CLOCKS[second_clock](rig))
    rig.run()
    return rig


def ask(rig: Rig) -> int:
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
    rig.engine.wake.clear()
    ask(rig)
    rig.run("ingest")
    assert rig.store.answer(NUMBER) == {"wall": answer}
    assert rig.engine.wake.is_set() == (answer == "accepted")
    assert rig.engine.clock.disputed_ms == (0 if answer != "refused" else step_ms)
    for passed_ms in (due_in_ms - 1, 1):
        assert rig.pushed == []
        rig.pass_time(passed_ms)
        rig.run("prefetch", "dispatch")
    assert rig.pushed == ["a"]


def test_a_withdrawn_request_moves_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with("none", monkeypatch)
    rig.clock.step(30_000)
    rig.run("tend")
    item = ask(rig)
    steps = rig.engine.ingest()
    while next(steps) != "peeked":
        pass
    assert rig.store.withdraw(item, (0, ACCEPT_CLOCK, b""))
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
    ask(rig)
    rig.run("ingest")
    assert [record.getMessage() for record in caplog.records] == [
        "shard 0: due time follows the wall clock by +30000 ms, as root accepted"
    ]
