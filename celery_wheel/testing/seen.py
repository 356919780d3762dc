"""What a test looks at: tasks that wait, tasks that ran, and messages that no task came of. Plain values.

Each shows itself in one line, because that is what a failed assertion prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


def _call(task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{task}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Pending:
    """A task that was sent and has not run. Two with equal fields are equal."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: str
    queue: str
    eta: datetime | None = None  #: in UTC; None for what was sent without a delay
    key: str | None = None
    retries: int = 0
    #: ``wheel``; ``worker`` for what Celery holds itself (``wheel=False``, ``wheel_min_delay``); ``queue`` for what is
    #: to run at once, and does with the next advance
    where: str = field(default="wheel", compare=False)

    def __repr__(self) -> str:
        due = "at once" if self.eta is None else self.eta.isoformat(" ", "milliseconds")
        key = f", key {self.key!r}" if self.key else ""
        return f"<{_call(self.task, self.args, self.kwargs)} due {due}, queue {self.queue!r}{key}, id {self.id}>"


@dataclass(frozen=True, repr=False)
class Ran:
    """One execution of a task; a task that is retried has one a try."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: str
    queue: str
    at: datetime  #: virtual time, in UTC
    state: str  #: SUCCESS, FAILURE, RETRY, IGNORED or REJECTED
    result: Any = None
    exception: BaseException | None = None  #: why it failed, or is retried
    eta: datetime | None = None
    key: str | None = None
    retries: int = 0

    def __repr__(self) -> str:
        ended = repr(self.result) if self.state == "SUCCESS" else f"{self.state} {self.exception!r}"
        when = self.at.isoformat(" ", "milliseconds")
        tries = f", retry {self.retries}" if self.retries else ""
        return f"<{_call(self.task, self.args, self.kwargs)} ran at {when} -> {ended}{tries}, id {self.id}>"


@dataclass(frozen=True, repr=False)
class Skipped:
    """A message that came to nothing."""

    task: str
    id: str
    at: datetime
    reason: str  #: expired, revoked, "not a task of this app", or why the broker would not have it

    def __repr__(self) -> str:
        return f"<{self.task} skipped at {self.at.isoformat(' ', 'milliseconds')}: {self.reason}, id {self.id}>"


class Waiting:
    """The answer of ``wheel.is_waiting``: true or false, and a failed assertion says what became of the task."""

    __slots__ = ("_says", "_waits")

    def __init__(self, waits: bool, says: str) -> None:
        self._waits = waits
        self._says = says

    def __bool__(self) -> bool:
        return self._waits

    def __eq__(self, other: object) -> bool:
        return self._waits == bool(other) if isinstance(other, bool | Waiting) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._waits)

    def __repr__(self) -> str:
        return f"<{'waits' if self._waits else 'does not wait'}: {self._says}>"
