"""Commands that change tasks: effects, confirmations and exit codes."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Commands
from tests.kit.patience import wait_until
from tests.kit.stack import Stack


@pytest.fixture
def queue(stack: Stack, request: pytest.FixtureRequest) -> str:
    """Return a queue of this test alone, with six pending messages of one task, a0 … a5, due in an hour."""
    name = request.node.name.replace("[", "-")
    for n in range(6):
        stack.app.send_task("work", countdown=3_600 + n, task_id=f"{name}.{n}", queue=name)
    wait_until(lambda: len(stack.app.wheel.pending(queue=name).items) == 6, "they wait")
    return name


def waiting(stack: Stack, queue: str) -> list[str]:
    return [one.task_id.rpartition(".")[2] for one in stack.app.wheel.pending(queue=queue).items]


def test_the_matches_of_a_filter_are_counted_and_confirmed(stack: Stack, command: Commands, queue: str) -> None:
    refused = command("cancel", "--queue", queue, "--due-before", "+50m", stdin="n\n")
    assert refused.exit_code == 0  # no task is due before then
    refused = command("cancel", "--queue", queue, stdin="n\n")
    assert refused.exit_code == 1
    assert "Cancel 6 tasks?" in refused.output
    unanswered = command("cancel", "--queue", queue, stdin="")
    assert unanswered.exit_code == 1
    assert "no answer was given, so nothing was done" in unanswered.stderr
    assert len(waiting(stack, queue)) == 6
    done = command("cancel", "--queue", queue, "--reason", "campaign is over", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert waiting(stack, queue) == []
    found = stack.app.wheel.outcomes("cancelled", queue=queue).items
    assert {one.reason for one in found} == {"campaign is over"}
    assert all(" on " in one.actor for one in found)


def test_a_bulk_action_goes_on_without_its_command(stack: Stack, command: Commands, queue: str) -> None:
    def shown(action: str) -> dict[str, Any]:
        return next(one for one in command.json("bulk")["bulks"] if one["id"] == action)

    asked = command("cancel", "--queue", queue, "--background", stdin="n\n")
    assert asked.exit_code == 1
    assert f"Cancel all tasks with queue {queue} in the background?" in asked.output
    begin = ("reschedule", "--queue", queue, "--countdown", "2d", "--background", "--yes", "--reason", "a holiday")
    moved = command.json(*begin)["bulk"]
    wait_until(lambda: shown(moved)["state"] == "finished", "all are moved")
    assert {name: shown(moved)[name] for name in ("verb", "found", "results", "reason")} == {
        "verb": "reschedule",
        "found": 6,
        "results": {"done": 6},
        "reason": "a holiday",
    }
    assert command("bulk", "--stop", moved).exit_code == 0, "an action that is over stays over"
    assert shown(moved)["state"] == "finished"
    cancelled = command.json("cancel", "--queue", queue, "--background", "--yes")["bulk"]
    wait_until(lambda: shown(cancelled)["results"] == {"done": 6}, "all are cancelled")
    assert waiting(stack, queue) == []
    listed = command("bulk").stdout
    assert listed.index(cancelled) < listed.index(moved)
    assert "6 done" in listed
    assert command("bulk", "--discard", "0190f000-0000-7000-8000-000000000009").exit_code == 3
    assert command("bulk", "--stop", moved, "--discard", moved).exit_code == 2
    for wrong in (("cancel", "--background"), ("cancel", f"{queue}.0", "--background")):
        assert command(*wrong).exit_code == 2


def test_ids_from_stdin_count_once_each(stack: Stack, command: Commands, queue: str) -> None:
    found = command.json("cancel", f"{queue}.0", "-", stdin=f"{queue}.1\n{queue}.0 other\n", code=3)
    assert found["results"] == {f"{queue}.0": "done", f"{queue}.1": "done", "other": "unknown"}
    assert (found["done"], found["too_late"], found["unknown"], found["unavailable"]) == (2, 0, 1, None)
    assert waiting(stack, queue) == ["2", "3", "4", "5"]
    found = command.json("cancel", f"{queue}.0", f"{queue}.2")
    assert found["results"] == {f"{queue}.0": "already", f"{queue}.2": "done"}
    assert (found["done"], found["already"]) == (1, 1)
    assert "an earlier request cancelled it" in command("cancel", f"{queue}.0").stdout


def test_a_text_that_no_store_can_hold_is_an_error_of_one_sentence(command: Commands, queue: str) -> None:
    for wrong in (("cancel", "x" * 600), ("cancel", f"{queue}.0", "--reason", "x" * 600), ("complete", "x" * 600)):
        found = command(*wrong)
        assert found.exit_code == 1
        assert "must be a text of " in found.stderr


def test_a_task_is_rescheduled_to_an_instant_or_by_a_duration(stack: Stack, command: Commands, queue: str) -> None:
    command.json("reschedule", f"{queue}.0", "--eta", "2040-01-15T08:00+01:00")
    assert stack.app.wheel.get(f"{queue}.0").task.eta_ms == 2_210_223_600_000
    before_ms = time.time_ns() // 1_000_000
    command.json("reschedule", f"{queue}.1", "--countdown", "2d")
    assert 0 <= stack.app.wheel.get(f"{queue}.1").task.eta_ms - before_ms - 2 * 86_400_000 < 60_000
    for wrong in ((), ("--eta", "+1h", "--countdown", "5"), ("--eta", "tomorrow"), ("--countdown", "soon")):
        assert command("reschedule", f"{queue}.0", *wrong).exit_code == 2


def test_without_an_answer_the_exit_code_is_4_and_nothing_is_done(stack: Stack, command: Commands, queue: str) -> None:
    stack.suspend(command.beat)
    try:
        found = command("cancel", f"{queue}.0", "--timeout", "300ms")
        paused = command("pause", "--queue", queue, "--timeout", "300ms")
    finally:
        command.beat.resume()
    for one in (found, paused):
        assert one.exit_code == 4
        assert "was withdrawn" in one.stderr
        assert len(one.stderr.splitlines()) == 1
        assert one.stdout == ""
    assert len(waiting(stack, queue)) == 6
    wait_until(lambda: command("status").exit_code == 0, "the scheduler is back")


def test_a_task_is_requeued_only_while_it_is_rejected(stack: Stack, command: Commands, queue: str) -> None:
    stack.redis.hset(queue, "a", "b")
    command("run-now", f"{queue}.0", f"{queue}.1")
    wait_until(lambda: len(stack.app.wheel.outcomes(queue=queue).items) == 2, "they are rejected")
    stack.redis.delete(queue)
    assert command.json("requeue", f"{queue}.0", f"{queue}.5", "other", code=3)["results"] == {
        f"{queue}.0": "done",
        f"{queue}.5": "too_late",
        "other": "unknown",
    }
    assert command.json("requeue", "--queue", queue, "--yes")["results"] == {f"{queue}.1": "done"}
    wait_until(lambda: stack.redis.llen(queue) == 2, "both tasks are dispatched")
    holds = {one["task_id"]: one["holds"] for one in command.json("rejected", "--queue", queue)["items"]}
    assert holds == {f"{queue}.0": False, f"{queue}.1": False}


def test_a_lost_queue_is_replayed_in_the_order_in_which_it_was_due(stack: Stack, command: Commands, queue: str) -> None:
    for n in (2, 0, 1):
        command("run-now", f"{queue}.{n}")
        wait_until(lambda n=n: stack.app.wheel.get(f"{queue}.{n}").state == "dispatched", "it left")
    first = stack.redis.lrange(queue, 0, -1)
    stack.redis.delete(queue)
    asked = command("replay", "--from", "-1h", "--queue", queue, stdin="n\n")
    assert asked.exit_code == 1
    assert "Dispatch 3 tasks once more, whether the broker lost them or not?" in asked.output
    assert command.json("replay", "--from", "-1h", "--queue", queue, "--yes")["done"] == 3
    wait_until(lambda: stack.redis.llen(queue) == 3, "the tasks are dispatched once more")
    assert [one.count(b"eta") for one in stack.redis.lrange(queue, 0, -1)] == [one.count(b"eta") for one in first]
    wait_until(lambda: len(stack.app.wheel.history(queue=queue).items) == 3, "it is history")
    ids = [one.task_id for one in stack.app.wheel.history(queue=queue).items]
    assert ids == [f"{queue}.{n}" for n in (1, 0, 2)]


def test_a_group_is_paused_and_its_tasks_are_cancelled(stack: Stack, command: Commands, queue: str) -> None:
    group = f"tenant:{queue}"
    for n in range(3):
        stack.app.send_task("app.remind", task_id=f"{group}.{n}", countdown=600, queue=queue, wheel={"group": group})
    wait_until(lambda: command.json("list", "--group", group)["items"][2:], "the tasks are accepted")
    [gate] = command.json("pause", "--group", group, "--reason", "storm")["gates"]
    assert (gate["scope"], gate["name"], gate["state"]) == ("group", group, "paused")
    command("run-now", f"{group}.0")
    waits = f"group {group} (paused), queue {queue}"
    wait_until(lambda: stack.app.wheel.get(f"{group}.0").blocked_by == waits, "it waits in its line")
    remedies = [one["remedy"] for one in command.json("doctor", code=3)["findings"] if one["about"] == "paused"]
    assert remedies[0].endswith(f"wheel resume --group {group}")
    assert command.json("cancel", "--group", group, "--yes")["done"] == 3
    assert command("resume", "--group", group).stdout == "nothing is paused\n"
    assert command("resume", "--group", group).exit_code == 3
    assert stack.redis.llen(queue) == 0


def test_a_paused_queue_waits_until_it_is_resumed(stack: Stack, command: Commands, queue: str) -> None:
    [gate] = command.json("pause", "--queue", queue, "--reason", "full")["gates"]
    assert (gate["scope"], gate["name"], gate["state"], gate["reason"]) == ("queue", queue, "paused", "full")
    command("run-now", f"{queue}.0")
    assert stack.redis.llen(queue) == 0
    found = command.json("doctor", code=3)["findings"]
    [(text, remedy)] = [(one["text"], one["remedy"]) for one in found if one["about"] == "paused"]
    assert text.startswith(f"queue {queue} is paused since ")
    assert text.endswith(" (full): nothing of it is dispatched")
    assert remedy.endswith(f"wheel resume --queue {queue}")
    # The task is due before it waits behind the gate: dispatch moves it there.
    wait_until(lambda: command.json("status")["shards"][0]["held"] == 1, "the task is held")
    [shard] = command.json("status")["shards"]
    assert (shard["gates"], shard["behind_ms"]) == ([gate], 0)  # a paused task is not behind
    assert f"queue {queue}, since" in command("status").stdout
    assert command("resume", "--queue", queue).stdout == "nothing is paused\n"
    wait_until(lambda: stack.redis.llen(queue) == 1, "the task is dispatched")
    assert command("resume", "--queue", queue).exit_code == 3
    assert command("pause", "--queue", "a", "--task", "b").exit_code == 2
    warning = command("pause", "--queue", "misspelt").stderr
    assert "queue 'misspelt' is paused, but no pending task, schedule, route or setting" in warning
    assert command("resume", "--queue", "misspelt").exit_code == 0
    assert command("resume").exit_code == 2


def test_the_bench_measures_the_wheel_whatever_delays_the_app_leaves_to_celery(
    stack: Stack, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stack.app.conf, "wheel_enabled", False)
    monkeypatch.setitem(stack.app.conf, "wheel_min_delay", 60)
    found = command.json("bench", "--tasks", "100", "--bytes", "10")["figures"]
    assert all(one["per_s"] > 0 for one in found.values())
    assert (stack.app.conf.wheel_enabled, stack.app.conf.wheel_min_delay) == (False, 60)


@pytest.mark.slow
def test_a_drain_needs_a_stopped_scheduler_and_an_import_a_drained_file(
    stack: Stack, command: Commands, in_folder: Path
) -> None:
    found = command("drain", "--to-broker", "--yes")
    assert found.exit_code == 1
    assert "stop" in found.stderr
    assert command("drain").exit_code == 2
    assert command("drain", "--to-broker", "--file", "x").exit_code == 2
    (in_folder / "x").write_text("no drain's\n")
    wrong = command("import", "x")
    assert wrong.exit_code == 1
    assert "must begin with the line that a drain writes" in wrong.stderr
