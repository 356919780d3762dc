"""Revokes, as users have always typed them, against what waits in the wheel."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from tests.integration.node.conftest import Site
from tests.servers import PATIENCE_S, wait_until


def test_a_revoked_task_does_not_leave_and_its_result_says_so(site: Site) -> None:
    """No worker is there: all of it is the scheduler's doing."""
    site.beat()
    result = site.send(kwargs={}, args=(1, "two"))
    result.revoke()
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=PATIENCE_S)
    assert site.states(result.id) == ["cancelled"]
    assert site.app.wheel.pending().items == []
    wait_until(lambda: site.signals(), "the signal is sent")
    assert site.signals() == [["mark", result.id, False, None, False]]


def test_several_are_revoked_at_once_and_from_the_command_line(site: Site) -> None:
    site.beat()
    results = [site.send() for _ in range(3)]
    other = site.send()
    [answer] = site.app.control.revoke([one.id for one in results[:2]], reply=True)
    [said] = answer.values()
    assert all(one.id in said["ok"] for one in results[:2])
    assert results[2].id in site.output("control", "revoke", results[2].id)
    for result in results:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
    assert [task.task_id for task in site.app.wheel.pending().items] == [other.id]


def test_an_ignored_result_is_not_stored(site: Site) -> None:
    site.beat()
    by_task, by_call, kept = site.send("silent"), site.send(ignore_result=True), site.send()
    site.app.control.revoke([by_task.id, by_call.id, kept.id])
    wait_until(lambda: len(site.signals()) == 3, "all three are in the books")
    keys = {key.decode() for key in site.redis.keys("celery-task-meta-*")}
    assert keys == {f"celery-task-meta-{kept.id}"}


def test_whoever_cancels_has_the_result_say_so_too(site: Site) -> None:
    site.beat()
    result = site.send()
    site.app.wheel.cancel(result)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_S)


def test_one_that_comes_after_it_was_revoked_does_not_leave(site: Site) -> None:
    site.beat()
    site.app.control.revoke("early", reply=True)
    result = site.app.send_task("mark", countdown=0.2, task_id="early")
    site.app.send_task("mark", countdown=0.3, task_id="other")
    wait_until(lambda: site.redis.llen("celery") == 1, "the other leaves")
    assert site.states("early") == ["cancelled"]
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_S)


def test_a_retry_of_one_that_had_left_is_held_back_too(site: Site) -> None:
    site.beat()
    site.app.send_task("mark", countdown=0.1, task_id="tried")
    wait_until(lambda: site.states("tried") == ["dispatched"], "it leaves")
    site.app.control.revoke("tried", reply=True)
    site.app.send_task("mark", countdown=0.1, task_id="tried", retries=1)
    wait_until(lambda: sorted(site.states("tried")) == ["cancelled", "dispatched"], "the retry is held back")


def test_a_chord_of_which_a_member_is_revoked_comes_to_its_end(site: Site) -> None:
    site.beat()
    site.worker()
    project = site.tasks
    late = project.mark.s("late").set(countdown=3_600)
    result = chord([project.mark.s("soon"), late])(project.finish.s())
    header = result.parent
    wait_until(lambda: site.app.wheel.find(header[1].id), "the late member waits")
    wait_until(lambda: site.list_of("marks") == [header[0].id], "the other has run")
    header[1].revoke()
    with pytest.raises(ChordError, match="revoked"):
        site.app.AsyncResult(result.id).get(timeout=PATIENCE_S)  # without its parent, whose error would come first
    assert site.list_of("finished") == []


def test_a_chord_whose_member_is_pickled_is_brought_to_its_end_by_a_worker(site: Site) -> None:
    """What is pickled is never loaded by the scheduler."""
    site.beat()
    site.worker(accept_content=["json", "pickle"])
    project = site.tasks
    late = project.mark.s({1, 2}).set(countdown=3_600, serializer="pickle")
    result = chord([project.mark.s("soon"), late], serializer="pickle")(project.finish.s())
    wait_until(lambda: site.app.wheel.find(result.parent[1].id), "the late member waits")
    site.app.wheel.cancel(result.parent[1])  # no broadcast: the worker does not know
    with pytest.raises(ChordError):
        site.app.AsyncResult(result.id).get(timeout=PATIENCE_S)
    assert result.parent[1].id not in site.list_of("marks")


