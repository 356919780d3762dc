"""Requests from another process to a real scheduler: each result agrees with the tasks that were dispatched and ran.

Another process may complete keys, too: an order is cancelled unless it is paid within its time.
"""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from celery.result import AsyncResult

from celery_wheel import CommandResult, CompletionResult, WheelUnavailable
from celery_wheel.control import Wheel
from tests.kit.patience import patience, wait_until
from tests.kit.stack import Stack

TASKS = 2_000

DONE, TOO_LATE, UNKNOWN = CommandResult.DONE, CommandResult.TOO_LATE, CommandResult.UNKNOWN

NOBODY = CompletionResult(0, 0)


@pytest.fixture
def wheel(stack: Stack) -> Wheel:
    stack.wait_for_holder(stack.beat())
    return stack.app.wheel


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(stack: Stack, request: pytest.FixtureRequest) -> Stack:
    if request.param == "postgresql":
        stack.change(wheel_store=request.getfixturevalue("postgres").new_database())
    stack.wait_for_holder(stack.beat())
    return stack


def test_a_task_is_cancelled_right_after_it_was_sent(stack: Stack, wheel: Wheel) -> None:
    """A task that is still in the wheel queue counts as sent: its result is never ``unknown``."""
    for _ in range(20):
        result = stack.app.send_task("note", countdown=3_600)
        assert wheel.cancel(result) is DONE
    assert wheel.pending().items == []
    found = wheel.outcomes("cancelled").items
    assert len(found) == 20


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


@pytest.mark.slow
def test_thousands_are_cancelled_at_the_instant_they_are_due(stack: Stack, wheel: Wheel) -> None:
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


def order(shop: Stack, number: int, countdown: float, **options: object) -> str:
    wheel = {"watch": [f"order:{number}"], **options}
    task_id: str = shop.app.send_task("note", (number,), countdown=countdown, wheel=wheel).id
    return task_id


def test_an_order_is_cancelled_unless_it_is_paid_within_its_time(shop: Stack) -> None:
    wheel = shop.app.wheel
    paid, unpaid = order(shop, 1, 3_600), order(shop, 2, 3_600)
    assert wheel.complete("order:1", reason="paid", actor="till 3") == CompletionResult(done=1, too_late=0)
    assert wheel.reschedule([paid, unpaid], countdown=0.1) == {paid: "too_late", unpaid: "done"}, "their time is over"
    wait_until(lambda: shop.dispatched() == [unpaid], "the order that is not paid is cancelled, and it alone")
    found = wheel.get(paid)
    assert found.state == "cancelled"
    [outcome] = wheel.outcomes("cancelled").items
    assert (outcome.reason, outcome.actor) == ("completed by the key 'order:1': paid", "till 3")
    assert wheel.complete(["order:2", "order:3"]) == {"order:2": CompletionResult(0, 1), "order:3": NOBODY}
    assert not wheel.complete("order:2")


def test_a_task_that_watches_a_key_runs_when_the_key_is_completed(shop: Stack) -> None:
    wheel = shop.app.wheel
    first, second = order(shop, 1, 3_600), order(shop, 1, 7_200)
    order(shop, 2, 3_600)
    assert wheel.complete("order:1", "run").done == 2
    wait_until(lambda: len(shop.dispatched()) == 2, "both run")
    assert sorted(shop.dispatched()) == sorted([first, second])
    with pytest.raises(ValueError, match='needs how="cancel" or how="run"'):
        wheel.complete("order:2", "stop")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a key must be a text"):
        wheel.complete([42])  # type: ignore[list-item]


@pytest.mark.slow
def test_each_order_is_either_paid_or_cancelled(shop: Stack) -> None:
    wheel = shop.app.wheel
    with shop.app.producer_or_acquire() as producer:
        for n in range(1_000):
            options = {"wheel": {"watch": f"order:{n}"}, "countdown": 3 + n / 1_000}
            shop.app.send_task("note", (n,), producer=producer, task_id=f"cancel-{n}", **options)
    answers: dict[str, CompletionResult] = {}

    def till(number: int) -> None:
        for start in range(number * 10, 1_000, 40):
            answers.update(wheel.complete([f"order:{n}" for n in range(start, start + 10)], timeout=patience(60)))

    wait_until(lambda: len(shop.dispatched()) > 0, "the first is due")
    threads = [threading.Thread(target=till, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(90))
    assert Counter(one.done + one.too_late for one in answers.values()) == {1: 1_000}
    late = {f"cancel-{key.partition(':')[2]}" for key, one in answers.items() if one.too_late}
    assert late
    wait_until(lambda: len(shop.dispatched()) >= len(late), "the tasks that were too late are dispatched")
    wait_until(lambda: wheel.pending().items == [], "no task is pending any more")
    assert Counter(shop.dispatched()) == Counter(late)


def test_one_task_of_a_unique_key_is_pending(shop: Stack) -> None:
    wheel = shop.app.wheel
    kept = [order(shop, n, 3_600, unique="digest") for n in range(3)]
    [*_, last] = [order(shop, n, 3_600, unique="report", on_conflict="replace") for n in range(3)]
    refused = [order(shop, n, 3_600, unique="digest", on_conflict="reject") for n in range(2)]
    assert wheel.run_now(last) == "done"
    wait_until(lambda: shop.dispatched() == [last], "the last report is dispatched")
    wait_until(
        lambda: [one.task_id for one in wheel.pending().items] == kept[:1],
        "the dispatch is settled, and one task is pending",
    )
    assert {one.task_id for one in wheel.outcomes("rejected").items} == set(refused)
    assert len(wheel.outcomes("cancelled").items) == 4
    again = order(shop, 9, 3_600, unique="report")
    wait_until(lambda: wheel.get(again) is not None, "it comes")
    assert {one.task_id for one in wheel.pending().items} == {kept[0], again}


@pytest.mark.parametrize(
    "ask",
    [
        lambda wheel, task_id: wheel.cancel(task_id, timeout=0.2),
        lambda wheel, task_id: wheel.complete("order:1", timeout=0.2),
    ],
    ids=["a cancel", "a completion"],
)
def test_a_request_without_an_answer_is_withdrawn(stack: Stack, ask: Callable[[Wheel, str], object]) -> None:
    process = stack.beat()
    stack.wait_for_holder(process)
    process.kill()
    task_id = order(stack, 1, 0.5)
    silence = r"no scheduler answered for shard 0 within 0\.2 s.*withdrawn.*celery -A proj beat"
    with pytest.raises(WheelUnavailable, match=silence):
        ask(stack.app.wheel, task_id)
    stack.beat()
    wait_until(lambda: stack.dispatched() == [task_id], "the task is dispatched, since the request was withdrawn")
