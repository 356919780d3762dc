"""A drain with real brokers, stores, workers and a kill -9: every pending task runs once, not early, and unchanged."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from celery_wheel import broker
from celery_wheel.broker import wheel_queue_name
from celery_wheel.control import Wheel
from celery_wheel.errors import FileUnusable, SettingError, StoreUnusable
from celery_wheel.operations.drain import DrainResult, drain, import_, would_drain
from celery_wheel.operations.drain.hold import ShardHold
from celery_wheel.store import open_store
from celery_wheel.store.sql.handover import SqlHandover
from celery_wheel.store.sql.schema import bytes_to_task_id
from tests.integration.drain.conftest import LeavingStack, now_ms, waiting
from tests.kit.patience import PATIENCE_S, patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer

#: Tasks that are dispatched at once.
CHUNK = 100


def filled(stack: LeavingStack, count: int, in_s: float = 3_600, shards: int = 1, every_s: float = 0.01) -> list[str]:
    """Send tasks, those due later first, and let a scheduler accept them before it stops; returns their ids."""
    settings = {"wheel_shards": shards, "wheel_chunk": CHUNK}
    stack.change(**settings)
    now = datetime.now(UTC)
    sent = [send(stack, f"task {n}", in_s + (count - n) * every_s, now=now) for n in range(count)]
    with stack.service():
        wait_until(lambda: stack.count_pending() == count, "all tasks are in the store")
    return list(reversed(sent))


def send(stack: LeavingStack, tag: str, in_s: float, **options: Any) -> str:
    return stack.send_eta(tag, in_s, app=stack.app, **options)


def drained(stack: LeavingStack, **way: Any) -> DrainResult:
    with stack.opened() as store:
        return drain(stack.app, store, **way)


def queued(stack: LeavingStack, queue: str = "celery") -> list[dict[str, Any]]:
    """Remove all messages from a queue; returns their headers, oldest first."""
    found = []
    with stack.plain_app.connection_for_read() as connection, connection.channel() as channel:
        bound = next(one for one in stack.plain_app.amqp.queues.values() if one.name == queue)(channel)
        while (message := bound.get(no_ack=True)) is not None:
            found.append({**message.headers, "properties": message.properties})
    return found


def outcomes(stack: LeavingStack) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(stack.file)) as database:
        found = database.execute(
            "SELECT t.task_id, o.kind FROM wheel_outcome o JOIN wheel_timer t ON t.id = o.timer_id"
        ).fetchall()
    return [(bytes_to_task_id(id_), kind) for id_, kind in found]


@pytest.mark.slow
def test_everything_goes_to_its_own_queue_with_its_eta_in_order(stack: LeavingStack) -> None:
    ids = filled(stack, 30, shards=2)
    inbox = send(stack, "in the wheel queue", 7_200, expires=9_000, priority=3)
    queue = wheel_queue_name("wheel", shard_of(inbox))
    wait_until(lambda: waiting(stack.app, queue) == 1, "RabbitMQ has the message, which it did not confirm")
    with stack.opened() as store:
        asked = would_drain(stack.app, store)
    assert (asked.moved, asked.in_queues, asked.by_queue) == (30, 1, {"celery": 30})
    done = drained(stack, to_broker=True)
    assert (done.moved, done.due, done.rejected, done.accepted, done.left) == (31, 0, 0, 1, 0)
    found = queued(stack)
    assert {one["id"] for one in found} == {*ids, inbox}
    assert len(found) == 31
    assert all(one["eta"] and one["wheel_native"] for one in found)
    assert not any(one.get("wheel_redelivered") for one in found)
    for shard in range(2):
        mine = [one["id"] for one in found if shard_of(one["id"]) == shard and one["id"] != inbox]
        assert mine == [id_ for id_ in ids if shard_of(id_) == shard]
    assert sorted(outcomes(stack)) == sorted((id_, "moved") for id_ in (*ids, inbox))
    wheel = Wheel(stack.app)
    (entry,) = wheel.audit().items
    assert (entry.action, entry.details, len(entry.entries)) == ("drain", {"to": "broker"}, 2)
    assert entry.results == {"store": {"result": "done", "moved": 31, "due": 0, "rejected": 0, "schedules": 0}}
    assert [shard.pending for shard in wheel.status()] == [0, 0]
    assert wheel.get(ids[0]).state == "moved"  # type: ignore[union-attr]
    assert wheel.history().items == wheel.settlements().items == []
    wheel.close()


def shard_of(task_id: str) -> int:
    return broker.shard_of(None, task_id, 2)


@pytest.mark.slow
def test_workers_without_the_wheel_run_drained_tasks_when_they_are_due(stack: LeavingStack) -> None:
    filled(stack, 20, in_s=(in_s := patience(8)))
    send(stack, "overdue", 0.05)
    overdue_ms = now_ms() + 200
    wait_until(lambda: waiting(stack.app) == 1 and now_ms() > overdue_ms, "the broker has it, and it is due")
    done = drained(stack, to_broker=True)
    assert (done.moved, done.due) == (20, 1)
    stack.worker(wheel_rescue=True)  # a rescue does not move it
    tags = [f"task {n}" for n in range(20)] + ["overdue"]
    stack.wait_for(*tags, seconds=in_s + PATIENCE_S)
    notes = stack.notes()
    assert {tag: len(found) for tag, found in notes.items()} == dict.fromkeys(tags, 1)
    # The worker's own timer has microseconds, and a note of a run has whole milliseconds.
    assert all(note["ran_ms"] >= note["args"][0] - 1 for found in notes.values() for note in found)
    assert waiting(stack.app) == 0


@pytest.mark.slow
def test_after_a_drain_the_same_store_can_be_used_again(stack: LeavingStack) -> None:
    """The drain moved the offset ahead to the last due time and back: no new task waits for that time."""
    filled(stack, 5, in_s=100_000)
    drained(stack, to_broker=True)
    queued(stack)
    stack.beat()
    again = [send(stack, f"again {n}", 0.5) for n in range(5)]
    wait_until(lambda: waiting(stack.app, "celery") == 5, "they are dispatched when they are due")
    assert sorted(one["id"] for one in queued(stack)) == sorted(again)
    with stack.opened() as store:
        assert [lane.lane for lane in store.lanes(0)] == [0]
    assert "lost writes" not in stack["beat"].said()


@pytest.mark.slow
@pytest.mark.parametrize(("place", "point"), [(SqlHandover, "offsets_to_correct"), (ShardHold, "set_back")])
def test_a_drain_that_ends_while_it_puts_the_offset_back_dispatches_nothing_twice(
    stack: LeavingStack, monkeypatch: pytest.MonkeyPatch, place: Any, point: str
) -> None:
    """The rows are retired by then; with ``set_back`` the broker's offset is back and the store's is not."""
    ids = filled(stack, 5, in_s=100_000)
    ids.append(send(stack, "overdue", 0.01))

    with monkeypatch.context() as patched:
        patched.setattr(place, point, Mock(side_effect=RuntimeError("the end")))
        with pytest.raises(RuntimeError, match="the end"):
            drained(stack, to_broker=True)
    stack.beat()
    ids.append(send(stack, "new", 0.2))
    wait_until(lambda: waiting(stack.app, "celery") == 7, "the new task is dispatched")
    stack["beat"].terminate()
    assert drained(stack, to_broker=True).left == 0
    assert sorted(one["id"] for one in queued(stack)) == sorted(ids)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 350])
def test_a_drain_that_is_killed_and_run_again_loses_nothing(stack: LeavingStack, after: int) -> None:
    ids = filled(stack, 600)
    stack.drain("broker", "dispatched", str(after))
    stack["drain"].kill()
    done = drained(stack, to_broker=True)
    assert done.left == 0
    found = queued(stack)
    first = [one["id"] for one in found if not one.get("wheel_redelivered")]
    assert sorted({one["id"] for one in found}) == sorted(ids)
    assert len(first) == len(set(first)), "a second copy is marked"
    assert all(one["eta"] for one in found)
    if stack.broker.startswith("redis"):
        assert len(found) == len(ids), "exactly once"
    assert len(found) - len(ids) <= CHUNK, "a chunk at most was in doubt"
    assert sorted(outcomes(stack)) == sorted((id_, "moved") for id_ in ids)


@pytest.mark.slow
def test_a_scheduler_after_a_drain_that_was_killed_sends_nothing_early(stack: LeavingStack) -> None:
    """On RabbitMQ a chunk is in doubt then; due rows in doubt would be dispatched at once."""
    ids = filled(stack, 600, in_s=600)
    stack.drain("broker", "dispatched", "1")
    stack["drain"].kill()
    near = [send(stack, f"near {n}", 0.5) for n in range(3)]
    stack.beat()
    wait_until(lambda: all(id_ in stack.in_store() for id_ in near), "the scheduler works")
    send(stack, "nearer", 0.3)
    with stack.opened() as store:
        wait_until(lambda: would_drain(stack.app, store).moved <= len(ids), "the due tasks are dispatched")
    found = queued(stack)
    assert {one["id"] for one in found if not one["eta"]} <= {*near, *(set(stack.in_store()) - set(ids))}
    stack["beat"].terminate()
    drained(stack, to_broker=True)
    assert {one["id"] for one in [*found, *queued(stack)]} >= {*ids, *near}


@pytest.mark.slow
def test_a_drain_is_refused_while_a_scheduler_runs_and_for_invalid_arguments(stack: LeavingStack, file: Path) -> None:
    ids = filled(stack, 3)
    stack.beat()
    stack["beat"].wait_for("is held by")
    with stack.opened() as store:
        wait_until(lambda: store.holders()[0] is not None, "it says so")
        with pytest.raises(StoreUnusable, match="stop all schedulers"):
            drain(stack.app, store, to_broker=True)
        for way in ({}, {"to_broker": True, "file": file}, {"file": file, "include": ["old"]}):
            with pytest.raises(SettingError):
                drain(stack.app, store, **way)  # type: ignore[arg-type]
    assert stack.count_pending() == len(ids)
    assert not file.exists()


@pytest.mark.slow
def test_postgresql_is_drained_as_sqlite_is(
    tmp_path: Path, redis_server: RedisServer, postgres: PostgresServer
) -> None:
    with LeavingStack(tmp_path, redis_server.url, postgres.new_database()) as stack:
        ids = filled(stack, 300)
        stack.drain("broker", "dispatched", "150")
        stack["drain"].kill()
        done = drained(stack, to_broker=True)
        assert (done.left, done.rejected) == (0, 0)
        assert [one["id"] for one in queued(stack)] == ids
        with closing(Wheel(stack.app)) as wheel:
            assert len(wheel.outcomes("moved", limit=1_000).items) == 300
            assert wheel.settlements().items == []


@pytest.fixture(params=["sqlite", "postgresql"])
def other_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/other.sqlite3"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


@pytest.mark.slow
def test_a_file_has_every_byte_and_goes_into_another_store_once(
    redis_stack: LeavingStack, tmp_path: Path, file: Path, other_store: str
) -> None:
    filled(redis_stack, 20, in_s=(in_s := patience(8)))
    send(redis_stack, "packed", in_s, compression="gzip", headers={"greeting": "Grüße"}, priority=6)
    send(redis_stack, "pickled", in_s, serializer="pickle")
    redis_stack.app.conf.task_protocol = 1
    done = drained(redis_stack, file=file)
    assert (done.moved, done.in_file, done.accepted, done.left) == (22, 22, 2, 0)
    header, *tasks = lines(file)
    assert (header["count"], header["version"]) == (22, 1)
    assert [one["due_ms"] for one in tasks] == sorted(one["due_ms"] for one in tasks)
    assert not list(tmp_path.glob("*.part"))
    redis_stack.change(wheel_store=other_store, wheel_shards=3)
    for _ in range(2):
        found = import_(redis_stack.app, file)
        assert (found.put + found.known, found.bad_count, found.missing) == (22, 0, 0)
    redis_stack.claim_broker()
    redis_stack.beat()
    redis_stack.worker()
    tags = [f"task {n}" for n in range(20)] + ["packed", "pickled"]
    redis_stack.wait_for(*tags, seconds=in_s + PATIENCE_S)
    with closing(open_store(other_store, shards=None, create=False)) as store:
        wait_until(lambda: not any(store.read_inbox(shard, 1) for shard in range(3)), "the inbox is empty")
    assert import_(redis_stack.app, file).known == 22
    notes = redis_stack.notes()
    assert {tag: len(found) for tag, found in notes.items()} == dict.fromkeys(tags, 1)
    assert all(note["ran_ms"] >= note["args"][0] for found in notes.values() for note in found)
    assert notes["packed"][0]["greeting"] == "Grüße"
    assert notes["packed"][0]["delivery_info"]["priority"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(("what", "after"), [("written", 1_000), ("moved", 1_000)])
def test_a_killed_drain_to_a_file_loses_nothing(redis_stack: LeavingStack, file: Path, what: str, after: int) -> None:
    ids = filled(redis_stack, 2_000)
    redis_stack.drain(str(file), what, str(after))
    assert file.exists() == (what == "moved")
    redis_stack["drain"].kill()
    done = drained(redis_stack, file=file)
    assert (done.left, done.in_file, done.dispatched_since) == (0, 2_000, 0)
    assert done.resumed == (what == "moved")
    assert [one["task_id"] for one in lines(file)[1:]] == ids
    assert sorted(outcomes(redis_stack)) == sorted((id_, "moved") for id_ in ids)


@pytest.mark.slow
def test_tasks_dispatched_between_two_drains_to_one_file_are_counted(redis_stack: LeavingStack, file: Path) -> None:
    filled(redis_stack, 2_000, in_s=patience(15), every_s=0.001)  # it takes four seconds until the drain is killed
    redis_stack.drain(str(file), "moved", "1000")
    redis_stack["drain"].kill()
    redis_stack.beat()
    wait_until(lambda: redis_stack.count_pending() == 0, "the scheduler has sent the rest", 90)
    redis_stack["beat"].terminate()
    done = drained(redis_stack, file=file)
    assert (done.resumed, done.moved, done.dispatched_since, done.left) == (True, 0, 1_000, 0)


def test_rejected_tasks_are_drained_with_include(redis_stack: LeavingStack, tmp_path: Path, file: Path) -> None:
    filled(redis_stack, 2)
    redis = redis_stack.plain_app.connection_for_write().default_channel.client
    redis.lpush("wheel.0", b"no message")
    done = drained(redis_stack, file=tmp_path / "without")
    assert (done.moved, done.rejected, done.outcomes) == (2, 1, {"rejected": 1})
    done = drained(redis_stack, file=file, include=["rejected"])
    assert (done.in_file, done.outcomes) == (1, {})
    (_, line) = lines(file)
    assert (line["outcome"], line["task"], line["body"]) == ("rejected", "", "bm8gbWVzc2FnZQ==")
    redis.close()


def test_a_bad_file_is_refused_bad_lines_reported(
    redis_stack: LeavingStack, tmp_path: Path, other: str, file: Path
) -> None:
    stack, bad = redis_stack, tmp_path / "bad.jsonl"
    filled(stack, 5)
    bad.write_bytes(b"something else\n")
    for do in (lambda: drained(stack, file=bad), lambda: import_(stack.app, bad)):
        with pytest.raises(FileUnusable, match="must begin with the line that a drain writes"):
            do()
    assert stack.count_pending() == 5
    drained(stack, file=file)
    header, *tasks = file.read_bytes().splitlines(keepends=True)
    broken = [json.loads(line) for line in tasks]
    del broken[0]["eta_ms"]
    broken[1]["body"] = "no base64"
    broken[2]["task_id"] = "x" * 2_000
    bad.write_bytes(header + b"".join(json.dumps(one).encode() + b"\n" for one in broken[:4]) + tasks[4][:50])
    stack.app.conf.wheel_store = other
    found = import_(stack.app, bad)
    assert (found.put, found.bad_count, [one.number for one in found.lines]) == (1, 4, [2, 3, 4, 6])
    assert "eta_ms" in found.lines[0].reason
    assert "512 characters" in found.lines[2].reason
    bad.write_bytes(header + tasks[0])
    assert import_(stack.app, bad).missing == 4
    bad.write_bytes(header.replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(FileUnusable, match="must be of version 1, got 9"):
        import_(stack.app, bad)
    with pytest.raises(FileUnusable, match="must be new, or of this store"):
        drained(stack, file=file)


OPTIONS = {"wheel": {"watch": ["order:42"], "group": "tenant:42", "unique": "tenant:42:one", "misfire": 60}}


def accepted(stack: LeavingStack) -> str:
    """Send a paused task, and a task that expires when it is a minute late; their scheduler was stopped."""
    task_id = send(stack, "claims", 3_600, **OPTIONS)
    stack.beat(wheel_rate_limits={"note": "1/m"})
    wheel = stack.app.wheel
    wait_until(lambda: stack.count_pending() >= 0, "there is a store")
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


def test_limits_of_groups_do_not_stop_a_drain(redis_stack: LeavingStack) -> None:
    redis_stack.change(wheel_limits={"tenant": {"concurrency": 1}})
    sent = [send(redis_stack, f"{n}", 0, wheel={"group": "tenant:42"}) for n in range(5)]
    with redis_stack.service():
        wait_until(lambda: len(redis_stack.dispatched()) == 1, "the first task is in its queue")
        wait_until(lambda: redis_stack.count_pending() == 4, "the others wait in their line")
    assert drained(redis_stack, to_broker=True).left == 0
    assert redis_stack.dispatched() == sent


@pytest.mark.slow
def test_a_file_keeps_claims_and_options(redis_stack: LeavingStack, file: Path, other: str) -> None:
    task_id = accepted(redis_stack)
    with redis_stack.opened() as store:
        assert drain(redis_stack.app, store, file=file).left == 0
        assert store.watchers(0, "unique", ["tenant:42:one"]) == []
    redis_stack.app.conf.wheel_store = redis_stack.settings["wheel_store"] = other
    import_(redis_stack.app, file)
    redis_stack.claim_broker()
    redis_stack.beat()
    with closing(open_store(other)) as store:
        wait_until(lambda: store.find(0, [task_id]), "the task is accepted")
        [row] = store.find(0, [task_id])
        assert (row.misfire_ms, row.group) == (60_000, "tenant:42")
        for kind, key in (("watch", "order:42"), ("unique", "tenant:42:one")):
            assert [row.task_id for _, row in store.watchers(0, kind, [key])] == [task_id]