def test_a_receiver_of_events_sees_it(site: Site) -> None:
    site.beat()
    result = site.send()
    assert site.app.control.enable_events(reply=True)
    seen: list[dict[str, Any]] = []
    ready = threading.Event()

    def listen() -> None:
        with site.app.connection_for_read() as connection:
            receiver = site.app.events.Receiver(connection, handlers={"*": seen.append})
            with receiver.consumer_context() as (own, _, _):
                ready.set()
                while not any(one["type"] == "task-revoked" for one in seen):
                    own.drain_events(timeout=PATIENCE_S)

    thread = threading.Thread(target=listen)
    thread.start()
    assert ready.wait(PATIENCE_S)
    result.revoke()
    thread.join(PATIENCE_S)
    [event] = [one for one in seen if one["type"] == "task-revoked"]
    assert (event["uuid"], event["terminated"], event["signum"], event["expired"]) == (result.id, False, None, False)
    assert event["hostname"].startswith("wheel@")


def test_a_scheduler_that_is_killed_right_after_the_revoke_has_it_done_by_the_next(site: Site) -> None:
    for _ in range(3):
        beat = site.beat()
        result = site.send()
        site.app.control.revoke(result.id, reply=True, limit=1)
        beat.kill()
        site.beat()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
        assert site.states(result.id) == ["cancelled"]
        site.close_processes()


def test_a_backend_that_is_away_keeps_nothing_from_leaving(site: Site) -> None:
    """The bookkeeping waits for it, and the result is there afterwards."""
    nowhere = "redis://127.0.0.1:1/0"
    beat = site.beat(result_backend=nowhere, result_backend_transport_options={"retry_policy": {"max_retries": 0}})
    result = site.send()
    site.app.control.revoke(result.id)
    wait_until(lambda: "could not be written to the result backend" in beat.said(), "it is said")
    assert site.states(result.id) == ["cancelled"]
    site.app.send_task("mark", countdown=0.1, task_id="other")
    wait_until(lambda: site.redis.llen("celery") == 1, "the other leaves")
    beat.kill()
    site.beat()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_S)


def test_stamped_tasks_are_revoked_those_that_wait_and_those_that_come(site: Site) -> None:
    site.beat()
    stamped = {"stamped_headers": ["campaign"], "campaign": ["spring"]}
    waiting, other = site.send(**stamped), site.send(stamped_headers=["campaign"], campaign=["autumn"])
    plain = site.send()
    [answer] = site.app.control.revoke_by_stamped_headers({"campaign": ["spring", "winter"]}, reply=True)
    assert "flagged as revoked" in next(iter(answer.values()))["ok"]
    coming = site.send(**stamped)
    for result in (waiting, coming):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
    assert {task.task_id for task in site.app.wheel.pending().items} == {other.id, plain.id}
    site.output("control", "revoke_by_stamped_headers", "campaign=autumn")
    with pytest.raises(TaskRevokedError):
        other.get(timeout=PATIENCE_S)


def test_a_worker_and_the_wheel_both_hear_of_it(site: Site) -> None:
    site.beat()
    site.worker()
    result = site.send(countdown=3)
    answers = site.app.control.revoke(result.id, reply=True, terminate=True, signal="KILL")
    assert {name.partition("@")[0] for one in answers for name in one} == {"wheel", "celery"}
    wait_until(lambda: site.states(result.id) == ["cancelled"], "it is cancelled")
    revoked = json.loads(site.output("inspect", "revoked", "--json"))
    assert [ids for name, ids in revoked.items() if name.startswith("wheel@")] == [[result.id]]


def test_on_rabbitmq(rabbit_site: Site) -> None:
    site = rabbit_site
    site.beat()
    result, other = site.send(), site.send()
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_S)
    [(name, [found])] = site.app.control.inspect().scheduled().items()
    assert name.startswith("wheel@")
    assert found["request"]["id"] == other.id
