"""A bulk load through a real scheduler to a real worker, and the example of the manual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_wheel.bulk_load import ScheduleResult
from tests.kit.patience import patience, wait_until
from tests.kit.stack import Stack

MANUAL = Path(__file__).parents[3] / "docs" / "scheduling-many.md"


def ran(stack: Stack) -> list[int]:
    """Return the numbers of the tasks that the worker ran, in order."""
    return [note["tag"] for note in stack.runs()]


def test_loaded_tasks_run_once_in_order_although_the_scheduler_is_killed(stack: Stack) -> None:
    first = stack.beat()
    stack.wait_for_holder(first)
    stack.worker()
    start = datetime.now(UTC) - timedelta(seconds=1)  # the first tasks are due already

    def progress(done: ScheduleResult) -> None:
        if done.rows == 400:
            wait_until(lambda: ran(stack), "the first tasks are dispatched")
            first.kill()

    rows = (("note", (n,), {}, start + timedelta(milliseconds=5 * n)) for n in range(1_000))
    done = stack.app.wheel.schedule_many(rows, group=200, progress=progress)
    assert (done.count, done.rejected) == (1_000, [])
    second = stack.beat()
    wait_until(lambda: len(ran(stack)) >= 1_000, "all have run")
    stack.wait_for_holder(second)
    assert ran(stack) == list(range(1_000))
    wait_until(lambda: stack.pending() == [0], "the last tasks are settled, which happens after the dispatch")


@pytest.fixture
def example() -> str:
    [found] = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_example_of_the_manual_runs(stack: Stack, example: str) -> None:
    stack.wait_for_holder(stack.beat())
    lines = [f"{n},user{n}@example.org,2020-01-01T00:00:{n:02d}Z" for n in range(3)]
    (stack.folder / "trials.csv").write_text("\n".join(["user,address,ends_at", *lines, "3,nobody,\n"]))
    example = example.replace("redis://localhost:6379/0", stack.server.url)
    example = example.replace("sqlite:////var/lib/wheel/wheel.sqlite3", stack.store)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=stack.folder,
        env={**os.environ, "PYTHONPATH": str(MANUAL.parents[1])},
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert done.returncode == 0, done.stderr
    shown = "\n".join(re.findall(r"```text\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)).splitlines()
    assert done.stdout.splitlines() == shown
    wait_until(lambda: stack.redis.llen("mail") == 3, "the three are in their queue")
