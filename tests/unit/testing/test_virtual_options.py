"""Options of a call that need the store, in calls without a delay."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel.testing import VirtualWheel


@pytest.mark.parametrize(
    ("on_conflict", "now", "later"), [("keep", [], [3]), ("replace", [7], []), ("reject", [], [3])]
)
def test_a_unique_task_that_is_due_now_meets_the_pending_one(
    wheel: VirtualWheel, add: Any, on_conflict: str, now: list[int], later: list[int]
) -> None:
    add.apply_async((1, 2), countdown=60, wheel={"unique": "sync:7"})
    add.apply_async((3, 4), wheel={"unique": "sync:7", "on_conflict": on_conflict})
    assert [one.result for one in wheel.advance(seconds=1)] == now
    assert [one.result for one in wheel.advance(minutes=2)] == later


def test_a_unique_task_without_a_delay_runs_at_once(wheel: VirtualWheel, add: Any) -> None:
    for _ in range(2):
        add.apply_async((1, 2), wheel={"unique": "sync:7"})
        assert [one.result for one in wheel.advance(seconds=1)] == [3]


def test_jitter_spreads_calls_without_a_delay(wheel: VirtualWheel, add: Any) -> None:
    for n in range(50):
        add.apply_async((n, 0), wheel={"jitter": 3_600})
    assert len(wheel.advance(minutes=1)) < 50
    assert len(wheel.pending) > 0
    wheel.advance(hours=1)
    assert wheel.pending == []
