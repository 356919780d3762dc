"""One row of a bulk load as a call: which task, with what, when.

::

    Signature                        its task, arguments and options; eta or countdown among them
    {"task": …, "args": …, "eta": …} FIELDS and OPTIONS by name; also a NamedTuple
    (task, args, kwargs, eta, …)     FIELDS in their order; at least the first four

``task`` is a task or its name. ``eta`` is a datetime or an ISO text, as ``apply_async`` takes them (a naive one is UTC,
see ``celery_wheel.eta``), or an int: Unix milliseconds. ``countdown`` is in seconds, wins over eta as in Celery, and 0
is now. What is None was not said.

What a row asks wrongly is a ValueError or TypeError for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from celery.canvas import Signature
from celery.local import Proxy

from celery_wheel.eta import Due, due, microseconds
from celery_wheel.options import PLAIN, CallOptions, name_of, parse
from celery_wheel.store.text import END_OF_TIME_MS

FIELDS = ("task", "args", "kwargs", "eta", "queue", "key", "priority", "expires", "task_id", "headers")
#: Of ``apply_async``, for rows that are dicts or NamedTuples. Whatever else it takes, a signature's options take too.
OPTIONS = [
    "countdown",
    "exchange",
    "routing_key",
    "serializer",
    "compression",
    "delivery_mode",
    "ignore_result",
    "time_limit",
    "soft_time_limit",
    "shadow",
    "argsrepr",
    "kwargsrepr",
    "retries",
    "reply_to",
    "link",
    "link_error",
]

_LEAST = 4  #: of a tuple
_KNOWN = frozenset((*FIELDS, *OPTIONS, "wheel"))
#: What has a place of its own in a Call.
_OWN = frozenset(("task", "args", "kwargs", "eta", "countdown", "key", "task_id", "wheel"))

#: Smaller ints are instants in 1970 to 1973, which nobody schedules: they are seconds.
_SURELY_MS = 100_000_000_000


@dataclass(slots=True)
class Call:
    """``options`` are those of ``apply_async``, without what has a field of its own here."""

    name: str
    task: Any  #: None where no such task is registered: then its name is all there is
    args: Any
    kwargs: Any
    options: dict[str, Any]
    due: Due
    task_id: str | None
    key: str | None = None
    asked: CallOptions = PLAIN  #: but for the key
    envelope_id: str | None = None  #: a UUID that makes the message idempotent; also its task's id, if it has none


#: Task objects that a reader remembers; a load of more makes them anew for each row.
_MEMO = 1_000


class Reader:
    """Reads the rows of one load, for one app."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._tasks = app.tasks
        self._memo: dict[int, tuple[Any, str, Any]] = {}  #: by the identity of what a row gives: that, its name, a task

    def read(self, row: Any) -> Call:
        """Raises TypeError or ValueError."""
        if type(row) is tuple:
            return self._of_tuple(row)
        if isinstance(row, Signature):
            return self._of_signature(row)
        if isinstance(row, Mapping):
            if "subtask_type" in row:  # a signature that was serialised
                return self._of_signature(Signature.from_dict(row, app=self._app))
            return self._of_fields(row)
        if isinstance(row, tuple) and hasattr(row, "_fields"):
            return self._of_fields(dict(zip(row._fields, row, strict=True)))
        if isinstance(row, tuple | list):
            return self._of_tuple(row)
        raise TypeError(f"a row must be a signature, a dict or a tuple, got {type(row).__name__}")

    def _of_tuple(self, row: Any) -> Call:
        if not _LEAST <= len(row) <= len(FIELDS):
            raise ValueError(f"a row must have {_LEAST} to {len(FIELDS)} values ({', '.join(FIELDS)}), got {len(row)}")
        if len(row) > _LEAST:
            return self._of_fields(dict(zip(FIELDS, row, strict=False)))
        task, args, kwargs, eta = row
        name, task = self.task(task)
        return Call(name, task, args, kwargs, {}, _due(self._app, None, eta), None)

    def _of_fields(self, fields: Mapping[str, Any]) -> Call:
        if not fields.keys() <= _KNOWN:
            unknown = ", ".join(sorted(str(name) for name in fields if name not in _KNOWN))
            raise ValueError(f"a row must have no fields but {', '.join((*FIELDS, *OPTIONS))}, got {unknown}")
        get = fields.get
        options = {name: value for name, value in fields.items() if value is not None and name not in _OWN}
        key, asked = _asked(get("wheel"))
        if get("key") is not None:
            key = name_of("key", get("key"))
        name, task = self.task(get("task"))
        at = _due(self._app, get("countdown"), get("eta"))
        return Call(name, task, get("args"), get("kwargs"), options, at, _id(get("task_id")), key, asked)

    def _of_signature(self, row: Any) -> Call:
        if type(row).apply_async is not Signature.apply_async:
            raise ValueError(
                f"a signature must be that of one task, got a {row.get('subtask_type') or row.task}: what belongs to "
                "its tasks together (a chord's counter, a group's results) is made while it is sent; send it by "
                "apply_async"
            )
        options = dict(row.options)
        key, asked = _asked(options.pop("wheel", None))
        for name in ("connection", "producer", "publisher"):
            if options.pop(name, None) is not None:
                raise ValueError(f"{name} must not be given: what is loaded goes to the app's own broker")
        countdown, eta, task_id = options.pop("countdown", None), options.pop("eta", None), options.pop("task_id", None)
        name, task = self.task(row.task)
        at = _due(self._app, countdown, eta)
        return Call(name, task, row.args, row.kwargs, options, at, _id(task_id), key, asked)

    def task(self, given: Any) -> tuple[str, Any]:
        """The name and the task, None where no such task is registered, of a task or a name."""
        if type(given) is str and given:
            return given, self._tasks.get(given)
        known = self._memo.get(id(given))
        if known is not None:
            return known[1:]
        name = getattr(given, "name", None)
        if not (isinstance(name, str) and hasattr(given, "apply_async")):
            raise TypeError(f"task must be a task or its name, got {given!r:.60}")
        task = given
        if isinstance(given, Proxy):  # of ``app.task`` before the app is finalised, and of ``shared_task``
            task = self._tasks.get(name, given)
        if task.app is not self._app:
            raise ValueError(f"task {name} must be one of this app {self._app.main!r}, got one of {task.app.main!r}")
        if len(self._memo) >= _MEMO:
            self._memo.clear()
        self._memo[id(given)] = given, name, task
        return name, task


