"""The job ``reconcile`` as the judge of the fault tests: the same findings from the same logs, however long.

``FAULTS_JUDGE=reconcile`` selects it. The logs stay in the folder, so that a finding can be examined:

    celery-wheel-pipeline reconcile --scheduled DIR/scheduled.jsonl --executed DIR/executed.jsonl …
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from celery_wheel.results.reader import JobResults
from tests.faults.judge import CLOCK_MS, Verdict

#: The job's name of each kind of finding, and the judge's.
FIELDS = {
    "lost": "lost",
    "lost_by_worker": "worker_lost",
    "duplicated": "twice_unmarked",
    "repeated": "twice_marked",
    "dispatched_twice": "published_twice",
    "early": "early",
    "unknown": "strange",
}


def in_a_process(*arguments: str) -> None:
    """Run the command; exit code 1, for findings, is no failure, any higher code is."""
    command = [sys.executable, "-m", "celery_wheel.pipeline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr


def audit(
    folder: Path,
    scheduled: Iterable[str],
    perhaps: Iterable[str],
    notes: Iterable[Mapping[str, Any]],
    published: Mapping[str, int] | None = None,
    run: Callable[..., object] = in_a_process,
) -> Verdict:
    """Return the result of ``judge``, from logs in ``folder``."""
    folder.mkdir(parents=True)
    arguments = ["reconcile", "--json", "--output", str(folder / "verdict"), "--clock", f"{CLOCK_MS}ms"]
    arguments += ["--scheduled", _write(folder / "scheduled.jsonl", _scheduled(scheduled, perhaps))]
    arguments += ["--executed", _write(folder / "executed.jsonl", map(_executed, notes))]
    if published is not None:
        lines = ({"task_id": task_id} for task_id, count in published.items() for _ in range(count))
        arguments += ["--dispatched", _write(folder / "dispatched.jsonl", lines)]
    run(*arguments)
    found = JobResults(folder / "verdict")
    assert not found.summary["rejects"], found.summary["rejects"]
    verdict = Verdict(found.summary["scheduled"], found.summary["ran"], late_ms=max(found.summary["latest_ms"] or 0, 0))
    for row in found.rows("findings", ["task_id", "finding"]):
        getattr(verdict, FIELDS[row["finding"]]).append(row["task_id"])
    return verdict


def _scheduled(scheduled: Iterable[str], perhaps: Iterable[str]) -> Iterable[dict[str, Any]]:
    yield from ({"task_id": task_id} for task_id in scheduled)
    yield from ({"task_id": task_id, "in_doubt": True} for task_id in perhaps)


def _executed(note: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task_id": note["id"],
        "started_ms": note["ran_ms"],
        "eta_ms": note["args"][0],
        "wheel_redelivered": note["marked"],
        **{name: note[name] for name in ("redelivered", "delivery")},
    }


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> str:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return str(path)
