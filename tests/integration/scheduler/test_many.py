"""A bulk load through a real scheduler to a real worker, and the example of the manual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_wheel.bulk import Scheduled
from tests.integration.scheduler.conftest import Bench
from tests.servers import PATIENCE_S, wait_until

MANUAL = Path(__file__).parents[3] / "docs" / "scheduling-many.md"


def ran(bench: Bench) -> list[int]:
    """The numbers of the tasks that the worker ran, in order."""
    return [int(number) for number in bench.redis.lrange("ran", 0, -1)]


def test_what_is_loaded_is_run_once_in_order_although_the_scheduler_is_killed_meanwhile(bench: Bench) -> None:
    first = bench.beat()
    bench.wait_for_holder(first)
    bench.celery("worker", "--pool", "solo", "-l", "INFO", "--without-gossip", "--without-mingle")
    bench.app.conf.wheel_store = bench.store
    start = datetime.now(UTC) - timedelta(seconds=1)  # the first are due already

    def progress(done: Scheduled) -> None:
        if done.rows == 400:
            wait_until(lambda: ran(bench), "the first of them have left")
            first.kill()

    rows = (("note", (n,), {}, start + timedelta(milliseconds=5 * n)) for n in range(1_000))
    try:
        done = bench.app.wheel.schedule_many(rows, group=200, progress=progress)
    finally:
        bench.app.wheel.close()
    assert (done.count, done.rejected) == (1_000, [])
    second = bench.beat()
    wait_until(lambda: len(ran(bench)) >= 1_000, "all have run")
    bench.wait_for_holder(second)
    assert ran(bench) == list(range(1_000))
    assert bench.status()["pending"] == 0


@pytest.fixture
def example() -> str:
    [found] = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_example_of_the_manual_runs(bench: Bench, example: str) -> None:
    bench.wait_for_holder(bench.beat())
    lines = [f"{n},user{n}@example.org,2020-01-01T00:00:{n:02d}Z" for n in range(3)]
    (bench.folder / "trials.csv").write_text("\n".join(["user,address,ends_at", *lines, "3,nobody,\n"]))
    example = example.replace("redis://localhost:6379/0", bench.server.url)
    example = example.replace("sqlite:////var/lib/wheel/wheel.sqlite3", bench.store)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": str(MANUAL.parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    shown = "\n".join(re.findall(r"```text\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)).splitlines()
    assert done.stdout.splitlines() == shown
    wait_until(lambda: bench.redis.llen("mail") == 3, "the three are in their queue")
