"""A backup of the store that was taken while a scheduler ran, and a scheduler that starts with it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from tests.kit.patience import wait_until
from tests.kit.stack import Stack


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
