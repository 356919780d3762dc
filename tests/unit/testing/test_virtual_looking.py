"""What a test sees: what waits, what ran, and what a failed assertion says."""

from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import TimeoutError as NotReady

from celery_wheel.control import Wheel
from celery_wheel.testing import Pending, VirtualWheel


def test_pending_shows_all_that_waits_the_next_first(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    second = add.apply_async((1,), {"y": 2}, countdown=7200, queue="mail", wheel={"key": "order:42"})
    first = tasks["proj.flaky"].apply_async((1,), countdown=60)
    at_once = add.delay(5, 6)
    assert [one.id for one in wheel.pending] == [at_once.id, first.id, second.id]
    far = wheel.pending[-1]
    assert far.eta is not None
    assert abs(far.eta - wheel.now - timedelta(hours=2)) < timedelta(seconds=5)
    assert far == Pending("proj.add", (1,), {"y": 2}, second.id, "mail", far.eta, "order:42")
    assert wheel.pending_of(add) == wheel.pending_of("proj.add") == [wheel.pending[0], far]


def test_what_ran_is_kept_with_its_key_and_its_eta(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 2), countdown=60, queue="mail", wheel={"key": "order:42"})
    (waiting,) = wheel.pending
    (ran,) = wheel.run_all()
    assert (ran.key, ran.queue, ran.eta) == ("order:42", "mail", waiting.eta)
    assert wheel.ran_of(add) == wheel.ran_of("proj.add") == [ran]
    assert wheel.ran_of("proj.fail") == []


def test_a_retry_that_waits_says_which_it_is(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.flaky"].delay(2)
    wheel.run_due()
    assert [one.retries for one in wheel.pending] == [1]


def test_is_waiting_takes_a_result_or_an_id_and_is_a_truth_value(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert wheel.is_waiting(result)
    assert wheel.is_waiting(result.id) == True  # noqa: E712
    wheel.run_all()
    assert not wheel.is_waiting(result)


def test_a_failed_assertion_says_what_became_of_the_task(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert f"proj.add(1, 2) due {wheel.pending[0].eta:%Y-%m-%d}" in repr(wheel.is_waiting(result))
    wheel.run_all()
    assert "does not wait: <proj.add(1, 2) ran at" in repr(wheel.is_waiting(result))
    assert "-> 3" in repr(wheel.is_waiting(result))
    assert "nothing was sent with the id x" in repr(wheel.is_waiting("x"))
    gone = add.apply_async((1, 2), countdown=60, expires=1)
    wheel.run_all()
    assert "expired" in repr(wheel.is_waiting(gone))


def test_the_wheel_itself_is_shown_in_a_line(wheel: VirtualWheel, add: Any) -> None:
    assert repr(wheel).endswith(": 0 waiting, 0 ran>")
    for _ in range(7):
        add.apply_async((1, 2), countdown=7200)
    add.delay(1, 1)
    assert "8 waiting, 0 ran: proj.add" in repr(wheel)
    assert " now; proj.add" in repr(wheel)
    assert repr(wheel).endswith("; and 3 more>")


def test_waiting_for_a_result_that_cannot_come_says_what_it_waits_for(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    with pytest.raises(NotReady, match=r"proj\.add\(1, 2\) due .*wheel\.advance"):
        result.get()
    wheel.advance(minutes=1)
    assert result.get() == 3


def test_waiting_for_a_result_runs_what_is_due(wheel: VirtualWheel, add: Any) -> None:
    from celery import group

    assert add.delay(1, 2).get() == 3
    assert group(add.s(n, n) for n in range(3)).apply_async().get() == [0, 2, 4]
    assert len(wheel.ran) == 4


def test_the_tested_code_may_ask_for_what_waits_as_in_production(wheel: VirtualWheel, wheel_app: Any, add: Any) -> None:
    asked = Wheel(wheel_app)
    try:
        assert asked.pending().items == []
        result = add.apply_async((1, 2), countdown=60)
        found = asked.get(result.id)
        assert found is not None
        assert (found.state, asked.counts().tasks) == ("pending", {"proj.add": 1})
        wheel.run_all()
        found = asked.get(result.id)
        assert found is not None
        assert found.state == "dispatched"
    finally:
        asked.close()


@pytest.mark.timeout(20)
def test_a_remote_question_is_answered_by_nobody_at_once(wheel: VirtualWheel, wheel_app: Any) -> None:
    assert wheel_app.control.inspect().scheduled() is None
    assert wheel_app.control.ping() == []
    with wheel_app.connection_for_read() as connection, pytest.raises(TimeoutError, match="no worker answers"):
        connection.drain_events(timeout=3600)
