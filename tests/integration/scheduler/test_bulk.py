"""A bulk action of two shards whose holder is killed in the middle, again and again: the counts are those of the store.

A file of its own: no other test of the schedulers has a bulk action.
"""

import pytest

from celery_wheel.requests.bulk import BulkAction
from celery_wheel.store.ports.pages import Criteria
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

TASKS = 3_000


@pytest.mark.slow
def test_a_killed_scheduler_counts_each_task_once(stack: Stack) -> None:
    stack.change(wheel_shards=2)
    bulk, kills = stack.app.wheel.bulk, 0
    beat = stack.beat()
    ids = stack.send(7_200, TASKS)
    wait_until(lambda: sum(stack.app.wheel.counts().tasks.values()) == TASKS, "all tasks are accepted")
    action = bulk.begin("cancel", Criteria(), actor="anna", reason="over")
    while not (found := bulk.get(action)).is_over:
        before = progress(found)
        wait_until(lambda: progress(now := bulk.get(action)) != before or now.is_over, "the action goes on", 30)  # noqa: B023
        if kills < 3:
            beat.kill()
            kills += 1
            told = bulk.get(action)
            assert told.count == len(cancelled(stack)), "the counts are those of the store"
            beat = stack.beat()
    assert kills >= 1
    assert bulk.get(action).results == {"done": TASKS}
    assert sorted(cancelled(stack)) == sorted(ids)
    ends = stack.app.wheel.audit(action="bulk_end", bulk=action).items
    assert sum(counts["done"] for end in ends for counts in end.results.values()) == TASKS


def progress(action: BulkAction) -> tuple[int, int, int]:
    return action.found, action.count, action.changed_ms


def cancelled(stack: Stack) -> list[str]:
    return [one.task_id for one in stack.app.wheel.outcomes("cancelled", limit=TASKS + 1).items]
