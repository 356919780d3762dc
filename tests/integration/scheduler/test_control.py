"""Requests from another process to a real scheduler: each result agrees with the tasks that were dispatched and ran."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from celery.result import AsyncResult

from celery_wheel import CommandResult, WheelUnavailable
from celery_wheel.control import Wheel
from tests.kit.patience import patience, wait_until
from tests.kit.stack import Stack

TASKS = 2_000

DONE, TOO_LATE, UNKNOWN = CommandResult.DONE, CommandResult.TOO_LATE, CommandResult.UNKNOWN


@pytest.fixture
def wheel(stack: Stack) -> Wheel:
    """Return the wheel of a store that a scheduler holds."""
    stack.wait_for_holder(stack.beat())
    return stack.app.wheel


def test_a_task_is_cancelled_right_after_it_was_sent(stack: Stack, wheel: Wheel) -> None:
    """A task that is still in the wheel queue counts as sent: its result is never ``unknown``."""
    for _ in range(20):
        result = stack.app.send_task("note", countdown=3_600)
        assert wheel.cancel(result) is DONE
    assert wheel.pending().items == []
    found = wheel.outcomes("cancelled").items
    assert len(found) == 20


def test_a_second_cancel_results_in_already(stack: Stack, wheel: Wheel) -> None:
    [task_id] = stack.send(3_600)
    verdicts = [wheel.cancel(task_id, reason="paid", actor="anna") for _ in range(2)]
    assert verdicts == [DONE, CommandResult.ALREADY]
    [found] = wheel.outcomes("cancelled").items
    assert (found.reason, found.actor) == ("paid", "anna")


def test_a_dispatched_task_is_too_late_and_an_unsent_one_is_unknown(stack: Stack, wheel: Wheel) -> None:
    [task_id] = stack.send(0.1)
    wait_until(lambda: stack.dispatched() == [task_id], "the task is dispatched")
    assert wheel.cancel([task_id, "nobody"]) == {task_id: TOO_LATE, "nobody": UNKNOWN}
    assert wheel.run_now("nobody") is UNKNOWN


def test_an_unknown_task_that_arrives_after_its_cancel_is_not_dispatched(stack: Stack, wheel: Wheel) -> None:
    assert wheel.cancel("early") is UNKNOWN
    stack.app.send_task("note", countdown=0.2, task_id="early")
    stack.app.send_task("note", countdown=0.3, task_id="other")
    wait_until(lambda: stack.dispatched() == ["other"], "only the other task is dispatched")
    detail = wheel.get("early")
    assert detail is not None
    assert detail.state == "cancelled"


def test_a_task_is_moved_and_run_at_once(stack: Stack, wheel: Wheel) -> None:
    sooner, later, now = stack.send(3_600, 3)
    eta = datetime.now(UTC) + timedelta(hours=5)
    assert wheel.reschedule(later, eta=eta) is DONE
    assert wheel.run_now([now]) == {now: DONE}
    assert wheel.reschedule(AsyncResult(sooner), countdown=0.3) is DONE
    wait_until(lambda: len(stack.dispatched()) == 2, "two tasks are dispatched")
    assert set(stack.dispatched()) == {now, sooner}
    wait_until(lambda: len(wheel.pending().items) == 1, "the dispatched tasks are settled")
    [waiting] = wheel.pending().items
    assert waiting.task_id == later
    assert abs(waiting.due_ms - eta.timestamp() * 1_000) < 1
    with pytest.raises(TypeError, match="must have an eta or a countdown"):
        wheel.reschedule(later)


def test_thousands_are_cancelled_at_the_instant_they_are_due(stack: Stack, wheel: Wheel) -> None:
    """The worker's executions agree with the result of each cancel; a pause ends as they begin."""
    stack.worker()
    with stack.app.producer_or_acquire() as producer:
        task_ids = [stack.app.send_task("note", countdown=3_600, producer=producer).id for _ in range(TASKS)]
    wait_until(lambda: sum(wheel.counts().tasks.values()) == TASKS, "all wait", 60)
    wheel.pause(everything=True, timeout=patience(60))  # however long the move takes, none is dispatched meanwhile
    assert set(wheel.reschedule(task_ids, countdown=0.1, timeout=patience(60)).values()) == {DONE}
    parts = [task_ids[start::4] for start in range(4)]
    verdicts: dict[str, CommandResult] = {}

    def cancel(part: list[str]) -> None:
        verdicts.update(wheel.cancel(part, timeout=patience(60)))

    threads = [threading.Thread(target=cancel, args=(part,)) for part in parts]
    wait_until(lambda: wheel.status()[0].held, "they are due")
    assert wheel.resume(everything=True, timeout=patience(60))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(90))
    counts = Counter(verdicts.values())
    assert sum(counts.values()) == TASKS
    assert counts[UNKNOWN] == 0
    wait_until(lambda: len(stack.ran()) >= counts[TOO_LATE], "the tasks that were too late have run", 60)
    wait_until(lambda: wheel.pending().items == [] and stack.redis.llen("celery") == 0, "nothing is left", 60)
    ran = Counter(stack.ran())
    assert ran == Counter(task_id for task_id, verdict in verdicts.items() if verdict is TOO_LATE)


def test_a_request_without_an_answer_is_withdrawn(stack: Stack) -> None:
    process = stack.beat()
    stack.wait_for_holder(process)
    [task_id] = stack.send(0.5)
    process.kill()
    with pytest.raises(
        WheelUnavailable, match=r"no scheduler answered for shard 0 within 0\.2 s.*withdrawn.*celery -A proj beat"
    ):
        stack.app.wheel.cancel(task_id, timeout=0.2)
    stack.beat()
    wait_until(lambda: stack.dispatched() == [task_id], "the task is dispatched, since the cancel was withdrawn")
