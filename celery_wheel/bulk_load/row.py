"""One row of a bulk load as a call: the task, its arguments, its options and its due time.

::

    Signature                        its task, arguments and options; eta or countdown among them
    {"task": …, "args": …, "eta": …} FIELDS and OPTIONS by name; also a NamedTuple
    (task, args, kwargs, eta, …)     FIELDS in their order; at least the first four

``eta`` is a datetime or an ISO text, as ``apply_async`` takes them, or an int: Unix milliseconds. ``countdown`` is in
seconds and takes precedence over eta as in Celery; 0 is now. None counts as absent. A wrong row raises ValueError or
TypeError, with a text for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from celery.canvas import Signature
from celery.local import Proxy

from celery_wheel.producer.eta import DueTime, due_time
from celery_wheel.producer.options import PLAIN, CallOptions, name_of, parse
from celery_wheel.values.instants import EPOCH, us_of
from celery_wheel.values.text import END_OF_TIME_MS

FIELDS = ("task", "args", "kwargs", "eta", "queue", "key", "priority", "expires", "task_id", "headers", "group")
#: Options of ``apply_async`` for rows that are dicts or NamedTuples; a signature may have all its options.
OPTIONS = [
    *("countdown", "exchange", "routing_key", "serializer", "compression", "delivery_mode", "ignore_result"),
    *("time_limit", "soft_time_limit", "shadow", "argsrepr", "kwargsrepr", "retries", "reply_to", "link", "link_error"),
]

_MIN_FIELDS = 4  #: of a tuple
_KNOWN = frozenset((*FIELDS, *OPTIONS, "wheel"))
#: Fields that have a place of their own in a TaskCall.
_OWN = frozenset(("task", "args", "kwargs", "eta", "countdown", "key", "group", "task_id", "wheel"))

#: Smaller ints would be instants in 1970 to 1973: they are seconds, by mistake.
_MIN_MS = 100_000_000_000


@dataclass(slots=True)
class TaskCall:
    """A call of ``apply_async``; ``options`` are its other options."""

    name: str
    task: Any  #: None where no task of that name is registered
    args: Any
    kwargs: Any
    options: dict[str, Any]
    due: DueTime
    task_id: str | None
    key: str | None = None
    group: str | None = None  #: it is the key too; NO_GROUP: none, also where the route or wheel_group names one
    wheel: CallOptions = PLAIN  #: without key and group
    envelope_id: str | None = None  #: a UUID that makes the message idempotent; also the id of a task without one


#: Cached task objects.
_CACHE_SIZE = 1_000


class RowReader:
    """Reads the rows of one load, for one app."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._tasks = app.tasks
        self._cache: dict[int, tuple[Any, str, Any]] = {}  #: id(value of a row) → the value, its name, its task

    def read(self, row: Any) -> TaskCall:
        """Return the call of a row. Raises TypeError or ValueError."""
        if type(row) is tuple:
            return self._from_tuple(row)
        if isinstance(row, Signature):
            return self._from_signature(row)
        if isinstance(row, Mapping):
            if "subtask_type" in row:  # a serialised signature
                return self._from_signature(Signature.from_dict(row, app=self._app))
            return self._from_fields(row)
        if isinstance(row, tuple) and hasattr(row, "_fields"):
            return self._from_fields(dict(zip(row._fields, row, strict=True)))
        if isinstance(row, tuple | list):
            return self._from_tuple(row)
        raise TypeError(f"a row must be a signature, a dict or a tuple, got {type(row).__name__}")

    def _from_tuple(self, row: Any) -> TaskCall:
        if not _MIN_FIELDS <= len(row) <= len(FIELDS):
            names = ", ".join(FIELDS)
            raise ValueError(f"a row must have {_MIN_FIELDS} to {len(FIELDS)} values ({names}), got {len(row)}")
        if len(row) > _MIN_FIELDS:
            return self._from_fields(dict(zip(FIELDS, row, strict=False)))
        task, args, kwargs, eta = row
        name, task = self.task(task)
        return TaskCall(name, task, args, kwargs, {}, _due(self._app, None, eta), None)

    def _from_fields(self, fields: Mapping[str, Any]) -> TaskCall:
        if not fields.keys() <= _KNOWN:
            unknown = ", ".join(sorted(str(name) for name in fields if name not in _KNOWN))
            raise ValueError(f"a row must have no fields but {', '.join((*FIELDS, *OPTIONS))}, got {unknown}")
        get = fields.get
        options = {name: value for name, value in fields.items() if value is not None and name not in _OWN}
        own = [None if get(option) is None else name_of(option, get(option)) for option in ("key", "group")]
        named = _wheel_options(get("wheel"), *own)
        name, task = self.task(get("task"))
        due = _due(self._app, get("countdown"), get("eta"))
        return TaskCall(name, task, get("args"), get("kwargs"), options, due, _id(get("task_id")), *named)

    def _from_signature(self, row: Any) -> TaskCall:
        if type(row).apply_async is not Signature.apply_async:
            raise ValueError(
                f"a signature must be that of one task, got a {row.get('subtask_type') or row.task}: Celery prepares "
                "its tasks together (a chord's counter, a group's results) while it sends them; send it by apply_async"
            )
        options = dict(row.options)
        named = _wheel_options(options.pop("wheel", None))
        for name in ("connection", "producer", "publisher"):
            if options.pop(name, None) is not None:
                raise ValueError(f"a row must not have the option {name}: a load is for the app's own broker")
        countdown, eta, task_id = options.pop("countdown", None), options.pop("eta", None), options.pop("task_id", None)
        name, task = self.task(row.task)
        due = _due(self._app, countdown, eta)
        return TaskCall(name, task, row.args, row.kwargs, options, due, _id(task_id), *named)

    def task(self, value: Any) -> tuple[str, Any]:
        """Return name and task of a row's task or task name; the task is None where no such task is registered."""
        if type(value) is str and value:
            return value, self._tasks.get(value)
        cached = self._cache.get(id(value))
        if cached is not None:
            return cached[1:]
        name = getattr(value, "name", None)
        if not (isinstance(name, str) and hasattr(value, "apply_async")):
            raise TypeError(f"task must be a task or its name, got {value!r:.60}")
        task = value
        if isinstance(value, Proxy):  # of ``app.task`` before the app is finalised, and of ``shared_task``
            task = self._tasks.get(name, value)
        if task.app is not self._app:
            raise ValueError(f"task {name} must be one of this app {self._app.main!r}, got one of {task.app.main!r}")
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[id(value)] = value, name, task
        return name, task


