"""Requests from another process to a real scheduler: each verdict against what really left and ran."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery.result import AsyncResult

from celery_wheel import Verdict, WheelUnavailable
from celery_wheel.control import Wheel
from tests.integration.scheduler.conftest import Bench
from tests.servers import wait_until

DONE, TOO_LATE, UNKNOWN = Verdict.DONE, Verdict.TOO_LATE, Verdict.UNKNOWN


@pytest.fixture
def wheel(bench: Bench) -> Iterator[Wheel]:
    """Of a store that a scheduler holds."""
    bench.wait_for_holder(bench.beat())
    bench.app.conf.wheel_store = bench.store
    yield bench.app.wheel
    bench.app.wheel.close()


def test_a_task_is_cancelled_right_after_it_was_sent(bench: Bench, wheel: Wheel) -> None:
    """Also what is in the queue still has come to the wheel: never unknown."""
    for _ in range(20):
        result = bench.app.send_task("noop", countdown=3_600)
        assert wheel.cancel(result) is DONE
    assert wheel.pending().items == []
    found = wheel.outcomes("cancelled").items
    assert len(found) == 20


def test_cancelling_twice_is_cancelling_once(bench: Bench, wheel: Wheel) -> None:
    [task_id] = bench.send(3_600)
    verdicts = [wheel.cancel(task_id, reason="paid", actor="anna") for _ in range(2)]
    assert verdicts == [DONE, Verdict.ALREADY]
    [found] = wheel.outcomes("cancelled").items
    assert (found.reason, found.actor) == ("paid", "anna")


def test_what_left_is_too_late_and_what_never_came_is_unknown(bench: Bench, wheel: Wheel) -> None:
    [task_id] = bench.send(0.1)
    wait_until(lambda: bench.dispatched() == [task_id], "it leaves")
    assert wheel.cancel([task_id, "nobody"]) == {task_id: TOO_LATE, "nobody": UNKNOWN}
    assert wheel.run_now("nobody") is UNKNOWN


def test_an_unknown_task_that_comes_after_it_was_cancelled_does_not_leave(bench: Bench, wheel: Wheel) -> None:
    assert wheel.cancel("early") is UNKNOWN
    bench.app.send_task("noop", countdown=0.2, task_id="early")
    bench.app.send_task("noop", countdown=0.3, task_id="other")
    wait_until(lambda: bench.dispatched() == ["other"], "the other leaves, and it alone")
    detail = wheel.get("early")
    assert detail is not None
    assert detail.state == "cancelled"


def test_a_task_is_moved_and_run_at_once(bench: Bench, wheel: Wheel) -> None:
    sooner, later, now = bench.send(3_600, 3)
    eta = datetime.now(UTC) + timedelta(hours=5)
    assert wheel.reschedule(later, eta=eta) is DONE
    assert wheel.reschedule(AsyncResult(sooner), countdown=0.3) is DONE
    assert wheel.run_now([now]) == {now: DONE}
    wait_until(lambda: len(bench.dispatched()) == 2, "two leave")
    assert bench.dispatched() == [now, sooner]
    wait_until(lambda: len(wheel.pending().items) == 1, "what left is settled")
    [waiting] = wheel.pending().items
    assert waiting.task_id == later
    assert abs(waiting.due_ms - eta.timestamp() * 1_000) < 1
    with pytest.raises(TypeError, match="must have an eta or a countdown"):
        wheel.reschedule(later)


def test_ten_thousand_are_cancelled_at_the_instant_they_are_due(bench: Bench, wheel: Wheel) -> None:
    """What the worker ran and what was said agree for each."""
    bench.celery("worker", "-P", "solo", "-l", "WARNING", "--without-gossip", "--without-mingle")
    with bench.app.producer_or_acquire() as producer:
        task_ids = [bench.app.send_task("mark", countdown=3_600, producer=producer).id for _ in range(10_000)]
    wait_until(lambda: sum(wheel.counts().tasks.values()) == 10_000, "all wait", 60)
    due = datetime.now(UTC) + timedelta(seconds=8)
    assert set(wheel.reschedule(task_ids, eta=due, timeout=60).values()) == {DONE}
    assert datetime.now(UTC) < due, "moving took too long for the race to happen"
    parts = [task_ids[start::4] for start in range(4)]
    verdicts: dict[str, Verdict] = {}

    def cancel(part: list[str]) -> None:
        verdicts.update(wheel.cancel(part, timeout=60))

    threads = [threading.Thread(target=cancel, args=(part,)) for part in parts]
    wait_until(lambda: datetime.now(UTC) >= due, "they are due")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    counts = Counter(verdicts.values())
    assert sum(counts.values()) == 10_000
    assert counts[UNKNOWN] == 0
    wait_until(lambda: bench.redis.llen("marks") >= counts[TOO_LATE], "what was too late has run", 60)
    wait_until(lambda: wheel.pending().items == [] and bench.redis.llen("celery") == 0, "nothing is left", 60)
    ran = Counter(one.decode() for one in bench.redis.lrange("marks", 0, -1))
    assert ran == Counter(task_id for task_id, verdict in verdicts.items() if verdict is TOO_LATE)


def test_a_request_that_nobody_answers_is_withdrawn(bench: Bench) -> None:
    process = bench.beat()
    bench.wait_for_holder(process)
    [task_id] = bench.send(0.5)
    process.kill()
    bench.app.conf.wheel_store = bench.store
    with pytest.raises(WheelUnavailable, match=r"nobody answered for shard 0 within 0\.2 s.*withdrawn.*celery beat"):
        bench.app.wheel.cancel(task_id, timeout=0.2)
    bench.beat()
    wait_until(lambda: bench.dispatched() == [task_id], "it leaves, since nobody will cancel it")
    bench.app.wheel.close()
