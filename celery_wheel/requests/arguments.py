"""The arguments of a request (tasks, keys, gates, actor, reason, timeout), checked before it is sent.

::

    cancel(["a", "b"])         ids that the store can hold, or an object with such an ``id`` (AsyncResult)
    cancel("\\ud800")           ArgumentError: task id must be text that can be written as UTF-8, got '\\ud800'
    cancel(b"a")               TypeError: a task must be given by its id or its AsyncResult, got b'a'

A value of a wrong type is a TypeError; a text that no store can hold is an ArgumentError, which is a ValueError. The
rule is that of ``celery_wheel.store.text``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypedDict

from celery_wheel.errors import ArgumentError
from celery_wheel.store.text import text_rule

#: A holder that lives answers within a fraction of a second, and a takeover takes up to three.
TIMEOUT_S = 10.0

#: A longer time to resume over is a mistake in the unit.
MAX_OVER_S = 366 * 86_400

#: Numbers of rows have 18 digits at most.
_ROWS = 10**18


class HasId(Protocol):
    """As Celery's AsyncResult."""

    id: Any


TaskLike = str | HasId
Tasks = TaskLike | Iterable[TaskLike]


class Who(TypedDict, total=False):
    """Options of every request."""

    reason: str  #: the reason, for people
    actor: str  #: the name of the asker; by default the process and its host


class How(Who, total=False):
    timeout: float  #: seconds to wait for the verdict
    transactional: Literal[False]  #: see ``Wheel.cancel``


class Which(How, total=False):
    """The queue or the task of a gate; with neither, the gate is for everything. A name must not be None."""

    queue: str
    task: str


def is_one(tasks: Any) -> bool:
    """Whether ``tasks`` is a single task, not several."""
    return isinstance(tasks, str) or hasattr(tasks, "id")


def ids_of(tasks: Any) -> list[str]:
    """Return the ids of a task or of several; all of them are checked before the first is used."""
    if is_one(tasks):
        return [id_of(tasks)]
    if not isinstance(tasks, Iterable) or isinstance(tasks, bytes | bytearray):
        raise TypeError(f"a task must be given by its id or its AsyncResult, got {tasks!r:.60}")
    return [id_of(task) for task in tasks]


def id_of(task: Any) -> str:
    task_id = task if isinstance(task, str) else getattr(task, "id", None)
    if not isinstance(task_id, str):
        raise TypeError(f"a task must be given by its id or its AsyncResult, got {task!r:.60}")
    return _text("task id", task_id)


def rows_of(rows: Iterable[Any]) -> list[str]:
    found = list(rows)
    for row in found:
        if type(row) is not int or not 0 <= row < _ROWS:
            raise TypeError(f"rows must be numbers of rows (Task.id), got {row!r:.60}")
    return [str(row) for row in found]


def keys_of(keys: Any) -> list[str]:
    if not isinstance(keys, Iterable) or isinstance(keys, bytes | bytearray):
        raise TypeError(f"a key must be a text, got {keys!r:.60}")
    return [_text("a key", key) for key in ([keys] if isinstance(keys, str) else keys)]


def gate_name(kind: str, which: Which) -> str:
    named = {scope: name for scope, name in which.items() if scope in ("queue", "task")}
    if not named:
        return "all:"
    [(scope, name), *more] = named.items()
    if more:
        raise TypeError(f"{kind} must have a queue or a task, and not both; none is for everything")
    if not isinstance(name, str) or not name:
        raise TypeError(f"{kind} must have a name as its {scope}, got {name!r:.60}; without one it is for everything")
    return f"{scope}:{_text(scope, name)}"


def check_at_once(kind: str, how: How) -> None:
    if "transactional" in how:
        raise TypeError(f"{kind} must be without the option transactional: it takes effect at once")


def who(how: Who) -> dict[str, str]:
    """Who asks, and why; the process, where nobody is named."""
    actor = how.get("actor") or f"pid {os.getpid()} on {socket.gethostname()}"
    return {"reason": _text("reason", how.get("reason") or "", at_least=0), "actor": _text("actor", actor)}


def timeout(how: How) -> float:
    return seconds_of(how.get("timeout", TIMEOUT_S))


def seconds_of(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r:.60}")
    if not timeout >= 0:
        raise ArgumentError(f"timeout must be 0 s or more, got {timeout!r}")
    return timeout


def per_ms(over: Any) -> int | None:
    """The time in which a backlog leaves evenly; None: at once."""
    if over is not None and (isinstance(over, bool) or not isinstance(over, int | float)):
        raise TypeError(f"resume must be over a number of seconds, got {over!r:.60}")
    if over is not None and not 0 <= over < MAX_OVER_S:
        raise ArgumentError(f"resume must be over a time of 0 s to a year, got {over!r}")
    return round(over * 1_000) if over else None


def _text(name: str, value: Any, at_least: int = 1) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {value!r:.60}")
    rule = text_rule(value, at_least)
    if rule is not None:
        raise ArgumentError(f"{name} must be {rule}, got {value!r:.60}")
    return value
