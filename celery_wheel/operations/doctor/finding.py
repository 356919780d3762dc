"""The finding of a check: its subject, its grade, and the remedy of a problem."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from celery_wheel.values.format import printable


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """``about`` names the subject and stays the same from version to version; ``text`` is for people."""

    about: str
    grade: Grade
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Texts contain names that came with messages, so they are escaped, and cut at this length.
_LONGEST = 1_000


def ok(about: str, text: str) -> Finding:
    return Finding(about, Grade.OK, printable(text, _LONGEST))


def warning(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.WARNING, printable(text, _LONGEST), remedy)


def error(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.ERROR, printable(text, _LONGEST), remedy)
