"""Real schedulers and workers: a task knows its instant, runs overlap as the policy says. See also ``tests.faults``."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

HALF = timedelta(seconds=0.5)


def test_a_task_knows_its_instant_and_a_retry_has_the_same(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    answer = stack.app.wheel.schedules.create("report", HALF, "occurrence", ["retried"], {"times": 1}, times=3)
    assert answer.result == "done"
    stack.app.send_task("occurrence", ["plain"])
    stack.wait_for("plain", counts={"retried": 6})
    assert stack.notes()["plain"][0]["args"] == []
    notes = stack.notes()["retried"]
    assert {note["args"][0] for note in notes} == {"report"}
    seen = {(note["args"][1], note["args"][3]): note for note in notes}
    instants = sorted({at for at, _ in seen})
    assert sorted(seen) == [(at, attempt) for at in instants for attempt in ("1", "2")]
    previous = [seen[at, "1"]["args"][2] for at in instants]
    assert previous == ["None", *instants[:2]]
    times = [datetime.fromisoformat(at) for at in instants]
    assert [after - before for before, after in itertools.pairwise(times)] == [HALF, HALF]
    assert all(at.utcoffset() == timedelta(0) for at in times)


def history_of(stack: Stack, name: str) -> Any:
    history = stack.app.wheel.schedules.history(name)
    assert history is not None
    return history


def test_a_run_that_goes_on_keeps_later_instants_from_running(stack: Stack) -> None:
    """The next run begins because the worker reports the end: by itself the run would count for a day."""
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    schedules = stack.app.wheel.schedules
    schedules.create("report", HALF, "occurrence", ["held"], {"holds": True, "times": 1}, overlap="skip")
    stack.wait_for("held")
    wait_until(lambda: sum(one.count for one in history_of(stack, "report").skips) >= 3, "instants are skipped")
    assert {one.reason for one in history_of(stack, "report").skips} == {"overlapped"}
    assert len(stack.notes()["held"]) == 1
    assert history_of(stack, "report").runs[-1].ended_at is None
    (stack.folder / "released").touch()
    wait_until(lambda: history_of(stack, "report").runs[-1].ended_at is not None, "the worker reports the end")
    wait_until(lambda: len({note["id"] for note in stack.notes()["held"]}) > 1, "a later instant runs")
    first, second = stack.notes()["held"][:2]
    assert (first["id"], first["args"][3], second["args"][3]) == (second["id"], "1", "2"), "a retry is part of the run"


def test_a_later_run_cancels_the_one_before(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker("-c", "2")
    stack.app.wheel.schedules.create(
        "report", timedelta(seconds=2), "occurrence", ["held"], {"holds": True}, overlap="cancel_running"
    )
    stack.wait_for(counts={"held": 3})
    ran = [note["id"] for note in stack.notes()["held"]]
    # A machine that stood still may also have revoked runs before they began.
    terminated = {(one, True) for one in ran[:2]}
    wait_until(lambda: terminated <= {(one[1], one[2]) for one in stack.revoked()}, "earlier runs are terminated")


def test_the_declaration_of_a_task_is_followed_when_a_scheduler_starts(stack: Stack) -> None:
    def declared(recurrence: int) -> dict[str, Any]:
        return {"note": {"wheel_schedule": {"name": "declared", "recurrence": recurrence, "queue": "slow"}}}

    def minutes() -> float | None:
        found = stack.app.wheel.schedules.get("declared")
        return None if found is None else found.recurrence.spec.every_ms / 60_000

    beat = stack.beat(task_annotations=declared(3_600))
    wait_until(lambda: stack.holders() != {}, "a scheduler holds the shard")
    wait_until(lambda: minutes() == 60, "the schedule is created")
    assert stack.app.wheel.schedules.get("declared").source == "code"
    beat.kill()
    beat = stack.beat(task_annotations=declared(7_200))
    wait_until(lambda: minutes() == 120, "the schedule is updated")
    beat.kill()
    stack.beat()
    wait_until(lambda: minutes() is None, "the schedule is deleted")


def test_an_occurrence_waits_in_a_queue_that_no_worker_has_declared(tmp_path: Path) -> None:
    queues = [("celery", "celery", "direct", "celery"), ("mail", "mails", "topic", "mail.#")]
    with RedisServer(tmp_path / "redis") as server, Stack(tmp_path, server, queues=queues) as stack:
        stack.wait_for_holder(stack.beat())
        stack.app.wheel.schedules.create("report", HALF, "note", ["bound"], queue="mail", times=3)
        wait_until(
            lambda: [one.state for one in history_of(stack, "report").runs] == ["dispatched"] * 3, "all are sent"
        )
        assert stack.redis.llen("mail") == 3
