"""A Redis that was emptied, and a store that was restored from a backup: tasks are dispatched again where needed."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_wheel.cli import wheel
from celery_wheel.operations.doctor import Grade, Installation, broker, shards
from celery_wheel.store import open_store
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

TASKS = 20


def dispatch(stack: Stack) -> Counter[str]:
    """Dispatch tasks that no worker consumes; returns their ids once the store knows."""
    ids = stack.send(0.2, TASKS)
    wait_until(lambda: len(stack.dispatched()) == TASKS and sum(stack.pending()) == 0, "they are dispatched")
    return Counter(ids)


def counts(stack: Stack, name: str) -> int:
    return sum((one.snapshot or {}).get(name, 0) for one in stack.app.wheel.status())


def errors(stack: Stack) -> str:
    with Installation(stack.app) as site:
        found = [*broker.check(site), *shards.check(site)]
    return "\n".join(one.text for one in found if one.grade in (Grade.ERROR, Grade.WARNING))


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL"])
def test_tasks_that_were_not_consumed_come_back_while_the_scheduler_runs(
    stack: Stack, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    stack.change(wheel_shards=2)
    with stack.service():
        ids = dispatch(stack)
        later = stack.send(3_600)
        wait_until(lambda: sum(stack.pending()) == 1, "a later task is pending")
        for _ in range(2):
            stack.redis.execute_command(command)
            wait_until(lambda: Counter(stack.dispatched()) == ids, "they are dispatched again")
            wait_until(lambda: sum(stack.pending()) == 1, "and settled")
        assert "the broker was emptied" in caplog.text
        wait_until(lambda: counts(stack, "emptied") >= 2, "the status counts it")
        assert counts(stack, "rollbacks") == 0
        assert "the broker was found to be emptied" in errors(stack)
        assert stack.app.wheel.run_now(later[0]) == "done"
        wait_until(lambda: later[0] in stack.dispatched(), "the later task is dispatched")


def test_tasks_that_were_not_consumed_come_back_with_the_next_start(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with stack.service():
        ids = dispatch(stack)
    stack.redis.flushall()
    assert "the broker was emptied" in errors(stack)
    with stack.service():
        wait_until(lambda: Counter(stack.dispatched()) == ids, "they are dispatched again")
    assert caplog.text.count("the broker was emptied") == 1


def test_a_first_start_and_a_restart_are_silent(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with stack.service():
            stack.send(3_600)
            wait_until(lambda: "wheel.offset.0" in map(bytes.decode, stack.redis.keys()), "the broker has offsets")
    assert "emptied" not in caplog.text
    assert "emptied" not in errors(stack)


def test_a_broker_that_was_claimed_gets_nothing_again(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    with stack.service():
        dispatch(stack)
    stack.change(broker_url=f"{stack.broker.rpartition('/')[0]}/5")
    done = CliRunner().invoke(wheel.commands["claim-broker"], ["--yes"], obj=SimpleNamespace(app=stack.app))
    assert done.exit_code == 0, done.output
    with stack.service():
        app = stack.make_app(**stack.settings)  # the first one has connections to the former broker
        task = app.send_task("note", (0,), countdown=0.2).id
        with closing(app.connection_for_read()) as connection:
            queue: Any = connection.default_channel.client
            wait_until(lambda: queue.llen("celery"), "a new task is dispatched")
            assert queue.llen("celery") == 1
            assert task.encode() in queue.lindex("celery", 0)
    assert "emptied" not in caplog.text


def test_a_copy_takes_nothing_from_a_broker_that_was_emptied_under_the_other(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    ids = dispatch(stack)
    folder = stack.folder / "release-2"
    folder.mkdir()
    for file in stack.folder.glob("wheel.sqlite3*"):
        shutil.copy(file, folder)
    second = stack.beat("copy", wheel_store=f"sqlite:///{folder}/wheel.sqlite3")
    second.wait_for("holds nothing, and nothing was changed")
    stack.redis.flushall()
    wait_until(lambda: Counter(stack.dispatched()) == ids, "the first one dispatches again")
    first.wait_for("the broker was emptied")
    first.wait_for("at epoch", times=2)
    with closing(open_store(f"sqlite:///{folder}/wheel.sqlite3", shards=None, create=False)) as store:
        assert store.lanes(0)[0].offset > (0, 0)
    assert "the broker was emptied" not in second.said()
    assert "at epoch" not in second.said()


def back_up(file: Path, copy: Path) -> None:
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def restore(file: Path, copy: Path) -> None:
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    copy.rename(file)


def test_the_tasks_of_a_backup_are_dispatched_and_those_that_came_later_are_not_there(stack: Stack) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    before = stack.send(3_600, count=3)
    wait_until(lambda: stack.pending() == [3], "the tasks are pending")
    copy = stack.folder / "copy.sqlite3"
    back_up(stack.file, copy)
    assert stack.app.wheel.run_now(before[0]) == "done"
    later = stack.send(3_600, count=2)
    wait_until(lambda: stack.pending() == [4], "the later tasks are pending")
    assert stack.app.wheel.run_now(later[0]) == "done"
    wait_until(lambda: len(stack.dispatched()) == 2, "both are dispatched")
    for _ in range(3):  # the broker's epoch passes that of the backup
        beat.terminate()
        beat = stack.beat()
        stack.wait_for_holder(beat)
    beat.kill()
    stack.app.wheel.close()
    restore(stack.file, copy)

    beat = stack.beat()
    stack.wait_for_holder(beat)
    beat.wait_for("the store was restored from an older copy")
    beat.wait_for("at epoch")
    wheel = stack.app.wheel
    assert [wheel.get(one) for one in later] == [None, None]
    assert stack.pending() == [3], "the task that was dispatched since is pending, too, and due when it was"
    assert wheel.cancel(before[0]) == "done"
    assert wheel.run_now(before[1]) == "done"
    wait_until(lambda: before[1] in stack.dispatched(), "a task of the backup is dispatched")
    assert Counter(stack.dispatched()) == Counter([before[0], later[0], before[1]])
    wait_until(lambda: stack.pending() == [1], "the dispatch is settled, and one task of the backup is pending")
