"""Batches in virtual time: a task runs once for the calls of its batch, each of which has an execution of its own."""

from datetime import timedelta
from typing import Any

import pytest
from celery import chord

from celery_wheel import Batches
from celery_wheel.testing import VirtualWheel


@pytest.fixture
def insert(wheel: VirtualWheel, wheel_app: Any) -> Any:
    """Return a task of which three calls are a full batch; ``sizes`` are those of its runs."""

    @wheel_app.task(name="proj.insert", base=Batches, flush_every=3, flush_interval=10, shared=False)
    def insert(calls: list[Any]) -> list[Any]:
        insert.sizes.append(len(calls))
        if any(call.args == ("all fail",) for call in calls):
            raise KeyError("all")
        return [KeyError(call.args[0]) if call.args == ("fails",) else call.args[0] for call in calls]

    insert.sizes = []
    return insert


def test_a_full_batch_runs_at_once_and_another_when_it_has_waited(wheel: VirtualWheel, insert: Any) -> None:
    wheel.freeze()
    results = [insert.delay(n) for n in range(4)]
    ran = wheel.run_due()
    assert [(one.args, one.result, one.id) for one in ran] == [((n,), n, results[n].id) for n in range(3)]
    assert insert.sizes == [3]
    assert results[1].get() == 1
    [waits] = wheel.pending
    assert waits.eta is not None
    assert waits.eta - wheel.now <= timedelta(seconds=10)
    assert wheel.advance(seconds=9) == []
    assert [one.result for one in wheel.advance(seconds=2)] == [3]
    assert insert.sizes == [3, 1]


def test_batches_of_other_names_and_other_tasks_do_not_mix(wheel: VirtualWheel, insert: Any, add: Any) -> None:
    own = {"batch": "own", "size": 2, "wait": 60}
    insert.delay(0)
    add.apply_async((1, 2), countdown=5)
    insert.apply_async((1,), wheel=own)
    insert.apply_async((2,), wheel=own)
    assert [one.result for one in wheel.run_all()] == [1, 2, 3, 0]
    assert insert.sizes == [2, 1]


def test_a_call_may_fail_alone_or_with_all_others(wheel: VirtualWheel, insert: Any) -> None:
    wheel.propagate = False
    for word in ("a", "fails", "b"):
        insert.delay(word)
    assert [(one.state, one.result) for one in wheel.run_all()] == [
        ("SUCCESS", "a"),
        ("FAILURE", None),
        ("SUCCESS", "b"),
    ]
    for word in ("a", "all fail", "b"):
        insert.delay(word)
    assert [repr(one.exception) for one in wheel.run_all()] == ["KeyError('all')"] * 3
    wheel.propagate = True
    for word in ("a", "fails", "b"):
        insert.delay(word)
    with pytest.raises(KeyError, match="fails"):
        wheel.run_all()


def test_an_expired_and_a_cancelled_call_are_in_no_batch(wheel: VirtualWheel, insert: Any) -> None:
    ten = {"batch": "ten", "size": 10, "wait": 60}
    insert.apply_async(("expires",), expires=5, wheel=ten)
    insert.apply_async(("stays",), wheel=ten)
    wheel.cancel(insert.apply_async(("cancelled",), wheel=ten))
    assert [one.result for one in wheel.run_all()] == ["stays"]
    assert insert.sizes == [1]


def test_a_chord_of_calls_ends_once(wheel: VirtualWheel, wheel_app: Any, insert: Any) -> None:
    @wheel_app.task(name="proj.sum", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    result = chord([insert.s(n) for n in range(7)])(total.s())
    wheel.run_all()
    assert result.get() == 21
    assert insert.sizes == [3, 3, 1]
