"""Plain values that a test reads: pending tasks, executions, and skipped messages; and the list of all pending tasks.

Each has a repr of one line, for failed assertions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_wheel.store.ports.pages import Detail
from celery_wheel.testing.engine import SteppedEngine
from celery_wheel.testing.worker import QueuedTask, Worker, call_of
from celery_wheel.values.instants import utc


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
    eta: datetime | None = None  #: in UTC; None for a task without a delay
    key: str | None = None
    retries: int = 0
    #: ``wheel``; ``worker`` for a task that Celery itself holds (``wheel=False``, ``wheel_min_delay``); ``queue`` for a
    #: task without a delay, which runs with the next advance
    where: str = field(default="wheel", compare=False)
    group: str | None = None

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


#: Number of tasks in a summary.
SUMMARY_LENGTH = 5

_unpack: Any = decompress
_loads: Any = loads
_accepted: Any = prepare_accept_content


def pending(app: Any, worker: Worker, engine: SteppedEngine) -> list[PendingTask]:
    """Return pending tasks: first those without a delay, then by due time."""
    delayed = [_of_worker(delivery, "worker") for delivery in worker.scheduled]
    delayed += [_of_wheel(app, detail) for detail in engine.pending()]
    delayed.sort(key=lambda found: found[0])
    return [task for _, task in [*(_of_worker(delivery, "queue") for delivery in worker.ready), *delayed]]


def _of_worker(one: QueuedTask, where: str) -> tuple[int, PendingTask]:
    retries = int((one.message.headers or {}).get("retries") or 0)
    return one.due_ms, PendingTask(one.task, *one.call(), one.id, one.queue, one.eta, retries=retries, where=where)


def _of_wheel(app: Any, detail: Detail) -> tuple[int, PendingTask]:
    task, headers = detail.task, json.loads(detail.headers)
    call, retries = _call(app, detail, headers.get("compression")), int(headers.get("retries") or 0)
    return task.due_ms, PendingTask(
        task.task, *call, task.task_id, task.target, utc(task.eta_ms), task.key, retries, group=task.group
    )


def _call(app: Any, detail: Detail, compression: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    body = _unpack(detail.body, compression) if compression else detail.body
    properties = json.loads(detail.properties)
    accept = _accepted(app.conf.accept_content)
    return call_of(_loads(body, properties["content_type"], properties["content_encoding"], accept=accept))


def summary(
    now: datetime, waiting: Sequence[PendingTask], ran: Sequence[Execution], skipped: Sequence[SkippedMessage]
) -> str:
    lost = f", {len(skipped)} skipped" if skipped else ""
    head = f"<wheel at {now.isoformat(' ', 'milliseconds')}: {len(waiting)} pending, {len(ran)} ran{lost}"
    tasks = "; ".join(f"{task.task} {task.id} {_delay(now, task)}" for task in waiting[:SUMMARY_LENGTH])
    more = f"; and {len(waiting) - SUMMARY_LENGTH} more" if len(waiting) > SUMMARY_LENGTH else ""
    return f"{head}: {tasks}{more}>" if tasks else f"{head}>"


def _delay(now: datetime, task: PendingTask) -> str:
    if task.eta is None or task.eta <= now:
        return "now"
    seconds = (task.eta - now).total_seconds()
    return f"in {seconds:,.3f} s" if seconds < 60 else f"in {str(task.eta - now).split('.')[0]}"
