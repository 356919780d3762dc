"""The arguments of a request (tasks, keys, gates, actor, reason, timeout), checked before the request is sent.

A value of a wrong type is a TypeError; a text that no store can hold is an ArgumentError, which is a ValueError. A name
that nothing has may be known to other projects alone, so it is a warning; a name that is certainly wrong is refused::

    pause(queue="mial")        no pending task, schedule, route or setting has it     a warning: it would pause nothing
    shop.tasks.reprot          other tasks of shop.tasks are registered              refused for a schedule
    billing.tasks.charge       no task of billing.tasks is registered                sent by its name, with a warning

The tasks of an app are those that this process has imported, which may be few. No module is imported for the answer,
since Celery would check the whole Django project then, within a request for a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypedDict
from weakref import WeakKeyDictionary

from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError
from celery_wheel.store.audit_model import ORIGINS, PROGRAM, process_name
from celery_wheel.store.model import CANCEL, COMPLETE, MOVE
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.schedule_model import ScheduleCriteria
from celery_wheel.values.instants import ceil_ms
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import END_OF_TIME_MS, group_name_rule, text_rule

logger = get_logger(__name__)

#: A live holder answers within a fraction of a second, and a takeover takes up to three.
TIMEOUT_S = 10.0

#: A longer time to resume over is a mistake in the unit.
MAX_OVER_S = 366 * 86_400

#: App → names of tasks that the log has warned of.
_warned = WeakKeyDictionary[Any, set[str]]()


class HasId(Protocol):
    """As Celery's AsyncResult."""

    id: Any


TaskLike = str | HasId
Tasks = TaskLike | Iterable[TaskLike]


class RequestOptions(TypedDict, total=False):
    """Options of every request."""

    reason: str  #: the reason, for people
    actor: str  #: the name of the asker; by default the process and its host
    origin: str  #: where a person asks, for the audit log: "admin", "cli"; "api" or "program" by default


class CommandOptions(RequestOptions, total=False):
    timeout: float  #: seconds to wait for the result
    transactional: Literal[False]  #: see ``Wheel.cancel``


class GateOptions(CommandOptions, total=False):
    """A gate is for a queue, a task, a group or everything. A name must not be None."""

    queue: str
    task: str
    group: str
    everything: Literal[True]


def instant_ms(name: str, value: Any) -> int:
    """Return an aware datetime as Unix milliseconds, rounded up as an eta is."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, got {value!r:.60}")
    if value.utcoffset() is None:
        raise ArgumentError(
            f"{name} must be a datetime with a time zone, as of datetime.now(UTC) or replace(tzinfo=ZoneInfo(…)), got "
            f"{value!r}"
        )
    at_ms = ceil_ms(value)
    if not 0 <= at_ms < END_OF_TIME_MS:
        raise ArgumentError(f"{name} must be from 1970 to the end of 9998, got {value.isoformat()}")
    return at_ms


def duration_ms(name: str, value: Any) -> int:
    """Return a timedelta or a number of seconds as milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return round(seconds_of(name, seconds, END_OF_TIME_MS / 1_000) * 1_000)


def tasks_of(tasks: Any) -> tuple[list[str], str | None]:
    """Return the ids of a task or of several, and the id of a single one; all are checked before the first is used."""
    if isinstance(tasks, str) or hasattr(tasks, "id") or not _is_iterable(tasks):
        single = id_of(tasks)
        return [single], single
    return [id_of(task) for task in tasks], None


def id_of(task: Any) -> str:
    task_id = task if isinstance(task, str) else getattr(task, "id", None)
    if not isinstance(task_id, str):
        raise TypeError(f"a task must be its id or its AsyncResult, got {task!r:.60}")
    return text_of("task id", task_id)


def texts_of(name: str, value: Any) -> list[str]:
    """Return a text, or several: keys, or names of schedules."""
    several = _is_iterable(value) and not isinstance(value, str)
    return [text_of(name, one) for one in (value if several else [value])]


def text_of(name: str, value: Any, at_least: int = 1) -> str:
    """Return a text that the store can hold."""
    rule = text_rule(value, at_least)
    if rule is not None:
        raise (ArgumentError if isinstance(value, str) else TypeError)(f"{name} must be {rule}, got {value!r:.60}")
    text: str = value
    return text


def group_of(value: Any) -> str:
    """Return the name of a group."""
    name = text_of("a group", value)
    if rule := group_name_rule(name):
        raise ArgumentError(f"a group must be {rule}, got {name!r:.60}")
    return name


def count_of(name: str, value: Any, most: int) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} must be a whole number, got {value!r:.60}")
    if not 1 <= value <= most:
        raise ArgumentError(f"{name} must be from 1 to {most:,}, got {value!r:.60}")
    return value


def rows_of(rows: Iterable[Any]) -> list[str]:
    found = list(rows)
    for row in found:
        if type(row) is not int or not 0 <= row < 10**18:
            raise TypeError(f"rows must be numbers of rows (Task.id), got {row!r:.60}")
    return [str(row) for row in found]


