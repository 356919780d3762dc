"""The finding of a check: its subject, its grade, and the remedy of a problem.

::

    ok        as it should be
    note      right for some installations and wrong for others; its remedy says when. It does not fail ``doctor``
    warning   something may be lost or late
    error     nothing is dispatched, or nothing can be
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.values.format import printable


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"
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

    def spelled(self, conf: Conf) -> Finding:
        """Return the finding with the names of settings as the app's configuration has them."""
        return replace(self, text=conf.spelled(self.text), remedy=conf.spelled(self.remedy))


#: Texts contain names that came with messages, so they are escaped, and cut at this length.
_LONGEST = 1_000


def ok(about: str, text: str) -> Finding:
    return Finding(about, Grade.OK, printable(text, _LONGEST))


def note(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.NOTE, printable(text, _LONGEST), remedy)


def warning(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.WARNING, printable(text, _LONGEST), remedy)


def error(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, Grade.ERROR, printable(text, _LONGEST), remedy)


def split_remedy(message: str) -> tuple[str, str]:
    """Return an error's message without its last part, and that part, its remedy, as a sentence.

    Messages of errors are "state; consequence; remedy"; one without a remedy is returned as it is.
    """
    problem, _, remedy = message.rpartition("; ")
    end = "" if ": " in remedy else "."  # a command ends as it is typed
    return (problem, f"{remedy[:1].upper()}{remedy[1:]}{end}") if problem else (message, "")
