"""``reconcile``: each kind of finding, by the logs of the tests and by the wheel's own history."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.jobs.reconcile import audit, findings
from celery_wheel.results.reader import JobResults
from tests.faults import auditor
from tests.faults.judge import judge
from tests.kit.holder import NOW
from tests.spark.stores import Site, read_history

ETA = "2027-01-15T08:00:00.000Z"


def run_in_process(*arguments: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (0, 1), done.output


def log(path: Path, *lines: dict[str, Any] | str) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_every_kind_of_finding(spark: SparkSession, tmp_path: Path) -> None:
    """The name of a task is its finding."""
    at, before, after = "2027-01-15T08:00:00.001Z", "2027-01-15T07:59:59.997Z", "2027-01-15T09:00:01+01:00"
    bad = ["lost", "lost_by_worker", "duplicated", "repeated", "dispatched_twice", "early"]
    expected = ["fine", "redelivered", "late", *bad]
    scheduled = log(
        tmp_path / "scheduled.jsonl",
        *({"task_id": name, "eta": ETA} for name in expected),
        {"task_id": "ran_though_cancelled", "eta": ETA, "cancelled": True},
        {"task_id": "cancelled", "eta_ms": 1, "cancelled": True},
        {"task_id": "sending failed", "in_doubt": True},
        {"eta": ETA},
    )
    ran = [name for name in expected if "lost" not in name and name not in ("early", "late")]
    executed = log(
        tmp_path / "executed.jsonl",
        *({"task_id": name, "started": at} for name in [*ran, "ran_though_cancelled", "unknown"]),
        {"task_id": "early", "started": before},
        {"task_id": "late", "started": after},
        {"task_id": "duplicated", "started": at, "wheel_redelivered": False},
        {"task_id": "repeated", "started": at, "wheel_redelivered": True},
        {"task_id": "redelivered", "started": at, "redelivered": True},
        {"task_id": "no time", "started": "yesterday"},
        '{"task_id": "torn',
    )
    names = {*expected, "ran_though_cancelled", "unknown"} - {"lost"}
    dispatched = log(tmp_path / "dispatched.jsonl", *({"task_id": name} for name in [*names, "dispatched_twice"]))
    arguments = ["reconcile", "--scheduled", scheduled, "--executed", executed, "--dispatched", dispatched]
    output = tmp_path / "out"
    done = CliRunner().invoke(main, [*arguments, "--output", str(output), "--late", "1s", "--json"])
    summary = json.loads(done.stdout)
    found = JobResults(output)
    assert [(row["task_id"], row["finding"]) for row in found.rows("findings")] == [
        (kind, kind) for kind in sorted([*bad, "ran_though_cancelled", "unknown"])
    ]
    assert summary["rejects"] == {"no started": 1, "no task_id": 1, "not JSON": 1}
    assert {row["reason"]: row["log"] for row in found.rows("rejects")}["no task_id"] == "scheduled"
    assert (summary["scheduled"], summary["latest_ms"], summary["dispatched"]) == (11, 1_000, 10)
    assert (output / "reconcile.png").read_bytes().startswith(b"\x89PNG")


def test_an_allowed_finding_is_no_failure(spark: SparkSession, tmp_path: Path) -> None:
    scheduled = log(tmp_path / "s.jsonl", {"task_id": "a", "eta": ETA}, {"task_id": "b", "eta": ETA})
    executed = log(tmp_path / "e.jsonl", *({"task_id": name, "started": ETA} for name in "aab"))
    arguments = ["reconcile", "--scheduled", scheduled, "--executed", executed]
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, "duplicated: 1" in found.stdout) == (1, True)
    allowed = CliRunner().invoke(main, [*arguments, "--allow", "duplicated"])
    assert (allowed.exit_code, "duplicated: 1 (allowed)" in allowed.stdout) == (0, True)


def test_the_store_names_the_scheduled_and_dispatched_tasks(
    spark: SparkSession, filled: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without logs, the store of the environment is read."""
    ids = [row["task_id"] for row in read_history(filled.url) if row["outcome"] == "dispatched"]
    executed = log(tmp_path / "e.jsonl", *({"task_id": name, "started_ms": NOW + 60} for name in ids[1:]))
    monkeypatch.setenv("CELERY_WHEEL_STORE", filled.url)
    done = CliRunner().invoke(main, ["reconcile", "--executed", executed, "--json"])
    summary = json.loads(done.stdout)
    assert summary["findings"] == {"lost_by_worker": 1}
    assert (summary["dispatched"], summary["ran"], done.exit_code) == (len(set(ids)), len(set(ids)) - 1, 1)


