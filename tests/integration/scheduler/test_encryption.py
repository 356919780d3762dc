"""Keys on real brokers: nothing of a message is readable on its way; forged, unsigned and too new ones are rejected."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.control import Wheel
from celery_wheel.store import open_store
from tests.contract.stores.test_encryption import keys_of
from tests.kit.patience import patience, wait_until
from tests.kit.servers.rabbit import ON_RABBITMQ
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

OLD, NEW = "the old secret of 32 characters.", "the new secret of 32 characters."
MARK = "Marked4111111111111111"


def keys(*secrets: str) -> dict[str, Any]:
    return {"wheel_encryption_keys": secrets, "wheel_signing_keys": secrets}


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=ON_RABBITMQ)])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as stops:
        if request.param == "redis":
            server: Any = stops.enter_context(RedisServer(tmp_path / "redis"))
        else:
            server = request.getfixturevalue("rabbit_server").fresh()
        limits = {"wheel_limits": {"tenant": {"concurrency": 1}}}
        settings = {**keys(OLD), **limits, "wheel_unsigned": "refuse"}
        yield stops.enter_context(Stack(tmp_path, server, beat_schedule={}, **settings))


def test_marked_tasks_run_and_are_readable_nowhere(stack: Stack) -> None:
    in_group = {"wheel": {"group": "tenant:1"}}
    for number in range(3):  # one after the other: each needs the signed report of the one before
        stack.app.send_task("note", (f"{MARK} {number}",), countdown=1, **in_group)
    stack.app.send_task("note", (f"{MARK} later",), countdown=3_600, task_id="later")
    wheel: Wheel = stack.app.wheel
    beat = stack.beat()
    stack.wait_for_holder(beat)
    wheel.schedules.create("s", timedelta(hours=1), "note", [f"{MARK} schedule"])
    worker = stack.worker()
    stack.wait_for(*[f"{MARK} {number}" for number in range(3)])
    wheel.schedules.trigger("s")
    stack.wait_for(f"{MARK} schedule")
    [later] = wheel.find("later")
    assert MARK in later.body.decode()
    assert MARK not in str(stack.app.control.inspect(limit=2, timeout=patience()).scheduled())
    beat.terminate()
    for path in stack.file.parent.glob("wheel*"):
        assert MARK.encode() not in path.read_bytes(), path
    for process in (beat, worker):
        assert "signature" not in process.said()


def test_a_forged_message_is_rejected_and_can_be_requeued(stack: Stack) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    forger = stack.make_app(wheel_encryption_keys=(), wheel_signing_keys=())
    forger.send_task("note", ("forged",), countdown=0.01, task_id="forged")
    wheel: Wheel = stack.app.wheel
    wait_until(lambda: wheel.outcomes("rejected").items, "it is rejected")
    [one] = wheel.outcomes("rejected").items
    assert (one.task_id, one.reason) == (
        "forged",
        "it has no signature of wheel_signing_keys: its producer has no keys, or is none of yours",
    )
    beat.wait_for("rejected messages (signature): 1; the first is of task note forged")
    assert wheel.requeue("forged") == "done"
    stack.worker()
    stack.wait_for("forged")


def test_a_copy_in_the_queue_of_another_shard_is_rejected(tmp_path: Path, redis_server: RedisServer) -> None:
    with Stack(tmp_path, redis_server, beat_schedule={}, wheel_shards=2, wheel_unsigned="refuse", **keys(OLD)) as stack:
        task_id = next(one for one in map(str, range(99)) if shard_of(None, one, 2) == 0)
        stack.app.send_task("note", ("once",), countdown=0.01, task_id=task_id)
        [message] = stack.redis.lrange("wheel.0", 0, -1)
        beat = stack.beat()
        stack.wait_for_holder(beat, 1)
        wait_until(lambda: stack.dispatched(), "it is dispatched")
        stack.redis.lpush("wheel.0", message)
        stack.redis.lpush("wheel.1", message)
        wheel: Wheel = stack.app.wheel
        wait_until(lambda: wheel.outcomes("rejected").items, "the copy is rejected")
        [one] = wheel.outcomes("rejected").items
        assert (one.task_id, "signed for the wheel queue of another shard" in one.reason) == (task_id, True)
        wait_until(lambda: not stack.redis.llen("wheel.0"), "the other copy is dropped")
        assert stack.dispatched() == [task_id]


def test_messages_of_a_key_that_the_scheduler_lacks_are_read_once_it_has_it(stack: Stack) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    early = stack.make_app(**keys(NEW))
    early.send_task("note", ("of a new key",), countdown=0.01, task_id="new")
    wheel: Wheel = stack.app.wheel
    wait_until(lambda: wheel.outcomes("rejected").items, "it is rejected")
    [one] = wheel.outcomes("rejected").items
    assert one.task_id == "new"
    assert "is needed; this process has" in one.reason
    assert wheel.requeue("new") == "too_late"
    beat.terminate()
    beat = stack.beat(**keys(OLD, NEW))
    stack.wait_for_holder(beat)
    stack.change(**keys(NEW, OLD))
    assert wheel.requeue("new") == "done"
    stack.worker(**keys(NEW, OLD))
    stack.wait_for("of a new key")
    assert [one.reason for one in wheel.outcomes("moved").items] == ["it was read anew"]


@pytest.mark.slow
def test_keys_change_while_tasks_run(stack: Stack) -> None:
    """Each process is restarted by itself, and sends or carries messages all the time."""
    stack.worker(**keys(OLD, NEW))
    sent = 0
    for secrets in ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,)):
        beat = stack.beat(**keys(*secrets))
        stack.wait_for_holder(beat)
        producers = [keys(OLD), keys(NEW)] if len(secrets) == 2 else [keys(*secrets)]
        for producer in producers:
            for _ in range(10):
                stack.make_app(**producer).send_task("note", (sent,), countdown=0.2 * (sent % 3))
                sent += 1
        if secrets == (NEW, OLD):
            wait_until(lambda: keys_in_use(stack) == 1, "the store is encrypted by one key", 90)
        stack.wait_for(*range(sent))
        beat.terminate()
    assert not stack.app.wheel.outcomes("rejected").items
    assert json.dumps(sorted(stack.notes())) == json.dumps(sorted(range(sent)))


def keys_in_use(stack: Stack) -> int:
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        return len(keys_of(store))
