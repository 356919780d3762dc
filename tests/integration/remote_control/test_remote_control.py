"""Schedulers and workers under Celery's own remote control, on Redis or RabbitMQ; results in Redis.

A scheduler is inspected like a worker: by the API, the command line and Flower; several schedulers, no broker.
Celery's own revokes of tasks that are pending in the wheel.
"""

import itertools
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError

import celery
import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from tests.kit.manual import code, page
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


def answers(nodes: int = 1) -> dict[str, Any]:
    """Return options that end a broadcast's wait, otherwise always a second, when so many nodes have answered."""
    return {"reply": True, "limit": nodes, "timeout": patience()}


class NodeStack(Stack):
    """A stack with schedulers; ``app`` is the app in a user's shell."""

    def send_far(self, name: str = "note", **options: Any) -> Any:
        result = self.app.send_task(name, **{"countdown": 3_600, **options})
        wait_until(lambda: self.app.wheel.find(result.id), "the task is in the store")
        return result

    def inspect(self, nodes: int = 1) -> Any:
        return self.app.control.inspect(limit=nodes, timeout=patience())

    def output(self, *arguments: str) -> str:
        """Return the output of a command, which is repeated until it has an answer: it waits for a second only."""
        printed: list[str] = []

        def answered() -> bool:
            code, said = self.celery(*arguments).end()
            printed.append(said)
            return code == 0

        wait_until(answered, f"celery {' '.join(arguments)} has an answer")
        return printed[-1]

    def revoke(self, *task_ids: str) -> None:
        """Revoke tasks, and wait until the holder has carried it out: the node answers when it is in the inbox."""
        self.app.control.revoke(list(task_ids), **answers())
        wait_until(lambda: not self.app.wheel.store.has_arrivals(0), "the revoke is carried out")

    def states(self, task_id: str) -> list[str]:
        return [one.state for one in self.app.wheel.find(task_id)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[NodeStack]:
    with RedisServer(tmp_path / "redis") as server, NodeStack(tmp_path, server, result_backend=server.url) as found:
        yield found


@pytest.fixture
def rabbit_stack(tmp_path: Path, rabbit_server: RabbitServer, redis_server: RedisServer) -> Iterator[NodeStack]:
    with NodeStack(tmp_path, rabbit_server.fresh(), result_backend=redis_server.url) as found:
        yield found


def answer_of_the_wheel(answers: dict[str, Any] | None) -> Any:
    [(name, found)] = (answers or {}).items()
    assert name.startswith("wheel@"), answers
    return found


def test_pending_tasks_are_shown_as_a_worker_shows_its_own(stack: NodeStack) -> None:
    """Every key is the same as in the answer of a real worker, which holds a task that did not pass the wheel."""
    stack.node()
    stack.worker()
    eta = datetime(2090, 1, 1, tzinfo=UTC)
    waits = stack.send_far(
        args=(1, "two"), kwargs={"a": b"x".decode()}, countdown=None, eta=eta, priority=3, shadow="alias"
    )
    held = stack.app.send_task("note", eta=eta + timedelta(hours=1), wheel=False)
    inspect = stack.inspect(2)
    wait_until(lambda: any(map(len, (inspect.scheduled() or {}).values())), "both answer")
    wait_until(lambda: all(len(found) == 1 for found in inspect.scheduled().values()), "both have one")
    by_node = {name.partition("@")[0]: found for name, [found] in inspect.scheduled().items()}
    wheel, worker = by_node["wheel"], by_node["celery"]
    assert (wheel["request"]["id"], worker["request"]["id"]) == (waits.id, held.id)
    assert wheel.keys() == worker.keys()
    assert wheel["request"].keys() == worker["request"].keys()
    assert wheel["request"]["delivery_info"].keys() == worker["request"]["delivery_info"].keys()
    assert wheel["eta"] == "2090-01-01T00:00:00+00:00"
    assert wheel["priority"] == worker["priority"]
    request = wheel["request"]
    assert (request["name"], request["type"], request["args"]) == ("alias", "note", "(1, 'two')")
    assert request["delivery_info"]["routing_key"] == "celery"
    assert request["delivery_info"]["priority"] == 3
    found = {name.partition("@")[0]: one for name, one in inspect.query_task(waits.id, held.id, "nobody").items()}
    assert found["wheel"] == {waits.id: ["scheduled", request]}
    if celery.VERSION >= (5, 7):  # an older worker does not find a task that it holds for its eta
        assert found["celery"][held.id][0] == "scheduled"


@pytest.mark.slow
def test_a_shortened_list_says_so_and_can_be_printed(stack: NodeStack) -> None:
    beat = stack.node()
    with stack.app.producer_or_acquire() as producer:
        for n in range(1_003):
            stack.app.send_task("note", (n,), countdown=3_600 + n, producer=producer)
    wait_until(lambda: sum(stack.app.wheel.counts().tasks.values()) == 1_003, "all wait")
    found = answer_of_the_wheel(stack.inspect().scheduled())
    assert len(found) == 1_001
    assert [one["request"]["args"] for one in found[:3]] == ["(0,)", "(1,)", "(2,)"]
    assert found[-1].keys() == found[0].keys()
    assert found[-1]["request"].keys() == found[0]["request"].keys()
    assert found[-1]["request"]["name"].startswith("and about 3 more")
    beat.wait_for("shows 1000 tasks of 1003")
    printed = stack.output("inspect", "scheduled")
    assert "and about 3 more" in printed
    assert "1 node online" in printed


@pytest.mark.slow
def test_every_query_is_answered_on_the_command_line(stack: NodeStack) -> None:
    stack.node()
    result = stack.send_far()
    expected = {
        "report": "software -> celery",
        "conf": "wheel_store",
        "stats": '"pending": 1',
        "scheduled": result.id,
        "active": "- empty -",
        "reserved": "- empty -",
        "registered": "- empty -",
        "active_queues": "- empty -",
        "revoked": "- empty -",
        "clock": "clock",
    }
    asked = {command: stack.celery("inspect", command) for command in expected}  # at once: each waits for a second
    for command, said in expected.items():
        code, output = asked[command].end()
        output = stack.output("inspect", command) if code else output
        assert said in output, output
        assert "wheel@" in output
        assert "rror" not in output, output
    assert result.id in stack.output("inspect", "query_task", result.id)


@pytest.mark.slow
def test_a_ping_that_names_nobody_asks_for_workers(stack: NodeStack) -> None:
    """``celery status`` and a probe by ``inspect ping`` fail while no worker runs."""
    stack.node()
    for command in (["inspect", "ping"], ["status"]):
        code, output = stack.celery(*command).end()
        assert (code, "No nodes replied" in output) == (69, True), output
    worker = stack.worker()
    status = stack.output("status")
    assert "1 node online" in status
    assert "beat." not in status
    worker.terminate()
    [name] = stack.inspect().clock()
    assert "pong" in stack.output("inspect", "ping", "-d", name)


def test_stats_have_a_workers_keys_and_a_part_of_their_own(stack: NodeStack) -> None:
    stack.node()
    stack.worker()
    stack.send_far()
    found = {name.partition("@")[0]: one for name, one in stack.inspect(2).stats().items()}
    wheel, worker = found["wheel"], found["celery"]
    assert worker.keys() <= wheel.keys()
    assert worker["broker"].keys() - wheel["broker"].keys() <= {"alternates", "transport_options"}
    assert "password" not in wheel["broker"]
    assert wheel["wheel"]["pending"] == 1
    assert list(wheel["wheel"]["shards"]) == ["0"]
    [waiting] = stack.app.wheel.pending().items  # in an hour: the holder does not have it in memory yet
    assert wheel["wheel"]["shards"]["0"]["next_due_ms"] == waiting.due_ms


def test_commands_for_workers_are_answered_only_when_sent_by_name(stack: NodeStack) -> None:
    stack.node()
    assert stack.app.control.pool_grow(2, reply=True) == []
    [name] = stack.inspect().clock()
    [answer] = stack.app.control.broadcast("pool_grow", {"n": 2}, destination=[name], **answers())
    assert "is a scheduler and runs no tasks" in answer[name]["error"]
    assert stack.app.control.ping(destination=["celery@elsewhere"]) == []
    [answer] = stack.app.control.ping(pattern="wheel@*", matcher="glob", limit=1, timeout=patience())
    assert answer == {name: {"ok": "pong"}}
    stack.app.control.broadcast("shutdown", destination=[name])
    assert stack.app.control.ping(destination=[name], limit=1, timeout=patience())


def test_each_of_two_schedulers_answers_about_its_own_shards(stack: NodeStack) -> None:
    first = stack.node(wheel_shards=2)
    second = stack.beat(wheel_shards=2)
    second.wait_for("at epoch")
    second.wait_for("listens")
    stack.app.conf.wheel_shards = 2
    sent = {stack.app.send_task("note", countdown=3_600).id for _ in range(40)}
    wait_until(lambda: sum(stack.app.wheel.counts().tasks.values()) == 40, "all wait")
    by_node = stack.inspect(2).scheduled()
    assert len(by_node) == 2
    found = [[one["request"]["id"] for one in lists] for lists in by_node.values()]
    assert all(found)
    assert sorted(itertools.chain(*found)) == sorted(sent)
    assert len(stack.app.control.revoke(sorted(sent), **answers(2))) == 2
    wait_until(lambda: len(stack.revoked()) == 40, "the store has each of them")
    assert len({one[1] for one in stack.revoked()}) == 40
    code, said = first.terminate(), first.said()
    assert code == 0, said
    second.wait_for("at epoch", 2)
    assert [list(one["wheel"]["shards"]) for one in stack.inspect().stats().values()] == [["0", "1"]]


def test_the_node_comes_back_after_the_broker_did(stack: NodeStack) -> None:
    beat = stack.node()
    stack.server.client().save()
    stack.server.restart()
    beat.wait_for("listens", 2)
    assert "OK" in stack.output("inspect", "clock")
    assert beat.is_alive()


def test_the_node_can_be_switched_off(stack: NodeStack) -> None:
    beat = stack.beat(wheel_control=False)
    beat.wait_for("at epoch")
    result = stack.send_far()
    stack.app.wheel.cancel(result)
    wait_until(lambda: stack.app.backend.get_state(result.id) == "REVOKED", "the bookkeeping is done all the same")
    assert "listens" not in beat.said()
    assert not stack.app.control.inspect(timeout=1).clock()


@pytest.mark.slow
def test_gossip_does_not_take_the_node_for_a_worker(stack: NodeStack) -> None:
    """A worker would wait for its vote in elections."""
    stack.node()
    worker = stack.celery("worker", "-P", "solo", "-l", "DEBUG", "-n", "one@host")
    worker.wait_for("ready.")
    stack.celery("worker", "-P", "solo", "-n", "two@host")
    worker.wait_for("two@host joined the party")
    seen = stack.server.client().pubsub()
    seen.psubscribe("*wheel.heartbeat")
    wait_until(lambda: (seen.get_message(timeout=1) or {}).get("type") == "pmessage", "the node's heart beats")
    seen.close()
    assert "wheel@" not in worker.said()


class Browser:
    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self._root + path, timeout=patience(30)) as answer:  # noqa: S310 - our own server
            return str(answer.read().decode())

    def is_up(self) -> bool:
        try:
            return bool(self.get("/healthcheck"))
        except (URLError, ConnectionError):
            return False

    def shows(self, path: str, *texts: str) -> bool:
        try:
            page = self.get(path)
        except URLError:  # not known yet, or its node did not answer within the second that Flower waits
            return False
        return all(text in page for text in texts)

    def online(self) -> list[str]:
        return sorted(one["hostname"] for one in json.loads(self.get("/workers?json=1"))["data"] if one["status"])