@pytest.mark.parametrize("logged", [True, False])
def test_a_retry_is_no_finding_where_the_log_tells_it_from_a_second_copy(
    spark: SparkSession, one: Site, tmp_path: Path, logged: bool
) -> None:
    """The store knows the messages, and not whether the second of them is a retry; a further run is a finding."""
    ids = ("retried", "thrice", "cancelled at last")
    first = [row for name in ids for row in one.holder.accept(NOW, task_id=name)]
    one.dispatch(first, NOW)
    second = [row for name in ids[:2] for row in one.holder.accept(NOW + 60_000, task_id=name)]
    one.dispatch(second, NOW + 60_000)
    [last] = one.holder.accept(NOW + 90_000, task_id=ids[2])
    one.holder.apply(outcomes=[one.holder.outcome(last.id, "cancelled", NOW + 70_000)])
    runs = [(name, 0) for name in ids] + [(name, 1) for name in ids[:2]] + [("thrice", 1)]
    lines = [
        {"task_id": name, "started_ms": NOW + retries * 60_000, **({"retries": retries} if logged else {})}
        for name, retries in runs
    ]
    executed = log(tmp_path / "e.jsonl", *lines)
    output = str(tmp_path / "out")
    arguments = ["reconcile", "--store", one.url, "--executed", executed, "--late", "1s", "--output", output]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1, done.output
    assert [(row["task_id"], row["finding"]) for row in JobResults(output).rows("findings")] == [
        *([] if logged else [("retried", "unproven")]),
        ("thrice", "duplicated"),
    ]


def notes(rng: random.Random, ids: list[str]) -> list[dict[str, Any]]:
    """Random runs of tasks: one or several, marked or not, redelivered or not, early or late."""
    found = []
    for task_id in ids:
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
            delivery, ran_ms = rng.choice("xyz"), NOW + rng.choice([-3, -2, -1, 0, 5, 900])
            # The mark belongs to the message, not to the run.
            marked = delivery != "x" and random.Random(task_id).randrange(3) > 0
            note = {"id": task_id, "delivery": delivery, "redelivered": rng.random() < 0.3, "marked": marked}
            found.append({**note, "args": [NOW], "ran_ms": ran_ms})
    return found


@pytest.mark.parametrize("logged", [True, False])
def test_the_job_and_the_judge_of_the_fault_tests_agree(spark: SparkSession, tmp_path: Path, logged: bool) -> None:
    rng = random.Random(5)
    ids = [f"task {number}" for number in range(400)]
    scheduled, in_doubt = ids[:300], ids[300:380]
    noted = notes(rng, ids)
    published = {name: rng.choice([1, 1, 2]) for name in ids if rng.random() < 0.8} if logged else None
    expected = judge(scheduled, in_doubt, noted, published)
    found = auditor.audit(tmp_path / "audit", scheduled, in_doubt, noted, published, run_in_process)
    for name in auditor.FIELDS.values():
        assert sorted(getattr(found, name)) == sorted(getattr(expected, name)), name
        assert getattr(expected, name) or not logged, f"the logs have none that is {name}"
    assert str(found) == str(expected)


def test_the_functions_take_any_frame(spark: SparkSession) -> None:
    scheduled = spark.sql("select 'a' task_id, timestamp '2027-01-15 08:00' eta, false cancelled, false in_doubt")
    executed = spark.sql(
        "select 'a' task_id, timestamp '2027-01-15 07:00' started, cast(null as timestamp) eta, "
        "false wheel_redelivered, false redelivered, cast(null as string) delivery"
    )
    [row] = findings(audit(scheduled, executed)).collect()
    assert (row.task_id, row.finding, row.messages, row.dispatches) == ("a", "early", 1, None)
