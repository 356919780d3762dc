"""The wall clock of a real scheduler is stepped while tasks wait: no task is dispatched early, and none late."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.stack import Stack
from tests.kit.wall_clock import WallClock

TASKS = 40

#: Less than the step back, by which a scheduler that follows it is late; a machine may stand still for seconds.
LATE_MS = 20_000


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


def beat(stack: Stack, clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> Process:
    with monkeypatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        process = stack.beat()
    stack.wait_for_holder(process)
    return process


def send(stack: Stack, first_ms: int) -> dict[str, int]:
    """Send tasks due from an instant on, 50 ms apart; returns task id → due time."""
    due_ms = [first_ms + 50 * n for n in range(TASKS)]
    return {
        stack.app.send_task("note", (n,), eta=datetime.fromtimestamp(one_ms / 1_000, UTC)).id: one_ms
        for n, one_ms in enumerate(due_ms)
    }


def lateness_ms(stack: Stack, due_ms: dict[str, int]) -> list[float]:
    came: dict[str, float] = {}
    until_s = time.monotonic() + patience()
    while len(came) < len(due_ms):
        found = stack.redis.brpop(["celery"], 1)
        now_ms = time.time() * 1_000
        assert time.monotonic() < until_s, f"only {len(came)} of {len(due_ms)} tasks came"
        if found is not None and (task_id := json.loads(found[1])["headers"]["id"]) in due_ms:
            came[task_id] = now_ms
    return [at_ms - due_ms[task_id] for task_id, at_ms in came.items()]


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [4, 30, -30, 3_600])
def test_a_step_of_the_wall_clock_makes_no_task_early_or_late(
    stack: Stack, clock: WallClock, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    scheduler = beat(stack, clock, monkeypatch)
    due_ms = send(stack, round(time.time() * 1_000) + round(patience(2_000)))
    wait_until(lambda: not stack.redis.llen("wheel.0"), "the tasks are accepted")
    clock.set(step_s * 1_000)
    late_ms = lateness_ms(stack, due_ms)
    assert (min(late_ms) >= 0, max(late_ms) < LATE_MS) == (True, True), (min(late_ms), max(late_ms))
    scheduler.wait_for("was stepped and is")
