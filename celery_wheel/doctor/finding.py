"""One thing that was looked at: how it is, and what to do if it is not as it should be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from celery_wheel.present import seen


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """``about`` names what was looked at and stays the same from version to version; ``text`` is for people."""

    about: str
    grade: Grade
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Texts name what came with messages; none is longer than this.
_LONGEST = 1_000


def ok(about: str, text: str) -> Finding:
    return Finding(about, Grade.OK, seen(text, _LONGEST))


def warning(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.WARNING, seen(text, _LONGEST), remedy)


def error(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.ERROR, seen(text, _LONGEST), remedy)