def _wheel_options(
    wheel: Any, key: str | None = None, group: str | None = None
) -> tuple[str | None, str | None, CallOptions]:
    """Return the key, the group, and the other options of the wheel; a key and a group may have fields of a row."""
    options = parse(wheel)
    if key is not None or group is not None:
        options = replace(options, key=key or options.key, group=group or options.group).checked()
    if options.native:
        raise ValueError("a load cannot schedule a task with wheel=False, which Celery itself holds; use apply_async")
    if options.transactional:
        raise ValueError("wheel option transactional is not for a load, which commits in groups; use apply_async")
    others = replace(options, key=None, group=None)
    return options.group or options.key, options.group, PLAIN if others == PLAIN else others


def _id(task_id: Any) -> str | None:
    if task_id is None or (isinstance(task_id, str) and task_id):
        return task_id
    raise TypeError(f"task_id must be a text, got {task_id!r:.60}")


def _due(app: Any, countdown: Any, eta: Any) -> DueTime:
    if countdown is not None:
        now = app.now()
        return due_time(app, now, countdown, now)
    if type(eta) is datetime and eta.utcoffset() is not None and 0 <= (at_us := us_of(eta)) < _END_US:
        return DueTime(eta.isoformat(), at_us)  # the result of ``due_time``, faster: most rows are of this kind
    if type(eta) is not int:
        if not eta:
            raise ValueError("a row must have eta or countdown; send a task without a delay by apply_async")
        due = due_time(app, EPOCH, None, eta)  # the current time does not matter for an eta
        if due.at_us < 0:
            raise ValueError(f"eta must not be before 1970, got {eta!r}")
        return due
    if not _MIN_MS <= eta < END_OF_TIME_MS:
        raise ValueError(f"eta must be Unix milliseconds from 1973 to the end of 9998, got {eta}")
    text = datetime.fromtimestamp(eta // 1000, UTC).replace(microsecond=eta % 1000 * 1000).isoformat()
    return DueTime(text, eta * 1000)


_END_US = (END_OF_TIME_MS - 1) * 1_000
