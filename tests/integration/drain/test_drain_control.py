"""A drain also moves tasks that are paused, limited, watched or have a misfire option, unchanged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from celery_wheel.operations.drain import drain, import_, open_existing_store
from celery_wheel.store import open_store
from tests.integration.drain.conftest import LeavingStack, claimed
from tests.integration.drain.test_drain import drained, pending, queued, send
from tests.kit.patience import patience, wait_until

OPTIONS = {"wheel": {"watch": ["order:42"], "unique": "one", "misfire": 60}}


def accepted(stack: LeavingStack) -> str:
    """Send a paused task, and a task that expires when it is a minute late; their scheduler was stopped."""
    task_id = send(stack, "claims", 3_600, **OPTIONS)
    stack.beat(wheel_rate_limits={"note": "1/m"})
    wheel = stack.app.wheel
    wait_until(lambda: pending(stack) >= 0, "there is a store")
    wheel.pause(queue="celery", timeout=patience())  # the scheduler has made the store and may hold no shard yet
    plain = send(stack, "plain", 0.01)
    wait_until(lambda: wheel.get(task_id) and wheel.get(plain), "both are in the store")
    stack["beat"].terminate()
    wheel.close()
    return task_id


def test_gates_do_not_stop_a_drain_and_an_early_task_is_not_expired(redis_stack: LeavingStack) -> None:
    accepted(redis_stack)
    done = drained(redis_stack, to_broker=True)
    assert (done.moved + done.due, done.rejected, done.left) == (2, 0, 0)
    assert len(queued(redis_stack)) == 2


def test_a_file_keeps_claims_and_options(redis_stack: LeavingStack, tmp_path: Path) -> None:
    stack = redis_stack
    task_id = accepted(stack)
    file = tmp_path / "tasks.jsonl"
    with closing(open_existing_store(stack.app)) as store:
        assert drain(stack.app, store, file=file).left == 0
        assert store.watchers(0, "unique", ["one"]) == []
    stack.app.conf.wheel_store = stack.settings["wheel_store"] = f"sqlite:///{tmp_path}/other.sqlite3"
    import_(stack.app, file)
    # The offsets in Redis are the first store's, and the drain was seen there a moment ago.
    wait_until(lambda: claimed(stack.app, [0]), "the broker is free")
    stack.beat()
    with closing(open_store(stack.app.conf.wheel_store, create=True)) as other:
        wait_until(lambda: other.find(0, [task_id]), "the task is accepted")
        [(_, row)] = other.find(0, [task_id])
        assert row.misfire_ms == 60_000
        for kind, key in (("watch", "order:42"), ("unique", "one")):
            assert [id_ for _, id_, _ in other.watchers(0, kind, [key])] == [task_id]
