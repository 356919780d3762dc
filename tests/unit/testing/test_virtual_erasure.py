"""Erasure by ``app.wheel.erase``, with the real engine and a SQLite store: receipts, and the files of the store."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import ArgumentError, RequestInDoubt, WheelUnavailable
from celery_wheel.requests.erasure import NOT_COVERED
from celery_wheel.testing import VirtualWheel
from celery_wheel.timing import SystemClock

MARK = "Anna-Mueller-4711"


def erased(receipt: Any) -> dict[str, int]:
    return {kind: count for kind, count in receipt.counts.items() if count}


def traces(wheel: VirtualWheel) -> list[str]:
    """Return the store's files that have the mark, after they were written anew."""
    wheel.app.wheel.store.maintenance.rewrite()
    store = Path(wheel.app.wheel.store.name)
    files = [store, store.with_name(f"{store.name}-wal")]
    return [file.name for file in files if file.exists() and MARK.encode() in file.read_bytes()]


@pytest.fixture
def marked(wheel: VirtualWheel, tasks: Any) -> Any:
    """Tasks of a group with the mark in bodies, headers, names and reasons: pending, run and cancelled."""
    send = tasks["proj.fail"].apply_async
    names = [MARK * 3, MARK[::-1] * 3]
    rest = [send((name,), countdown=60, wheel={"group": f"tenant:{MARK}"}) for name in names]
    other = tasks["proj.add"].apply_async((1, 2), countdown=90)
    wheel.advance(seconds=70, propagate=False)
    rest += [send((MARK,), countdown=3_600, headers={"for": MARK}, wheel={"group": f"tenant:{MARK}"}) for _ in "ab"]
    wheel.app.wheel.cancel(rest[-1], actor="bob", reason=f"{MARK} asked")
    assert traces(wheel)
    return other


def test_a_receipt_counts_what_was_erased_and_names_nobody(wheel: VirtualWheel, marked: Any) -> None:
    receipt = wheel.app.wheel.erase(group=f"tenant:{MARK}", actor="dpo", reason="ticket 17")
    assert erased(receipt) == {"pending": 1, "history": 3, "audit": 1}
    assert receipt.shards == {0: receipt.counts}
    assert MARK not in repr(receipt)
    assert receipt.matches(f"tenant:{MARK}")
    assert not receipt.matches("tenant:other")
    text = str(receipt).splitlines()
    assert text[0] == f"Receipt {receipt.id}"
    assert f"criterion: group {receipt.digest}" in text
    assert "  3 tasks of the history, with their outcomes and runs" in text
    assert [line.strip() for line in text[-len(NOT_COVERED) :]] == list(NOT_COVERED)
    assert wheel.is_pending(marked)
    assert [one.task for one in wheel.run_all()] == ["proj.add"]


def test_the_audit_log_has_the_erasure_and_no_name(wheel: VirtualWheel, marked: Any) -> None:
    receipt = wheel.app.wheel.erase(group=f"tenant:{MARK}", actor="dpo", reason="ticket 17")
    erasure, cancel = wheel.app.wheel.audit().items
    assert (erasure.request, erasure.action, erasure.actor) == (receipt.id, "erase", "dpo")
    assert erasure.results == {receipt.digest: receipt.counts}
    assert (erasure.reason, erasure.details) == ("ticket 17", {"by": "group"})
    assert (cancel.actor, cancel.action, cancel.reason, cancel.results) == ("bob", "cancel", "", {})


def test_nothing_of_it_is_in_the_files_of_the_store(wheel: VirtualWheel, marked: Any) -> None:
    wheel.app.wheel.erase(group=f"tenant:{MARK}")
    assert traces(wheel) == []


def test_a_task_is_erased_by_its_id_also_asynchronously(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert erased(asyncio.run(wheel.app.wheel.aerase(task_id=result.id))) == {"pending": 1}
    assert erased(wheel.app.wheel.erase(task_id=result.id)) == {}
    assert wheel.run_all() == []


def test_a_schedule_is_erased_after_it_is_deleted(wheel: VirtualWheel) -> None:
    wheel.freeze()  # or an instant of the schedule may pass between two calls
    wheel.advance(seconds=(90 - wheel.now.second) % 60)  # at the end, no instant is so near that it is made already
    schedules = wheel.app.wheel.schedules
    schedules.create("daily", 60, "proj.fail", (MARK,), actor="bob", reason=MARK)
    wheel.advance(seconds=130, propagate=False)
    with pytest.raises(ArgumentError, match="the schedule 'daily' exists, and would go on making tasks; nothing was"):
        wheel.app.wheel.erase(schedule="daily")
    schedules.delete("daily", actor="bob")
    receipt = wheel.app.wheel.erase(schedule="daily", actor="dpo")
    assert erased(receipt) == {"history": len(wheel.ran), "revisions": 2, "audit": 2}
    assert schedules.get("daily") is None
    assert traces(wheel) == []
    assert erased(wheel.app.wheel.erase(schedule="daily")) == {}


@pytest.mark.parametrize(
    ("criteria", "problem"),
    [
        ({}, "erase must have one of task_id, key, group, schedule, got none; nothing was erased"),
        ({"key": "a", "group": "b"}, "got key and group"),
        ({"task_id": 5}, "task_id must be"),
        ({"key": "a", "transactional": True}, "without the option transactional"),
    ],
)
def test_a_wrong_criterion_erases_nothing(wheel: VirtualWheel, criteria: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        wheel.app.wheel.erase(**criteria)


def test_an_erasure_without_a_scheduler_is_withdrawn(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 2), countdown=60, wheel={"key": "k"})
    wheel.app.wheel.turn = lambda: None
    with pytest.raises(WheelUnavailable, match=r"the request \(erase\) was withdrawn"):
        wheel.app.wheel.erase(key="k", timeout=0.05)
    assert len(wheel.run_all()) == 1


def test_an_erasure_that_has_begun_goes_on_without_its_asker(
    wheel: VirtualWheel, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add.apply_async((1, 2), countdown=60, wheel={"key": "k"})
    turn, now_s, now_ms = wheel.app.wheel.turn, time.monotonic, SystemClock.monotonic_ms

    def turn_once() -> None:
        """Turn, after which the asker's time is over."""
        if time.monotonic is now_s:
            turn()
            monkeypatch.setattr(time, "monotonic", lambda: now_s() + 60)
            monkeypatch.setattr(SystemClock, "monotonic_ms", lambda clock: now_ms(clock) + 60_000)

    wheel.app.wheel.turn = turn_once
    with pytest.raises(RequestInDoubt, match="shard 0 has begun with the command erase, and goes on with it"):
        wheel.app.wheel.erase(key="k", timeout=30, patient=False)
    turn()
    assert wheel.run_all() == []
