"""Recurring schedules in a drain: a file has them with their pending occurrences; each instant runs once."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.engine.recurring.materialise import occurrence_id
from celery_wheel.errors import FileUnusable, StoreUnusable
from celery_wheel.operations.drain import drain, import_, open_existing_store, would_drain
from celery_wheel.operations.drain import file as drain_file
from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, StoredMessage, TallyKey
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import OCCURRENCE, Run, Schedule
from tests.integration.drain.conftest import LeavingStack, claimed, now_ms
from tests.integration.drain.test_drain import drained, filled, lines
from tests.kit.holder import Holder, message
from tests.kit.patience import patience, wait_until

MINUTE_MS = 60_000


def hourly() -> dict[str, Any]:
    """Return a schedule whose instants are half an hour from now: none comes while its test runs."""
    minute = (now_ms() // MINUTE_MS + 30) % 60
    return {"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab", "minute": str(minute)}}, "task": "note"}


def ask(stack: LeavingStack, do: str, names: Any, **more: Any) -> dict[str, Any]:
    """Let a scheduler carry out a command on schedules; returns its answer."""
    number = str(uuid.uuid4())
    named = {"definitions": names} if isinstance(names, dict) else {"names": names}
    payload = json.dumps({"do": do, **named, "id": number, "actor": "ann", "reason": "test", **more}).encode()
    with closing(open_store(stack.store, shards=None)) as store:
        store.put_command(0, "schedule", payload)
        with stack.service():
            wait_until(lambda: store.answer(number) is not None, "the command is answered")
        return store.answer(number) or {}


def schedules(store: str) -> dict[str, Schedule]:
    with closing(open_store(store, shards=None, create=False)) as opened:
        return {one.schedule.name: one.schedule for n in range(opened.shards) for one in opened.handover.schedules(n)}


def three(stack: LeavingStack) -> dict[str, Schedule]:
    """Make schedules: one with a pending occurrence, one that is paused, one that was changed."""
    definition = hourly()
    ask(stack, "create", dict.fromkeys(("hourly", "paused", "changed"), definition))
    ask(stack, "pause", ["paused"], reason="holidays")
    ask(stack, "update", {"changed": {**definition, "args": [1]}})
    with closing(open_existing_store(stack.app)) as store:
        occur(store, "hourly")
    return schedules(stack.store)


def occur(store: FullStore, name: str, task_id: str = "occurrence") -> None:
    """Make the next occurrence, as the scheduler does shortly before its time."""
    holder = Holder(store)
    [schedule] = store.schedules_named(0, [name])
    instant_ms = schedule.next_ms or 0
    seq = holder.seq()
    envelope_id = occurrence_id(store, schedule, instant_ms)
    own = {"schedule": name, "id": schedule.id, "scheduled_for": instant_ms, "report": True}
    headers = json.dumps({"task": "note", "id": task_id, OCCURRENCE: own}).encode()
    one = message(envelope_id=envelope_id, task_id=task_id, task="note", eta_ms=instant_ms, headers=headers)
    schedule.next_ms, schedule.made, schedule.last_ms = instant_ms + HOUR_MS, schedule.made + 1, instant_ms
    holder.apply(
        rows=[StoredMessage(seq, 0, instant_ms, seq, now_ms(), one)],
        runs=[Run(schedule.id, instant_ms, seq)],
        schedules=[schedule],
        tally={TallyKey(instant_ms // HOUR_MS, "celery", "note"): 1},
    )
    store.release(0, holder.epoch)


def test_a_file_takes_schedules_into_another_store_and_no_instant_is_made_twice(
    redis_stack: LeavingStack, tmp_path: Path
) -> None:
    stack, file = redis_stack, tmp_path / "tasks.jsonl"
    before = three(stack)
    with closing(open_existing_store(stack.app)) as store:
        assert would_drain(stack.app, store).schedules_left == 3
    done = drained(stack, file=file)
    assert (done.in_file, done.schedules, done.left, done.schedules_left) == (1, 3, 0, 0)
    assert schedules(stack.store) == {}
    with closing(open_existing_store(stack.app)) as store:
        detail = store.browse.schedule("hourly")
        assert detail is not None
        assert [(one.what, one.actor) for one in detail.revisions] == [("deleted", "drain"), ("created", "ann")]
        assert [one.state for one in detail.runs] == ["moved"]
    other = f"sqlite:///{tmp_path}/other.sqlite3"
    stack.change(wheel_store=other, wheel_shards=3)
    for _ in range(2):
        found = import_(stack.app, file)
        assert (found.schedules + found.schedules_known, found.bad_count, found.missing) == (3, 0, 0)
    # The offsets in Redis are the first store's, and the drain was seen there a moment ago.
    wait_until(lambda: claimed(stack.app, range(3)), "the broker is free")
    with stack.service(), closing(open_store(other, shards=None, create=False)) as store:
        wait_until(lambda: len(schedules(other)) == 3, "all are accepted")
        wait_until(lambda: any(store.find(n, ["occurrence"]) for n in range(3)), "the pending occurrence is accepted")
    assert import_(stack.app, file).schedules_known == 3
    after = schedules(other)
    for name, one in before.items():
        same = ("definition", "source", "next_ms", "made", "last_ms", "paused", "note", "broken", "since_ms")
        assert [getattr(after[name], field) for field in same] == [getattr(one, field) for field in same]
        assert after[name].revision == one.revision + 1
    with closing(open_store(other, shards=None, create=False)) as store:
        detail = store.browse.schedule("changed")
        assert detail is not None
        assert [one.what for one in detail.revisions] == ["imported", "changed", "created"]
        [row] = [one for n in range(3) for one in store.find(n, ["occurrence"])]
        assert row.eta_ms == before["hourly"].last_ms
        assert json.loads(row.parts().headers)[OCCURRENCE]["report"] is False


def test_occurrences_of_another_store_are_not_taken_for_those_of_this_one(
    redis_stack: LeavingStack, tmp_path: Path
) -> None:
    """Both stores have a schedule of the same number and revision, with a pending occurrence of the same instant."""
    stack, file, other = redis_stack, tmp_path / "tasks.jsonl", f"sqlite:///{tmp_path}/other.sqlite3"
    definition, found = hourly(), []
    for name, store in (("hourly", stack.store), ("another", other)):
        stack.change(wheel_store=store)
        open_store(store).close()
        wait_until(lambda: claimed(stack.app, [0]), "the broker is free")
        ask(stack, "create", {name: definition})
        with closing(open_existing_store(stack.app)) as opened:
            occur(opened, name)
            [schedule] = schedules(store).values()
            found.append((schedule.id, schedule.revision, schedule.last_ms))
            if name == "hourly":
                drain(stack.app, opened, file=file)
    assert found[0] == found[1]
    done = import_(stack.app, file)
    assert (done.put, done.known) == (1, 0)


def test_a_file_goes_back_into_its_own_store(redis_stack: LeavingStack, tmp_path: Path) -> None:
    stack, file = redis_stack, tmp_path / "tasks.jsonl"
    before = three(stack)
    drained(stack, file=file)
    assert import_(stack.app, file).schedules == 3
    with stack.service():
        wait_until(lambda: len(schedules(stack.store)) == 3, "all are accepted")
    assert schedules(stack.store)["hourly"].next_ms == before["hourly"].next_ms
    with closing(open_existing_store(stack.app)) as store:
        detail = store.browse.schedule("changed")
    assert detail is not None
    assert [(one.number, one.what) for one in detail.revisions] == [
        (4, "imported"),
        (3, "deleted"),
        (2, "changed"),
        (1, "created"),
    ]


def test_a_drain_that_ends_before_it_removes_schedules_goes_on_and_keeps_what_has_changed(
    redis_stack: LeavingStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, file = redis_stack, tmp_path / "tasks.jsonl"
    three(stack)

    def end(*_: object) -> None:
        raise RuntimeError("the end")

    with monkeypatch.context() as patched:
        patched.setattr(drain_file, "_remove_schedules", end)
        with pytest.raises(RuntimeError, match="the end"):
            drained(stack, file=file)
    ask(stack, "resume", ["paused"])
    done = drained(stack, file=file)
    assert (done.resumed, done.schedules, done.schedules_left) == (True, 3, 1)
    assert set(schedules(stack.store)) == {"paused"}
    with file.open("ab") as more:
        more.write(b"{}\n")
    with pytest.raises(FileUnusable, match="4 tasks and schedules that its header names, got 5"):
        drained(stack, file=file)


def test_a_drain_to_the_broker_leaves_schedules_in_the_store(redis_stack: LeavingStack) -> None:
    stack = redis_stack
    before = three(stack)
    done = drained(stack, to_broker=True)
    assert (done.moved, done.left, done.schedules, done.schedules_left) == (1, 0, 0, 3)
    assert schedules(stack.store) == before


def test_a_line_of_a_schedule_that_cannot_be_read_is_reported_and_the_others_go_on(
    redis_stack: LeavingStack, tmp_path: Path
) -> None:
    stack, file = redis_stack, tmp_path / "tasks.jsonl"
    filled(stack, 1)
    three(stack)
    drained(stack, file=file)
    whole = file.read_bytes().splitlines(keepends=True)
    assert len(lines(file)) == 1 + 2 + 3
    broken = [b'{"schedule": {"name": 7}}\n', whole[-1], b'{"schedule": 1']
    file.write_bytes(b"".join([*whole[:3], *broken]))
    found = import_(stack.app, file)
    assert (found.put, found.schedules, found.bad_count, found.missing) == (2, 1, 2, 0)
    assert [one.number for one in found.lines] == [4, 6]


def test_every_instant_runs_once_though_the_wheel_moves_to_another_store(
    redis_stack: LeavingStack, tmp_path: Path
) -> None:
    stack, file = redis_stack, tmp_path / "tasks.jsonl"
    stack.beat()
    wheel = stack.app.wheel
    wait_until(lambda: pending_of(stack) >= 0, "there is a store")
    wheel.pause(queue="celery", timeout=patience())  # the scheduler has made the store and may hold no shard yet
    wheel.schedules.create("each second", 1, "note", ["tick"], catch_up="all", catch_up_window=3_600)
    wait_until(lambda: pending_of(stack) >= 3, "occurrences wait behind the pause")
    stack["beat"].terminate()
    wheel.close()
    done = drained(stack, file=file)
    assert (done.left, done.schedules_left) == (0, 0)
    assert done.in_file >= 3
    stack.change(wheel_store=f"sqlite:///{tmp_path}/other.sqlite3")
    import_(stack.app, file)
    import_(stack.app, file)
    # The offsets in Redis are the first store's, and the drain was seen there a moment ago.
    wait_until(lambda: claimed(stack.app, [0]), "the broker is free")
    stack.beat()
    stack.worker()

    def each_once() -> bool:
        """Whether they ran each once, without a gap: those that were missed meanwhile have a lane of their own."""
        found = sorted(instants(stack))
        return found == list(range(found[0], found[0] + 1_000 * len(found), 1_000))

    wait_until(lambda: len(instants(stack)) >= done.in_file + 5 and each_once(), "each instant runs once")


def pending_of(stack: LeavingStack) -> int:
    try:
        with closing(open_existing_store(stack.app)) as store:
            return would_drain(stack.app, store).moved
    except StoreUnusable:
        return -1


def instants(stack: LeavingStack) -> list[int]:
    """Return the intended times of the occurrences that ran."""
    return [note["headers"][OCCURRENCE]["scheduled_for"] for note in stack.notes()["tick"]]