@pytest.mark.slow
def test_flowers_pages_show_the_scheduler_and_pending_tasks(stack: NodeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    beat = stack.node(worker_send_task_events=True)
    stack.worker(worker_send_task_events=True)
    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    flower = stack.celery("flower", f"--port={port}", "--address=127.0.0.1", "--logging=info", cold=True)
    browser = Browser(port)
    wait_until(browser.is_up, "flower is up")
    wait_until(lambda: len(browser.online()) == 2, "it sees both online")
    celery, name = browser.online()
    assert (celery.partition("@")[0], name.partition("@")[0]) == ("celery", "wheel")
    waits, revoked = stack.send_far(args=(4711,)), stack.send_far()
    revoked.revoke()
    wait_until(lambda: stack.states(revoked.id) == ["cancelled"], "it is cancelled")
    shown = (waits.id, "(4711,)", revoked.id, "redis")
    wait_until(lambda: browser.shows(f"/worker/{name}", *shown), "the scheduler's page has its tasks")
    wait_until(lambda: browser.shows(f"/worker/{celery}", celery), "the worker has a page")
    wait_until(lambda: browser.shows(f"/task/{revoked.id}", "REVOKED"), "the task's page has the event")
    assert json.loads(browser.get("/api/tasks"))[revoked.id]["state"] == "REVOKED"
    for path in ("/workers", "/tasks", "/broker", "/metrics", "/api/workers?refresh=1"):
        assert browser.get(path)
    said = flower.said()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    assert "Traceback" not in beat.said()


def check_revoked(*results: Any) -> None:
    for result in results:
        with pytest.raises(TaskRevokedError, match="revoked"):
            result.get(timeout=patience())


@pytest.mark.parametrize("broker", ["stack", pytest.param("rabbit_stack", marks=ON_RABBITMQ)])
def test_a_revoked_task_is_not_dispatched_and_its_result_says_so(request: pytest.FixtureRequest, broker: str) -> None:
    """No worker runs: the scheduler does all of it."""
    stack: NodeStack = request.getfixturevalue(broker)
    stack.node()
    result, other = stack.send_far(kwargs={}, args=(1, "two")), stack.send_far()
    result.revoke()
    check_revoked(result)
    assert stack.states(result.id) == ["cancelled"]
    [(name, [found])] = stack.inspect().scheduled().items()
    assert (name.partition("@")[0], found["request"]["id"]) == ("wheel", other.id)
    wait_until(lambda: stack.revoked(), "the signal is sent")
    assert stack.revoked() == [["note", result.id, False, None, False]]


def test_the_examples_of_the_manual_run(stack: NodeStack) -> None:
    stack.node()
    revokes, comparison = code(page("control-celery.md"), "python")
    send, get, others = re.split(r"(^result\.get.*\n)", revokes, flags=re.MULTILINE)
    names: dict[str, Any] = {"app": stack.app, "remind": stack.app.signature("note")}
    names |= {"a": stack.send_far(), "b": stack.send_far(), "task_id": stack.send_far().id}
    spring = stack.send_far(
        headers={"stamps": {"campaign": "spring"}, "stamped_headers": ["campaign"], "campaign": "spring"}
    )
    exec(send, names)  # noqa: S102 - our own page
    with pytest.raises(TaskRevokedError):
        exec(get, names)  # noqa: S102 - our own page
    exec(others, names)  # noqa: S102 - our own page
    exec(comparison, names)  # noqa: S102 - our own page
    ids = [names["result"].id, names["a"].id, names["b"].id, names["task_id"], spring.id]
    wait_until(lambda: [stack.states(one) for one in ids] == [["cancelled"]] * 5, "all are cancelled")


def test_several_tasks_are_revoked_at_once_and_from_the_command_line(stack: NodeStack) -> None:
    stack.node()
    results = [stack.send_far() for _ in range(3)]
    other = stack.send_far()
    [answer] = stack.app.control.revoke([one.id for one in results[:2]], **answers())
    [said] = answer.values()
    assert all(one.id in said["ok"] for one in results[:2])
    assert results[2].id in stack.output("control", "revoke", results[2].id)
    check_revoked(*results)
    assert [task.task_id for task in stack.app.wheel.pending().items] == [other.id]


def test_a_task_that_arrives_after_its_revoke_is_not_dispatched(stack: NodeStack) -> None:
    stack.node()
    stack.revoke("early")
    result = stack.app.send_task("note", countdown=0.2, task_id="early")
    stack.app.send_task("note", countdown=0.3, task_id="other")
    wait_until(lambda: stack.redis.llen("celery") == 1, "the other task is dispatched")
    assert stack.states("early") == ["cancelled"]
    check_revoked(result)


def test_a_retry_of_a_dispatched_task_is_held_back_too(stack: NodeStack) -> None:
    stack.node()
    stack.app.send_task("note", countdown=0.1, task_id="tried")
    wait_until(lambda: stack.states("tried") == ["dispatched"], "the task is dispatched")
    stack.revoke("tried")
    stack.app.send_task("note", countdown=0.1, task_id="tried", retries=1)
    wait_until(lambda: sorted(stack.states("tried")) == ["cancelled", "dispatched"], "the retry is held back")


def test_a_chord_with_a_revoked_member_ends(stack: NodeStack) -> None:
    stack.node()
    stack.worker()
    tasks = stack.app.tasks
    late = tasks["note"].s("late").set(countdown=3_600)
    result = chord([tasks["note"].s("soon"), late])(tasks["total"].s("finish"))
    header = result.parent
    wait_until(lambda: stack.app.wheel.find(header[1].id), "the late member waits")
    wait_until(lambda: stack.ran() == [header[0].id], "the other has run")
    header[1].revoke()
    with pytest.raises(ChordError, match="revoked"):
        stack.app.AsyncResult(result.id).get(timeout=patience())  # without its parent, whose error would come first
    assert "finish" not in stack.notes()


def test_a_worker_ends_a_chord_with_a_pickled_member(stack: NodeStack) -> None:
    """The scheduler never loads a pickle."""
    stack.node()
    stack.worker(accept_content=["json", "pickle"])
    tasks = stack.app.tasks
    late = tasks["note"].s({1, 2}).set(countdown=3_600, serializer="pickle")
    result = chord([tasks["note"].s("soon"), late], serializer="pickle")(tasks["total"].s("finish"))
    wait_until(lambda: stack.app.wheel.find(result.parent[1].id), "the late member waits")
    stack.app.wheel.cancel(result.parent[1])  # no broadcast: the worker does not know
    with pytest.raises(ChordError):
        stack.app.AsyncResult(result.id).get(timeout=patience())
    assert result.parent[1].id not in stack.ran()


def test_a_receiver_of_events_gets_the_revoke(stack: NodeStack) -> None:
    stack.node()
    result = stack.send_far()
    assert stack.app.control.enable_events(**answers())
    seen: list[dict[str, Any]] = []
    ready = threading.Event()

    def listen() -> None:
        with stack.app.connection_for_read() as connection:
            receiver = stack.app.events.Receiver(connection, handlers={"*": seen.append})
            with receiver.consumer_context() as (own, _, _):
                ready.set()
                while not any(one["type"] == "task-revoked" for one in seen):
                    own.drain_events(timeout=patience())

    thread = threading.Thread(target=listen)
    thread.start()
    assert ready.wait(patience())
    result.revoke()
    thread.join(patience())
    [event] = [one for one in seen if one["type"] == "task-revoked"]
    assert (event["uuid"], event["terminated"], event["signum"], event["expired"]) == (result.id, False, None, False)
    assert event["hostname"].startswith("wheel@")


@pytest.mark.slow
def test_the_next_scheduler_finishes_the_revoke_of_a_killed_one(stack: NodeStack) -> None:
    for _ in range(3):
        beat = stack.node()
        result = stack.send_far()
        stack.app.control.revoke(result.id, **answers())
        beat.kill()
        stack.node()
        check_revoked(result)
        assert stack.states(result.id) == ["cancelled"]
        stack.kill_processes()


def test_a_backend_that_does_not_answer_delays_no_dispatch(stack: NodeStack) -> None:
    """The bookkeeping waits for the backend, which has the result afterwards."""
    nowhere = "redis://127.0.0.1:1/0"
    beat = stack.node(result_backend=nowhere, result_backend_transport_options={"retry_policy": {"max_retries": 0}})
    result = stack.send_far()
    stack.app.control.revoke(result.id)
    wait_until(lambda: "the result backend could not record that" in beat.said(), "it is said")
    assert stack.states(result.id) == ["cancelled"]
    stack.app.send_task("note", countdown=0.1, task_id="other")
    wait_until(lambda: stack.redis.llen("celery") == 1, "the other task is dispatched")
    beat.kill()
    stack.node()
    check_revoked(result)


@pytest.mark.slow
def test_stamped_tasks_are_revoked_whether_pending_or_sent_later(stack: NodeStack) -> None:
    stack.node()
    stamped = {"stamped_headers": ["campaign"], "campaign": ["spring"]}
    waiting, other = stack.send_far(**stamped), stack.send_far(stamped_headers=["campaign"], campaign=["autumn"])
    plain = stack.send_far()
    [answer] = stack.app.control.revoke_by_stamped_headers({"campaign": ["spring", "winter"]}, **answers())
    assert "flagged as revoked" in next(iter(answer.values()))["ok"]
    coming = stack.send_far(**stamped)
    check_revoked(waiting, coming)
    assert {task.task_id for task in stack.app.wheel.pending().items} == {other.id, plain.id}
    stack.output("control", "revoke_by_stamped_headers", "campaign=autumn")
    check_revoked(other)


def test_a_worker_and_the_wheel_both_get_the_revoke(stack: NodeStack) -> None:
    stack.node()
    stack.worker()
    result = stack.send_far()
    said = stack.app.control.revoke(result.id, **answers(2), terminate=True, signal="KILL")
    assert {name.partition("@")[0] for one in said for name in one} == {"wheel", "celery"}
    wait_until(lambda: stack.states(result.id) == ["cancelled"], "it is cancelled")

    def named() -> list[list[str]]:
        """Return what the wheel's node answers to a command that waits for a second, perhaps for the worker alone."""
        found = json.loads(stack.output("inspect", "revoked", "--json"))
        return [ids for name, ids in found.items() if name.startswith("wheel@")]

    wait_until(lambda: named() == [[result.id]], "the node names the task")
