"""What whoever asks the wheel for something may give, and what is wrong with it, in words."""

from __future__ import annotations

import os
import socket
from typing import Any, Literal, Protocol, TypedDict

from celery_wheel.broker.envelope import MAX_TEXT
from celery_wheel.request import TIMEOUT_S


class HasId(Protocol):
    """As Celery's AsyncResult."""

    id: Any


TaskLike = str | HasId


class Who(TypedDict, total=False):
    """What may be said of every request."""

    reason: str  #: why, for people
    actor: str  #: who asks; the process and its host, where nobody is named


class How(Who, total=False):
    timeout: float  #: seconds to wait for the verdict
    transactional: Literal[False]  #: see ``Wheel.cancel``


class Which(How, total=False):
    """What a gate is for; with neither, for everything. None is no name: it may be one that was not found."""

    queue: str
    task: str


def id_of(task: TaskLike) -> str:
    task_id = task if isinstance(task, str) else getattr(task, "id", None)
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_TEXT or "\0" in task_id:
        raise TypeError(f"a task must be given by its id or its AsyncResult, got {task!r:.60}")
    return task_id


def key_of(key: Any) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_TEXT or "\0" in key:
        raise TypeError(f"a key must be a text of 1 to {MAX_TEXT} characters, got {key!r:.60}")
    return key


def check_at_once(kind: str, how: How) -> None:
    if "transactional" in how:
        raise TypeError(f"{kind} must be without the option transactional: it takes effect at once")


def gate_name(kind: str, which: Which) -> str:
    named = {scope: name for scope, name in which.items() if scope in ("queue", "task")}
    if not named:
        return "all:"
    [(scope, name), *more] = named.items()
    if more:
        raise TypeError(f"{kind} must have a queue or a task, and not both; none is for everything")
    if not isinstance(name, str) or not name:
        raise TypeError(f"{kind} must have a name as its {scope}, got {name!r:.60}; without one it is for everything")
    return f"{scope}:{name}"


def who(how: How) -> dict[str, str]:
    """Who asks, and why; the process, where nobody is named."""
    actor = how.get("actor") or f"pid {os.getpid()} on {socket.gethostname()}"
    return {"reason": how.get("reason") or "", "actor": actor}


def timeout(how: How) -> float:
    return how.get("timeout", TIMEOUT_S)
