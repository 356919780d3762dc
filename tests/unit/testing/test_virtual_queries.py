"""Queries of a test: pending tasks, executions, and the texts of failed assertions."""

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from celery import group
from celery.exceptions import TimeoutError as NotReady

from celery_wheel.control import Wheel
from celery_wheel.testing import PendingTask, VirtualWheel


def test_pending_lists_all_pending_tasks_the_next_first(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    second = add.apply_async((1,), {"y": 2}, countdown=7200, queue="mail", wheel={"key": "order:42"})
    first = tasks["proj.flaky"].apply_async((1,), countdown=60)
    at_once = add.delay(5, 6)
    assert [one.id for one in wheel.pending] == [at_once.id, first.id, second.id]
    far = wheel.pending[-1]
    assert far.eta is not None
    assert abs(far.eta - wheel.now - timedelta(hours=2)) < timedelta(minutes=5)
    assert far == PendingTask("proj.add", (1,), {"y": 2}, second.id, "mail", far.eta, "order:42")
    assert wheel.pending_of(add) == wheel.pending_of("proj.add") == [wheel.pending[0], far]


def test_executions_are_recorded_with_key_and_eta(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 2), countdown=60, queue="mail", wheel={"key": "order:42"})
    (waiting,) = wheel.pending
    (ran,) = wheel.run_all()
    assert (ran.key, ran.queue, ran.eta) == ("order:42", "mail", waiting.eta)
    assert wheel.ran_of(add) == wheel.ran_of("proj.add") == [ran]
    assert wheel.ran_of("proj.fail") == []


def test_a_pending_retry_has_its_number(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.flaky"].delay(2)
    wheel.run_due()
    assert [one.retries for one in wheel.pending] == [1]


def test_is_pending_takes_a_result_or_an_id_and_shows_the_fate_of_the_task(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert wheel.is_pending(result)
    assert wheel.is_pending(result.id) == True  # noqa: E712
    assert f"proj.add(1, 2) due {wheel.pending[0].eta:%Y-%m-%d}" in repr(wheel.is_pending(result))
    wheel.run_all()
    assert not wheel.is_pending(result)
    assert "not pending: <proj.add(1, 2) ran at" in repr(wheel.is_pending(result))
    assert "-> 3" in repr(wheel.is_pending(result))
    assert "no task was sent with id x" in repr(wheel.is_pending("x"))
    gone = add.apply_async((1, 2), countdown=60, expires=1)
    wheel.run_all()
    assert "expired" in repr(wheel.is_pending(gone))


def test_the_repr_of_the_wheel_is_one_line(wheel: VirtualWheel, add: Any) -> None:
    assert repr(wheel).endswith(": 0 pending, 0 ran>")
    for _ in range(7):
        add.apply_async((1, 2), countdown=7200)
    add.delay(1, 1)
    assert "8 pending, 0 ran: proj.add" in repr(wheel)
    assert " now; proj.add" in repr(wheel)
    assert repr(wheel).endswith("; and 3 more>")


def test_the_error_of_a_missing_result_has_the_tasks_due_time(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    with pytest.raises(NotReady, match=r"proj\.add\(1, 2\) due .*wheel\.advance"):
        result.get()
    wheel.advance(minutes=1)
    assert result.get() == 3


def test_waiting_for_a_result_runs_due_tasks(wheel: VirtualWheel, add: Any) -> None:
    assert add.delay(1, 2).get() == 3
    assert group(add.s(n, n) for n in range(3)).apply_async().get() == [0, 2, 4]
    assert len(wheel.ran) == 4


def test_tested_code_may_query_pending_tasks_as_in_production(wheel: VirtualWheel, wheel_app: Any, add: Any) -> None:
    with closing(Wheel(wheel_app)) as asked:
        assert asked.pending().items == []
        result = add.apply_async((1, 2), countdown=60)
        assert (asked.get(result.id).state, asked.counts().tasks) == ("pending", {"proj.add": 1})  # type: ignore[union-attr]
        wheel.run_all()
        assert asked.get(result.id).state == "dispatched"  # type: ignore[union-attr]


@pytest.mark.timeout(20)
def test_inspect_returns_at_once_without_an_answer(wheel: VirtualWheel, wheel_app: Any) -> None:
    assert wheel_app.control.inspect().scheduled() is None
    assert wheel_app.control.ping() == []
    with wheel_app.connection_for_read() as connection, pytest.raises(TimeoutError, match="no worker answers"):
        connection.drain_events(timeout=3600)
