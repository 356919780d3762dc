"""Plain values that a test reads: pending tasks, executions, and skipped messages.

Each has a repr of one line, for failed assertions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, repr=False)
class _Call:
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: str
    queue: str

    @property
    def _text(self) -> str:
        parts = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class PendingTask(_Call):
    """A task that was sent and has not run."""

    eta: datetime | None = None  #: in UTC; None for a task without a delay
    key: str | None = None
    retries: int = 0
    #: ``wheel``; ``worker`` for a task that Celery itself holds (``wheel=False``, ``wheel_min_delay``); ``queue`` for a
    #: task without a delay, which runs with the next advance
    where: str = field(default="wheel", compare=False)

    def __repr__(self) -> str:
        due = "at once" if self.eta is None else self.eta.isoformat(" ", "milliseconds")
        key = f", key {self.key!r}" if self.key else ""
        return f"<{self._text} due {due}, queue {self.queue!r}{key}, id {self.id}>"


@dataclass(frozen=True, repr=False)
class Execution(_Call):
    """One execution of a task; a retried task has one for each try."""

    at: datetime  #: virtual time, in UTC
    state: str  #: SUCCESS, FAILURE, RETRY, IGNORED or REJECTED
    result: Any = None
    exception: BaseException | None = None  #: of a failure or a retry
    eta: datetime | None = None
    key: str | None = None
    retries: int = 0

    def __repr__(self) -> str:
        ended = repr(self.result) if self.state == "SUCCESS" else f"{self.state} {self.exception!r}"
        when = self.at.isoformat(" ", "milliseconds")
        tries = f", retry {self.retries}" if self.retries else ""
        return f"<{self._text} ran at {when} -> {ended}{tries}, id {self.id}>"


@dataclass(frozen=True, repr=False)
class SkippedMessage:
    """A message that no task ran for."""

    task: str
    id: str
    at: datetime
    reason: str  #: expired, revoked, "not a task of this app", or the broker's reason

    def __repr__(self) -> str:
        return f"<{self.task} skipped at {self.at.isoformat(' ', 'milliseconds')}: {self.reason}, id {self.id}>"


class IsPending:
    """The answer of ``wheel.is_pending``: a truth value whose repr, in a failed assertion, has the task's fate."""

    __slots__ = ("_pending", "_text")

    def __init__(self, pending: bool, text: str) -> None:
        self._pending = pending
        self._text = text

    def __bool__(self) -> bool:
        return self._pending

    def __eq__(self, other: object) -> bool:
        return self._pending == bool(other) if isinstance(other, bool | IsPending) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._pending)

    def __repr__(self) -> str:
        return f"<{'pending' if self._pending else 'not pending'}: {self._text}>"
