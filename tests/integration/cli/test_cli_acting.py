"""What the acting commands do, whom they ask first, and their exit codes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Commands
from tests.integration.scheduler.conftest import Bench
from tests.servers import wait_until


@pytest.fixture
def queue(bench: Bench, request: pytest.FixtureRequest) -> str:
    """Of this test alone, with six tasks that wait: a0 … a5 of one task, an hour ahead."""
    name = request.node.name.replace("[", "-")
    for n in range(6):
        bench.app.send_task("work", countdown=3_600 + n, task_id=f"{name}.{n}", queue=name)
    wait_until(lambda: len(bench.app.wheel.pending(queue=name).items) == 6, "they wait")
    return name


def waiting(bench: Bench, queue: str) -> list[str]:
    return [one.task_id.rpartition(".")[2] for one in bench.app.wheel.pending(queue=queue).items]


def test_what_a_filter_chooses_is_counted_and_confirmed(bench: Bench, command: Commands, queue: str) -> None:
    refused = command("cancel", "--queue", queue, "--due-before", "+50m", stdin="n\n")
    assert refused.exit_code == 0  # none of them is due before
    refused = command("cancel", "--queue", queue, stdin="n\n")
    assert refused.exit_code == 1
    assert "cancel 6 tasks?" in refused.output
    nobody = command("cancel", "--queue", queue, stdin="")
    assert nobody.exit_code == 1
    assert "nobody said yes, so nothing was done" in nobody.stderr
    assert len(waiting(bench, queue)) == 6
    done = command("cancel", "--queue", queue, "--reason", "campaign is over", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert waiting(bench, queue) == []
    found = bench.app.wheel.outcomes("cancelled", queue=queue).items
    assert {one.reason for one in found} == {"campaign is over"}
    assert all(" on " in one.actor for one in found)


def test_ids_come_from_stdin_each_once(bench: Bench, command: Commands, queue: str) -> None:
    found = command.json("cancel", f"{queue}.0", "-", stdin=f"{queue}.1\n{queue}.0 nobody\n", code=3)
    assert found["verdicts"] == {f"{queue}.0": "done", f"{queue}.1": "done", "nobody": "unknown"}
    assert (found["done"], found["too_late"], found["unknown"], found["unavailable"]) == (2, 0, 1, None)
    assert waiting(bench, queue) == ["2", "3", "4", "5"]
    found = command.json("cancel", f"{queue}.0", f"{queue}.2")
    assert found["verdicts"] == {f"{queue}.0": "already", f"{queue}.2": "done"}
    assert (found["done"], found["already"]) == (1, 1)
    assert "an earlier request cancelled it" in command("cancel", f"{queue}.0").stdout


def test_a_text_that_no_store_can_hold_is_an_error_in_words(command: Commands, queue: str) -> None:
    for wrong in (("cancel", "x" * 600), ("cancel", f"{queue}.0", "--reason", "x" * 600), ("complete", "x" * 600)):
        found = command(*wrong)
        assert found.exit_code == 1
        assert "must be a text of " in found.stderr


def test_rescheduled_to_an_instant_or_by_a_length(bench: Bench, command: Commands, queue: str) -> None:
    command.json("reschedule", f"{queue}.0", "--eta", "2040-01-15T08:00+01:00")
    assert bench.app.wheel.get(f"{queue}.0").task.eta_ms == 2_210_223_600_000
    before_ms = time.time_ns() // 1_000_000
    command.json("reschedule", f"{queue}.1", "--countdown", "2d")
    assert 0 <= bench.app.wheel.get(f"{queue}.1").task.eta_ms - before_ms - 2 * 86_400_000 < 60_000
    for wrong in ((), ("--eta", "+1h", "--countdown", "5"), ("--eta", "tomorrow"), ("--countdown", "soon")):
        assert command("reschedule", f"{queue}.0", *wrong).exit_code == 2


def test_run_now_leaves_and_is_too_late_then(bench: Bench, command: Commands, queue: str) -> None:
    assert command.json("run-now", f"{queue}.3")["done"] == 1
    wait_until(lambda: bench.redis.llen(queue) == 1, "it leaves")
    wait_until(lambda: bench.app.wheel.get(f"{queue}.3").state == "dispatched", "it is history")
    assert command.json("cancel", f"{queue}.3", code=3)["verdicts"] == {f"{queue}.3": "too_late"}


@pytest.mark.parametrize("verb", ["cancel", "run-now", "requeue"])
def test_neither_ids_nor_a_filter_or_both_make_no_sense(command: Commands, verb: str) -> None:
    assert command(verb).exit_code == 2
    assert command(verb, "an-id", "--queue", "work").exit_code == 2


def test_nobody_answers_is_4_and_withdrawn(bench: Bench, command: Commands, queue: str) -> None:
    command.beat.suspend()
    try:
        found = command("cancel", f"{queue}.0", "--timeout", "300ms")
        paused = command("pause", "--queue", queue, "--timeout", "300ms")
    finally:
        command.beat.resume()
    for one in (found, paused):
        assert one.exit_code == 4
        assert "was withdrawn" in one.stderr
        assert len(one.stderr.splitlines()) == 1
    assert len(waiting(bench, queue)) == 6
    wait_until(lambda: command("status").exit_code == 0, "the scheduler is back")


def test_what_was_rejected_leaves_when_it_is_requeued_and_only_what_rests(
    bench: Bench, command: Commands, queue: str
) -> None:
    bench.redis.hset(queue, "a", "b")
    command("run-now", f"{queue}.0", f"{queue}.1")
    wait_until(lambda: len(bench.app.wheel.outcomes(queue=queue).items) == 2, "they are rejected")
    bench.redis.delete(queue)
    assert command.json("requeue", f"{queue}.0", f"{queue}.5", "nobody", code=3)["verdicts"] == {
        f"{queue}.0": "done",
        f"{queue}.5": "too_late",
        "nobody": "unknown",
    }
    assert command.json("requeue", "--queue", queue, "--yes")["verdicts"] == {f"{queue}.1": "done"}
    wait_until(lambda: bench.redis.llen(queue) == 2, "both leave")
    rests = {one["task_id"]: one["rests"] for one in command.json("rejected", "--queue", queue)["items"]}
    assert rests == {f"{queue}.0": False, f"{queue}.1": False}


def test_a_lost_queue_is_replayed_in_the_order_in_which_it_was_due(bench: Bench, command: Commands, queue: str) -> None:
    began = str(time.time_ns() // 1_000_000)
    for n in (2, 0, 1):
        command("run-now", f"{queue}.{n}")
        wait_until(lambda n=n: bench.app.wheel.get(f"{queue}.{n}").state == "dispatched", "it left")
    first = bench.redis.lrange(queue, 0, -1)
    bench.redis.delete(queue)
    asked = command("replay", "--from", began, "--queue", queue, stdin="n\n")
    assert asked.exit_code == 1
    assert "whether they were lost or not, 3 tasks?" in asked.output
    assert command.json("replay", "--from", began, "--queue", queue, "--yes")["done"] == 3
    wait_until(lambda: bench.redis.llen(queue) == 3, "they leave once more")
    assert [one.count(b"eta") for one in bench.redis.lrange(queue, 0, -1)] == [one.count(b"eta") for one in first]
    wait_until(lambda: len(bench.app.wheel.history(queue=queue).items) == 3, "it is history")
    ids = [one.task_id for one in bench.app.wheel.history(queue=queue).items]
    assert ids == [f"{queue}.{n}" for n in (1, 0, 2)]


def test_a_paused_queue_waits_until_it_is_resumed(bench: Bench, command: Commands, queue: str) -> None:
    [gate] = command.json("pause", "--queue", queue, "--reason", "full")["gates"]
    assert (gate["scope"], gate["name"], gate["state"], gate["reason"]) == ("queue", queue, "paused", "full")
    command("run-now", f"{queue}.0")
    assert bench.redis.llen(queue) == 0
    found = command.json("doctor", code=3)["findings"]
    [(text, remedy)] = [(one["text"], one["remedy"]) for one in found if one["about"] == "paused"]
    assert text.startswith(f"queue {queue} is paused since ")
    assert text.endswith(" (full): nothing of it leaves")
    assert remedy.endswith(f"wheel resume --queue {queue}")
    [shard] = command.json("status")["shards"]
    assert (shard["gates"], shard["behind_ms"]) == ([gate], 0)  # what is to wait is not behind
    assert f"queue {queue}, since" in command("status").stdout
    assert command("resume", "--queue", queue).stdout == "nothing is paused\n"
    wait_until(lambda: bench.redis.llen(queue) == 1, "it leaves")
    assert command("resume", "--queue", queue).exit_code == 3
    assert command("pause", "--queue", "a", "--task", "b").exit_code == 2
    assert "nothing waits for misspelt at present" in command("pause", "--queue", "misspelt").stderr
    assert command("resume", "--queue", "misspelt").exit_code == 0
    assert command("resume").exit_code == 2


def test_what_watches_a_key_is_completed(bench: Bench, command: Commands, queue: str) -> None:
    for n in (6, 7):
        watch = {"watch": [f"{queue}:{n}"]}
        bench.app.send_task("work", countdown=3_600, task_id=f"{queue}.{n}", queue=queue, wheel=watch)
    found = command.json("complete", f"{queue}:6", "-", stdin=f"{queue}:nobody\n")["keys"]
    assert found == {
        f"{queue}:6": {"done": 1, "too_late": 0},
        f"{queue}:nobody": {"done": 0, "too_late": 0},
    }
    assert command.json("complete", f"{queue}:7", "--run")["keys"][f"{queue}:7"]["done"] == 1
    wait_until(lambda: bench.redis.llen(queue) == 1, "the other leaves")


def test_the_bench_leaves_nothing_behind(bench: Bench, command: Commands) -> None:
    def queued() -> set[bytes]:
        """What is in the site's default queue, but for the periodic entries that its beat sends meanwhile."""
        return {one for one in bench.redis.lrange("celery", 0, -1) if b"celery_beat_task" not in one}

    before = queued()
    files = {one.name for one in bench.folder.iterdir()}
    found = command.json("bench", "--tasks", "100", "--bytes", "10")
    assert list(found["figures"]) == ["send", "ingest", "move", "dispatch"]
    assert all(one["per_s"] > 0 for one in found["figures"].values())
    assert bench.redis.keys("*bench*") == []
    assert {one.name for one in bench.folder.iterdir()} == files
    assert queued() == before, "the site's default queue"
    assert bench.app.conf.wheel_store == bench.store


def test_the_bench_measures_the_wheel_whatever_the_app_leaves_to_celery(bench: Bench, command: Commands) -> None:
    bench.app.conf.update(wheel_enabled=False, wheel_min_delay=60)
    try:
        assert command("bench", "--tasks", "100", "--bytes", "10").exit_code == 0
        assert (bench.app.conf.wheel_enabled, bench.app.conf.wheel_min_delay) == (False, 60)
    finally:
        bench.app.conf.update(wheel_enabled=True, wheel_min_delay=0)


def test_while_a_scheduler_runs_nothing_is_drained_and_a_file_must_be_one(
    bench: Bench, command: Commands, in_folder: Path
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