def _asked(wheel: Any) -> tuple[str | None, CallOptions]:
    """The key, and all else that is asked of the wheel."""
    if wheel is None:
        return None, PLAIN
    asked = parse(wheel)
    if asked.native:
        raise ValueError("wheel=False asks Celery itself to hold it; send it by apply_async")
    if asked.transactional:
        raise ValueError("wheel option transactional is not for a load, which commits in groups; use apply_async")
    others = replace(asked, key=None)
    return asked.key, PLAIN if others == PLAIN else others


def _id(task_id: Any) -> str | None:
    if task_id is None or (isinstance(task_id, str) and task_id):
        return task_id
    raise TypeError(f"task_id must be a text, got {task_id!r:.60}")


def _due(app: Any, countdown: Any, eta: Any) -> Due:
    if countdown is not None:
        now = app.now()
        return due(app, now, countdown, now)
    if type(eta) is datetime and eta.utcoffset() is not None and 0 <= (at_us := microseconds(eta)) < _END_US:
        return Due(eta.isoformat(), at_us)  # as ``due`` would have it, which most rows need not ask
    if type(eta) is not int:
        if not eta:
            raise ValueError("eta or countdown must be given; what is not to wait is sent by apply_async")
        at = due(app, _ANY_TIME, None, eta)
        if at.at_us < 0:
            raise ValueError(f"eta must not be before 1970, got {eta!r}")
        return at
    if not _SURELY_MS <= eta < END_OF_TIME_MS:
        raise ValueError(f"eta must be Unix milliseconds from 1973 to the end of 9998, got {eta}")
    text = datetime.fromtimestamp(eta // 1000, UTC).replace(microsecond=eta % 1000 * 1000).isoformat()
    return Due(text, eta * 1000)


_END_US = (END_OF_TIME_MS - 1) * 1_000
_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)  #: an eta does not depend on now
