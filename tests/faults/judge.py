"""The judge of the fault tests compares scheduled tasks with executions: lost, duplicated and early ones.

``FAULTS_JUDGE=reconcile`` lets the job ``reconcile`` judge instead, by the same logs; they stay in the folder:

    celery-wheel-pipeline reconcile --scheduled DIR/scheduled.jsonl --executed DIR/executed.jsonl …

When Redis is killed, its worker may lose the message that it has just popped (kombu pops first and records second); the
log of Redis (appendonly, never rewritten) distinguishes such a task from one that was never published.
"""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from celery_wheel.results.reader import JobResults

#: The tolerance between instants of one machine's clock that two processes read.
CLOCK_MS = 2


@dataclass(slots=True)
class Verdict:
    scheduled: int = 0
    ran: int = 0
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    twice_unmarked: list[str] = field(default_factory=list)  #: published twice, and no copy is marked
    twice_marked: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  #: ran, and was not scheduled
    published_twice: list[str] = field(default_factory=list)  #: published twice by the broker's own log
    worker_lost: list[str] = field(default_factory=list)  #: published by that log, and never ran
    late_ms: int = 0

    def broken(self) -> dict[str, list[str]]:
        """Return the first tasks of each promise that was broken."""
        names = ("lost", "early", "twice_unmarked", "strange", "published_twice")
        return {name: found[:3] for name in names if (found := getattr(self, name))}

    def __str__(self) -> str:
        return (
            f"{self.scheduled} scheduled, {self.ran} ran, {len(self.lost)} lost, {len(self.early)} early, "
            f"{len(self.twice_marked)} twice with a mark, {len(self.twice_unmarked)} without, "
            f"{len(self.worker_lost)} lost by the worker, "
            f"latest {self.late_ms} ms after its time"
        )


def judge(
    scheduled: Iterable[str],
    perhaps: Iterable[str],
    notes: Iterable[Mapping[str, Any]],
    published: Mapping[str, int] | None = None,
) -> Verdict:
    """Compare scheduled tasks with executions.

    Args:
        perhaps: ids whose sending failed: they may be scheduled or not.
        published: how often each was published, by the broker's log; None where it keeps no log.
    """
    expected, known = set(scheduled), {*scheduled, *perhaps}
    runs = defaultdict[str, list[Mapping[str, Any]]](list)
    for note in notes:
        runs[note["id"]].append(note)
    verdict = Verdict(len(expected), len(runs))
    arrived = runs.keys() if published is None else published.keys()
    verdict.lost = sorted(expected - arrived)
    verdict.worker_lost = sorted(expected & arrived - runs.keys())
    verdict.published_twice = sorted(task_id for task_id, count in (published or {}).items() if count > 1)
    verdict.strange = sorted(runs.keys() - known)
    for task_id, all_runs in runs.items():
        first_ms = min(run["ran_ms"] for run in all_runs)
        if first_ms < all_runs[0]["args"][0] - CLOCK_MS:
            verdict.early.append(task_id)
        verdict.late_ms = max(verdict.late_ms, first_ms - all_runs[0]["args"][0])
        # A message that the broker delivered anew after a worker lost it is one message: the wheel did not repeat it.
        messages = {run["delivery"]: run for run in all_runs if not run["redelivered"]}
        if len(messages) > 1:
            marked = sum(run["marked"] for run in messages.values()) >= len(messages) - 1
            (verdict.twice_marked if marked else verdict.twice_unmarked).append(task_id)
    return verdict


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


#: Settings under which Redis keeps the whole log, with every write at once.
WHOLE_LOG = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": "0"}


def published_by(folder: Path, queue: str) -> Counter[str]:
    """Return task id → how often the wheel or a producer pushed it; kombu's own returns to the queue do not count."""
    found: Counter[str] = Counter()
    messages: set[str] = set()
    logs = sorted(folder.rglob("*.incr.aof"))
    assert logs, f"no log of a Redis 7 or newer is in {folder}: an older redis-server is first in PATH"
    for path in logs:
        with path.open("rb") as log:
            for name, key, *values in _commands(log):
                if name.upper() == b"LPUSH" and key == queue.encode():
                    for value in values:
                        message = json.loads(value)
                        tag = message["properties"]["delivery_tag"]
                        if tag not in messages:
                            messages.add(tag)
                            found[message["headers"]["id"]] += 1
    return found


def _commands(log: BinaryIO) -> Iterator[list[bytes]]:
    """Yield commands of two words at least. A kill may have cut the last command short."""
    while (head := log.readline()).endswith(b"\r\n"):
        if not head.startswith(b"*"):
            continue
        parts = []
        for _ in range(int(head[1:])):
            size = log.readline()
            if not size.endswith(b"\r\n"):
                return
            value = log.read(int(size[1:]) + 2)
            if not value.endswith(b"\r\n"):
                return
            parts.append(value[:-2])
        if len(parts) > 1:
            yield parts
