"""Another process completes keys: an order is cancelled unless it is paid within its time; and unique tasks."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from celery_wheel import CompletionResult, WheelUnavailable
from celery_wheel.control import Wheel
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.stack import Stack

NOBODY = CompletionResult(0, 0)


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(stack: Stack, request: pytest.FixtureRequest) -> Stack:
    """Return a stack with a scheduler, on each kind of store."""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        stack.change(wheel_store=server.new_database())
    stack.wait_for_holder(stack.beat())
    return stack


@pytest.fixture
def wheel(shop: Stack) -> Wheel:
    found: Wheel = shop.app.wheel
    return found


def order(shop: Stack, number: int, countdown: float, **options: object) -> str:
    """Send the task that cancels an order in its time, unless it is paid."""
    wheel = {"watch": [f"order:{number}"], **options}
    task_id: str = shop.app.send_task("note", (number,), countdown=countdown, wheel=wheel).id
    return task_id


def test_an_order_is_cancelled_unless_it_is_paid_within_its_time(shop: Stack, wheel: Wheel) -> None:
    paid, unpaid = order(shop, 1, 3_600), order(shop, 2, 3_600)
    assert wheel.complete("order:1", reason="paid", actor="till 3") == CompletionResult(done=1, too_late=0)
    assert wheel.reschedule([paid, unpaid], countdown=0.1) == {paid: "too_late", unpaid: "done"}, "their time is over"
    wait_until(lambda: shop.dispatched() == [unpaid], "the order that is not paid is cancelled, and it alone")
    found = wheel.get(paid)
    assert found is not None
    assert found.state == "cancelled"
    [outcome] = wheel.outcomes("cancelled").items
    assert (outcome.reason, outcome.actor) == ("completed by the key 'order:1': paid", "till 3")
    assert wheel.complete(["order:2", "order:3"]) == {"order:2": CompletionResult(0, 1), "order:3": NOBODY}
    assert not wheel.complete("order:2")


def test_a_task_that_watches_a_key_runs_when_the_key_is_completed(shop: Stack, wheel: Wheel) -> None:
    first, second = order(shop, 1, 3_600), order(shop, 1, 7_200)
    order(shop, 2, 3_600)
    assert wheel.complete("order:1", "run").done == 2
    wait_until(lambda: len(shop.dispatched()) == 2, "both run")
    assert sorted(shop.dispatched()) == sorted([first, second])
    with pytest.raises(ValueError, match='needs how="cancel" or how="run"'):
        wheel.complete("order:2", "stop")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a key must be a text"):
        wheel.complete([42])  # type: ignore[list-item]


def test_each_order_is_either_paid_or_cancelled(shop: Stack, wheel: Wheel) -> None:
    """A thousand orders fall due while four tills take money: each is completed or dispatched, and none is both."""
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


def test_one_task_of_a_unique_key_is_pending(shop: Stack, wheel: Wheel) -> None:
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


def test_a_completion_without_an_answer_is_withdrawn(stack: Stack) -> None:
    process = stack.beat()
    stack.wait_for_holder(process)
    process.kill()
    task_id = order(stack, 1, 0.5)
    with pytest.raises(WheelUnavailable, match=r"no scheduler answered for shard 0.*withdrawn"):
        stack.app.wheel.complete("order:1", timeout=0.2)
    stack.beat()
    wait_until(lambda: stack.dispatched() == [task_id], "the task is dispatched, since the completion was withdrawn")
