"""Rows as columns: the messages of a bulk load, by shard, ready for packing.

Arguments are JSON text, parsed here and encoded by the app's serializer as in any call. A wrong row ends the load:
BadRow has its number and the reason.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from celery_wheel.bulk_load.reject_rules import own_reason, reason
from celery_wheel.bulk_load.renderer import Renderer
from celery_wheel.bulk_load.row import RowReader, TaskCall
from celery_wheel.errors import WheelError
from celery_wheel.producer.eta import DueTime
from celery_wheel.store.message_pack import PackTemplate
from celery_wheel.values.text import END_OF_TIME_MS

_END_US = END_OF_TIME_MS * 1_000

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # typeshed has it not

#: Cached keyword arguments, and cached tasks with their options: most rows share these with other rows.
_CACHE_SIZE = 1_000

_NONE = (None, None, None, None)

#: A message as ``store.message_pack.pack`` accepts it.
Packable = tuple[PackTemplate, tuple[str, ...]]


class BadRow(WheelError, ValueError):
    """A row that cannot be scheduled; no row of its load is scheduled."""


@dataclass(slots=True)
class Columns:
    """Some rows; a column is None where no row has a value.

    ``envelope``: UUIDs that make each row idempotent; also the task's id of a row without one. ``eta``: ISO texts of
    ``eta_us``, microseconds of Unix time. ``args`` and ``kwargs``: JSON. ``expires``: datetimes, or seconds from now.
    """

    envelope: Sequence[str]
    task: Sequence[Any]
    eta_us: Sequence[Any]
    eta: Sequence[Any]
    args: Sequence[Any] | None = None
    kwargs: Sequence[Any] | None = None
    queue: Sequence[Any] | None = None
    key: Sequence[Any] | None = None
    priority: Sequence[Any] | None = None
    expires: Sequence[Any] | None = None
    task_id: Sequence[Any] | None = None
    group: Sequence[Any] | None = None

    def row(self, n: int) -> dict[str, Any]:
        """Return one row as a dict, for ``reject_rules`` and for people."""
        names = ("task", "eta", "args", "kwargs", "queue", "key", "priority", "expires", "task_id", "group")
        columns = {name: getattr(self, name) for name in names}
        row = {name: column[n] for name, column in columns.items() if column is not None}
        return row if self.eta_us[n] is not None else {**row, "eta": None}


class ColumnRenderer:
    """Renders the columns of one load in one process; use it in one thread, and close it."""

    def __init__(self, app: Any, shards: int, max_bytes: int) -> None:
        self._renderer = Renderer(app, shards, max_bytes)
        self._task = RowReader(app).task
        #: (task, queue, priority) of rows → name, task, and the options that these rows share.
        self._kinds: dict[Any, tuple[str, Any, dict[str, Any]]] = {}
        self._kwargs = lru_cache(_CACHE_SIZE)(lambda text: _parsed("kwargs", text, dict))

    def messages(self, columns: Columns, first: int = 0) -> dict[int, list[Packable]]:
        """Return messages for ``pack``, by shard. ``first`` is the number of the first row, for BadRow."""
        found: dict[int, list[Packable]] = defaultdict(list)
        none = [None] * len(columns.task)
        shared = zip(columns.task, columns.queue or none, columns.priority or none, strict=True)
        of_row = zip(columns.args or none, columns.kwargs or none, columns.eta_us, columns.eta, strict=True)
        others = (columns.expires, columns.task_id, columns.key, columns.group)
        ids = zip(*(column or none for column in others), columns.envelope, strict=True)
        n = 0
        try:
            for n, (kind, (args, kwargs, eta_us, eta), (expires, task_id, key, group, envelope)) in enumerate(
                zip(shared, of_row, ids, strict=True)
            ):
                name, task, options = self._kinds.get(kind) or self._kind(kind, columns.row(n))
                if (key, group, task_id, expires) != _NONE and (why := own_reason(key, group, task_id, expires)):
                    raise ValueError(why)
                if expires is not None:
                    options = {**options, "expires": expires}
                if not 0 <= eta_us < _END_US:
                    raise ValueError("eta must be from 1970 to the end of 9998")
                due = DueTime(eta, eta_us)
                values = () if args is None else tuple(_parsed("args", args, list))
                named = {} if kwargs is None else self._kwargs(kwargs)
                call = TaskCall(name, task, values, named, options, due, task_id, group or key, group)
                call.envelope_id = envelope
                message = self._renderer.render(call)
                found[message.shard].append((message.template, message.values))
        except Exception as error:
            row = columns.row(n)
            why = reason(row) or str(error).partition("\n")[0] or type(error).__name__
            raise BadRow(f"row {first + n:,}: {why}; it is {_shortened(row)}") from error
        return found

    def _kind(self, kind: tuple[Any, Any, Any], row: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
        """Cache the kind of a row. Raises ValueError for a row that breaks any rule."""
        if why := reason(row):
            raise ValueError(why)
        name, queue, priority = kind
        options = {"queue": queue, "priority": priority}
        found = *self._task(name), {option: value for option, value in options.items() if value is not None}
        if len(self._kinds) >= _CACHE_SIZE:
            self._kinds.clear()
        self._kinds[kind] = found
        return found

    def close(self) -> None:
        self._renderer.close()


def _parsed(name: str, text: str, kind: type[Any]) -> Any:
    try:
        found, end = _scan(text, 0)
        if end != len(text):
            raise ValueError
    except (ValueError, StopIteration):
        found = json.loads(text)  # accepts spaces at both ends; its error names the fault
    if type(found) is not kind:
        raise TypeError(f"{name} must be JSON of {kind.__name__}, got {text!r:.60}")
    return found


def _shortened(row: dict[str, Any]) -> str:
    text = json.dumps(row, default=str, ensure_ascii=False)
    return text if len(text) <= 1_000 else text[:999] + "…"
