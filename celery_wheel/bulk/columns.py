"""Rows as columns: the messages of a bulk load, by shard, to be packed.

::

    Columns ──► n-th values ──► Call ──► Renderer ──► Line ──► of its shard

Arguments come as JSON text. They are parsed, and dumped by the app's serializer as those of any call.

A row that is wrong ends the load: BadRow says which, and why.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_wheel.bulk.renderer import Renderer
from celery_wheel.bulk.row import Call, Reader
from celery_wheel.bulk.rules import own_reason, reason
from celery_wheel.eta import Due
from celery_wheel.store.packed import Form
from celery_wheel.store.text import END_OF_TIME_MS

_END_US = END_OF_TIME_MS * 1_000

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # typeshed has it not

#: Keyword arguments, and tasks with their options, that are remembered: many rows have the same, but for few of them.
_MEMO = 1_000


_NONE = (None, None, None)

#: A message as ``store.packed.pack`` takes it.
Packable = tuple[Form, tuple[str, ...]]


class BadRow(ValueError):
    """A row that cannot be scheduled; nothing of its load is."""


@dataclass(slots=True)
class Columns:
    """Some rows. None: no row has it.

    ``envelope``: UUIDs that make each row idempotent; also its task's id, where it has none of its own. ``eta``: ISO
    texts of ``eta_us``, microseconds of Unix time. ``args`` and ``kwargs``: JSON. ``expires``: datetimes, or seconds
    from now.
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

    def row(self, n: int) -> dict[str, Any]:
        """One of them, as ``rules`` and people see it."""
        names = ("task", "eta", "args", "kwargs", "queue", "key", "priority", "expires", "task_id")
        columns = {name: getattr(self, name) for name in names}
        row = {name: column[n] for name, column in columns.items() if column is not None}
        return row if self.eta_us[n] is not None else {**row, "eta": None}


class _Called(NamedTuple):
    """The options that rows of one task, queue and priority share."""

    name: str
    task: Any
    options: dict[str, Any]


class ColumnRenderer:
    """For one load of one process; use it in one thread, and close it."""

    def __init__(self, app: Any, shards: int, max_bytes: int) -> None:
        self._renderer = Renderer(app, shards, max_bytes)
        self._task = Reader(app).task
        self._shards = shards
        self._called: dict[Any, _Called] = {}
        self._kwargs: dict[str, Any] = {}

    def messages(self, columns: Columns, first: int = 0) -> dict[int, list[Packable]]:
        """What ``store.packed.pack`` takes, by shard. ``first``: number of the first row, for BadRow."""
        found: dict[int, list[Packable]] = defaultdict(list)
        none = [None] * len(columns.task)
        called = zip(columns.task, columns.queue or none, columns.priority or none, strict=True)
        of_row = zip(columns.args or none, columns.kwargs or none, columns.eta_us, columns.eta, strict=True)
        others = (columns.expires, columns.task_id, columns.key)
        named = zip(*(one or none for one in others), columns.envelope, strict=True)
        n = 0
        try:
            for n, (what, (args, kwargs, eta_us, eta), (expires, task_id, key, envelope)) in enumerate(
                zip(called, of_row, named, strict=True)
            ):
                name, task, options = self._called.get(what) or self._remember(what, columns.row(n))
                if (key, task_id, expires) != _NONE and (why := own_reason(key, task_id, expires)):
                    raise ValueError(why)
                if expires is not None:
                    options = {**options, "expires": expires}
                if not 0 <= eta_us < _END_US:
                    raise ValueError("eta must be from 1970 to the end of 9998")
                call = Call(name, task, _args(args), self._named(kwargs), options, Due(eta, eta_us), task_id, key)
                call.envelope_id = envelope
                line = self._renderer.render(call)
                found[line.shard].append((line.form, line.values))
        except Exception as error:
            row = columns.row(n)
            why = reason(row) or str(error).partition("\n")[0] or type(error).__name__
            raise BadRow(f"row {first + n:,}: {why}; it is {_shortened(row)}") from error
        return found

    def _remember(self, what: tuple[Any, Any, Any], row: dict[str, Any]) -> _Called:
        """Raises ValueError for a row that is wrong in any way."""
        if why := reason(row):
            raise ValueError(why)
        name, queue, priority = what
        options = {"queue": queue, "priority": priority}
        found = _Called(*self._task(name), {option: value for option, value in options.items() if value is not None})
        if len(self._called) >= _MEMO:
            self._called.clear()
        self._called[what] = found
        return found

    def _named(self, text: str | None) -> Any:
        if text is None:
            return {}
        found = self._kwargs.get(text)
        if found is None:
            found = _parsed("kwargs", text, dict)
            if len(self._kwargs) >= _MEMO:
                self._kwargs.clear()
            self._kwargs[text] = found
        return found

    def close(self) -> None:
        self._renderer.close()


def _args(text: str | None) -> tuple[Any, ...]:
    return () if text is None else tuple(_parsed("args", text, list))


def _parsed(name: str, text: str, kind: type[Any]) -> Any:
    try:
        found, end = _scan(text, 0)
        if end != len(text):
            raise ValueError
    except (ValueError, StopIteration):
        found = json.loads(text)  # spaces around it; or it says what is wrong
    if type(found) is not kind:
        raise TypeError(f"{name} must be JSON of {kind.__name__}, got {text!r:.60}")
    return found


def _shortened(row: dict[str, Any]) -> str:
    text = json.dumps(row, default=str, ensure_ascii=False)
    return text if len(text) <= 1_000 else text[:999] + "…"
