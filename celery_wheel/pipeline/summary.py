"""What a job has to say in the end: facts for programs, words for people, and whether it found what must not be.

``facts`` are JSON's own types. Exit code of the command: 1 where ``findings`` is not 0, else 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    job: str
    facts: Mapping[str, Any]
    words: list[str] = field(default_factory=list)
    findings: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"job": self.job, **self.facts, "words": self.words}
