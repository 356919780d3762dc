"""The summary of a job: facts for programs, words for people, and the number of findings that are a failure.

``facts`` are JSON's own types. The exit code of the command is 1 where ``findings`` is not 0, else 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