def gate_name(kind: str, options: GateOptions) -> str:
    named = {scope: name for scope, name in options.items() if scope in ("queue", "task", "group", "everything")}
    if len(named) != 1:
        given = " and ".join(named) or "none"
        raise TypeError(
            f"{kind} must have one of queue, task, group and everything=True, got {given}; nothing was changed"
        )
    [(scope, name)] = named.items()
    if scope == "everything":
        if name is not True:
            raise TypeError(f"{kind} must have everything=True, got {name!r:.60}; nothing was changed")
        return "all:"
    if not isinstance(name, str) or not name:
        raise TypeError(f"{kind} must have a name as its {scope}, got {name!r:.60}; nothing was changed")
    return f"{scope}:{group_of(name) if scope == 'group' else text_of(scope, name)}"


def attribution(options: RequestOptions) -> dict[str, str]:
    """Return the reason and the actor of a request; the actor is this process where none is named."""
    actor = options.get("actor") or process_name()
    return {"reason": text_of("reason", options.get("reason") or "", at_least=0), "actor": text_of("actor", actor)}


def audit_of(kind: str, options: RequestOptions) -> dict[str, str]:
    """Return a request's part of the audit log; the holder adds the rest, and leaves it out if it records no programs.

    A program that names no person does its ordinary work with tasks. All else changes how the wheel itself works.
    """
    is_program = kind in (CANCEL, MOVE, COMPLETE) and not options.get("actor")
    origin = options.get("origin") or (PROGRAM if is_program else "api")
    if origin not in ORIGINS:
        raise ArgumentError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r:.60}")
    return {"origin": origin}


def timeout_of(options: CommandOptions) -> float:
    return seconds_of("timeout", options.get("timeout", TIMEOUT_S))


def seconds_of(name: str, value: Any, below_s: float = float("inf")) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {value!r:.60}")
    if not 0 <= value <= below_s:
        most = "" if below_s == float("inf") else f", and at most {below_s:,g} s"
        raise ArgumentError(f"{name} must be 0 s or more{most}, got {value!r}")
    return value


def spread_ms(over: Any) -> int | None:
    """Return the time over which a backlog is dispatched evenly; None where it is dispatched at once."""
    return None if over is None else round(seconds_of("over", over, MAX_OVER_S) * 1_000) or None


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, bytes | bytearray)


# -- names that an app does not have ------------------------------------------------------------------


def unknown_gate(app: Any, store: FullStore, scope: str, name: str) -> str:
    """Return a warning for the name of a queue, a task or a group that nothing has; empty where anything has it.

    A group is looked for in pending tasks and own limits: nothing else lists the names of groups.
    """
    if scope == "group":
        page = store.browse.pending(Criteria(group=name), limit=1)
        if page.items or page.next or store.browse.own_limits([name]):
            return ""
        return (
            f"group {name!r:.100} is paused, but no pending task is of that group; is the name misspelt? A resume "
            "ends the pause"
        )
    pending = store.browse.names()
    if scope == "queue":
        known, criteria = {*pending.queues, *_queues(app)}, ScheduleCriteria(queue=name)
    else:
        known, criteria = {*pending.tasks, *app.tasks}, ScheduleCriteria(task=name)
    known |= Conf(app).rate_limits.keys()
    if name in known or store.browse.schedules(criteria, limit=1).items:
        return ""
    close = get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {close[0]}?" if close else "is the name misspelt?"
    return (
        f"{scope} {name!r:.100} is paused, but no pending task, schedule, route or setting of this app has that name; "
        f"{hint} A resume ends the pause"
    )


def _queues(app: Any) -> Iterator[str]:
    yield from app.amqp.queues
    routes = [
        one
        for router in app.amqp.routes
        for one in (*getattr(router, "map", {}).values(), *getattr(router, "patterns", {}).values())
    ]
    routes += [{"queue": getattr(task, "queue", None)} for task in app.tasks.values()]
    for route in routes:
        queue = route if isinstance(route, str) else dict(route).get("queue")
        if queue is not None:
            yield str(getattr(queue, "name", queue))


def check_task_name(app: Any, name: Any) -> None:
    """Refuse a name that its module does not have. Raises ArgumentError."""
    if not isinstance(name, str) or name in app.tasks:
        return
    module, _, function = name.rpartition(".")
    others = sorted(one for of, _, one in (known.rpartition(".") for known in app.tasks) if module and of == module)
    if others:
        close = get_close_matches(function, others, 1)
        hint = f"did you mean {module}.{close[0]}?" if close else f"{module} has {', '.join(others[:5])}"
        raise ArgumentError(
            f"task must be a task of the app, got {name!r:.100} ({hint}); with check_task=False the task is sent by "
            "its name, where only other workers have it"
        )
    warn_of_unknown(app, name)


def warn_of_unknown(app: Any, name: str) -> None:
    """Write a name that the app does not have into the log, once in a process."""
    warned = _warned.setdefault(app, set())
    if name not in app.tasks and name not in warned:
        warned.add(name)
        logger.warning(
            "task %s is not registered in this process: it is sent by its name, and a worker that does not know it "
            "rejects it",
            name,
            extra={"action": "unknown_task", "task": name},
        )


def unknown_tasks(app: Any, names: Iterable[str]) -> set[str]:
    """Return the names that the app lacks once the modules of its tasks are imported; raises what these raise."""
    app.loader.import_default_modules()
    return {name for name in names if name not in app.tasks}
