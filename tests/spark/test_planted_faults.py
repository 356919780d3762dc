"""``reconcile`` finds each planted fault, and nothing else, whatever the logs tell and however odd their lines are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.jobs.reconcile import KINDS
from celery_wheel.results.reader import JobResults
from tests.kit.holder import NOW
from tests.spark.planted import CLOCK_MS, HOUR_MS, LATE_MS, Known, PlantedLogs, to_text
from tests.spark.stores import Site, site

TASKS = 600


def reconcile(folder: Path, logs: PlantedLogs, *more: str) -> JobResults:
    arguments = ["--clock", f"{CLOCK_MS}ms", "--late", f"{LATE_MS}ms", "--output", str(folder / "out"), *more]
    for name in ("scheduled", "dispatched", "executed"):
        if name != "dispatched" or (logs.known.dispatches and not logs.known.in_store):
            (folder / f"{name}.jsonl").write_text(to_text(getattr(logs, name)))
            arguments += [f"--{name}", str(folder / f"{name}.jsonl")]
    done = CliRunner().invoke(main, ["reconcile", *arguments])
    assert done.exit_code == 1, done.output
    return JobResults(folder / "out")


def assert_found(found: JobResults, logs: PlantedLogs) -> None:
    rows = Counter((row["task_id"], row["finding"]) for row in found.rows("findings"))
    assert rows == Counter(logs.expected), (logs.expected ^ {*rows}, [*rows.values()].count(2))
    assert found.summary["rejects"] == logs.rejects


@pytest.mark.parametrize(
    ("known", "absent"),
    [
        (Known(), {"unproven"}),
        (Known(retries=False), {"unproven"}),
        (Known(dispatches=False), {"unproven", "lost_by_worker", "dispatched_twice"}),
    ],
    ids=["all", "no retries", "no dispatches"],
)
def test_each_planted_fault_is_found_in_logs(
    spark: SparkSession, tmp_path: Path, known: Known, absent: set[str]
) -> None:
    logs = PlantedLogs(7, TASKS, known)
    assert {finding for _, finding in logs.expected} == {*KINDS} - absent
    assert_found(reconcile(tmp_path, logs), logs)


def fill_store(one: Site, logs: PlantedLogs) -> None:
    """Accept the messages that were dispatched, dispatch each as often, and leave others pending or stopped."""
    sent = [(task, message) for task in logs.tasks for message in task.messages if message.dispatches]
    for times in range(1, 4):  # those that are dispatched twice are in a range of their own, and so on
        rows = []
        for task, message in sent:
            if message.dispatches == times:
                parts = {"task_id": task.id, "queue": message.queue, "eta_ms": message.eta_ms}
                rows.append(one.holder.row(NOW + times * HOUR_MS, **parts))
        one.holder.apply(rows=rows)
        start = one.store.lanes(0)[0].offset
        for _ in range(times):
            one.holder.put_offset(start)
            one.dispatch(rows, NOW + times * HOUR_MS)
    for kind in ("expired", "rejected"):
        [row] = one.holder.accept(NOW + 9 * HOUR_MS, task_id=f"task of the store, {kind}")
        one.holder.apply(moves=[one.holder.stop(row)], outcomes=[one.holder.outcome(row.id, kind)])
    one.holder.accept(NOW + 9 * HOUR_MS, task_id="task of the store, pending")


@pytest.mark.parametrize("retries", [True, False], ids=["retries", "no retries"])
def test_each_planted_fault_is_found_beside_a_store(spark: SparkSession, tmp_path: Path, retries: bool) -> None:
    """The log says what was scheduled, the store what was dispatched: its messages have numbers of their own."""
    logs = PlantedLogs(8, TASKS, Known(retries=retries, in_store=True))
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        fill_store(one, logs)
        found = reconcile(tmp_path, logs, "--store", one.url)
    assert {finding for _, finding in logs.expected} == {*KINDS} - ({"unproven"} if retries else set())
    assert_found(found, logs)
