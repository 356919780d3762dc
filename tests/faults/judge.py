"""The judge of the fault tests compares scheduled tasks with executions: lost, duplicated and early ones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
