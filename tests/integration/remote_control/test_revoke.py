"""Celery's own revokes of tasks that are pending in the wheel."""

import json
import re
import threading
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from tests.integration.remote_control.conftest import NodeStack, answers
from tests.kit.manual import code, page
from tests.kit.patience import patience, wait_until


def check_revoked(*results: Any) -> None:
    for result in results:
        with pytest.raises(TaskRevokedError, match="revoked"):
            result.get(timeout=patience())


@pytest.mark.parametrize("broker", ["stack", "rabbit_stack"])
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
