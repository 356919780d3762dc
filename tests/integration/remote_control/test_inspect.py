"""A scheduler is inspected like a worker: by the API, the command line and Flower; several schedulers, no broker."""

import itertools
import json
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import URLError

import celery
import pytest

from tests.integration.remote_control.conftest import NodeStack, answers
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port


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
    assert not stack.inspect().clock()
    result = stack.send_far()
    stack.app.wheel.cancel(result)
    wait_until(lambda: stack.app.backend.get_state(result.id) == "REVOKED", "the bookkeeping is done all the same")
    assert "listens" not in beat.said()


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
