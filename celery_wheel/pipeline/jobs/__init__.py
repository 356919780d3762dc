"""The jobs: the name of each, its help in one line, and its result. Each job is a module of this package.

A job's module has NAME, OPTIONS (of click, as decorators), ``check``, which raises SettingError for options that do not
fit each other, and ``run``, which reads, writes and draws. ``check`` is called first, without Spark. All else in it
are functions from DataFrame to DataFrame, public for other programs. This module imports no job, so that Spark is
imported when a job is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: In the order of the help.
JOBS: dict[str, str] = {
    "schedule": "Schedule the rows of a file, a table or a query in bulk: all of them, or none.",
    "archive": "Archive the new history as Parquet by day, before retention removes it.",
    "compact": "Merge the small files of an archive's days, and remove files that no longer count.",
    "erase": "Erase the events of a task, a key or a group from an archive.",
    "tail": "Stream the history into Parquet, each event once.",
    "lateness": "Report the lateness of dispatched tasks by task, queue and hour, against objectives.",
    "forecast": "Forecast due tasks by second and minute, herds, and the time that queues take to drain.",
    "tune": "Recommend a tick and a wheel size for the tasks of a store or an archive.",
    "reconcile": "Audit scheduled against dispatched against executed tasks.",
}


Options = Mapping[str, Any]
#: Shows the current step.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobSummary:
    job: str
    facts: Mapping[str, Any]
    words: list[str] = field(default_factory=list)
    findings: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"job": self.job, **self.facts, "words": self.words}


def describe_rejects(counts: Mapping[str, int]) -> list[str]:
    """Return one line that counts the rejected rows by reason; no line where nothing was rejected."""
    return [f"rejected: {', '.join(f'{count:,} {reason}' for reason, count in counts.items())}"] if counts else []
