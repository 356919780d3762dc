"""Rows as columns, packed for a bulk load: what ``apply_async`` would have left for each.

::

    row ─► kind = (task, queue, priority, has expires)     1st   slow: what was caught becomes a Kind
                                                           2nd   slow, and by the kind; what is read of both is equal
                                                           others   by the kind: the values that differ, and no more
    of a shard, some hundred ─► Parcel ─► packed.pack

Arguments come as JSON text. It is parsed, to see that it is JSON and how it shows, and put into the body as it is; only
where the app's serializer is another, or compresses, it is dumped anew. What keeps rows on the slow way: ``writing``.

A row that is wrong ends the load: BadRow says which, and why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from json.scanner import make_scanner
from typing import Any

from celery_wheel.broker.envelope import END_OF_TIME_MS
from celery_wheel.broker.names import shard_of
from celery_wheel.broker.raw import written
from celery_wheel.bulk.catching import Catcher
from celery_wheel.bulk.checking import reason
from celery_wheel.bulk.kinds import Kind, inside, reidentified
from celery_wheel.bulk.row import Call, Reader
from celery_wheel.bulk.shown import shown
from celery_wheel.bulk.template import Template
from celery_wheel.bulk.writing import MAX_KINDS, is_plain, is_plain_celery, is_plain_task
from celery_wheel.store.packed import US, WHOLE, pack

#: Values up to this are not measured: far below any limit of a message that makes sense.
SURELY_SMALL = 4_000

_END_US = END_OF_TIME_MS * 1_000

_scan: Any = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # typeshed has only what it makes

#: Keyword arguments that are remembered: many rows have the same, but for few of them.
_MEMO = 1_000

#: Neither a key nor a task id.
_NOTHING = (None, None)

Packed = tuple[str, Sequence[int]]


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
        """One of them, as ``checking`` and people see it."""
        names = ("task", "eta", "args", "kwargs", "queue", "key", "priority", "expires", "task_id")
        columns = {name: getattr(self, name) for name in names}
        row = {name: column[n] for name, column in columns.items() if column is not None}
        return row if self.eta_us[n] is not None else {**row, "eta": None}


@dataclass(slots=True)
class Parcel:
    """Messages of one shard."""

    lines: list[str] = field(default_factory=list)
    kinds: dict[Packed, int] = field(default_factory=dict)

    last: Packed | None = None  #: kind of the last line, and its number: mostly that of the next too
    number: int = 0

    def add(self, packed: Packed, values: str) -> None:
        if packed is not self.last:
            self.last, self.number = packed, self.kinds.setdefault(packed, len(self.kinds))
        self.lines.append(f"{self.number}{US}{values}")

    def packed(self) -> bytes:
        return pack(self.kinds, self.lines)


class Packing:
    """For one load of one process; use it in one thread, and close it."""

    def __init__(self, app: Any, shards: int, max_bytes: int) -> None:
        app.finalize()
        self._app = app
        self._shards = shards
        self._max_bytes = max_bytes
        self._read = Reader(app).read
        self._catcher = Catcher(app)
        self._kinds: dict[Any, Kind | None] = {}  #: None for a kind that stays slow
        self._memo: dict[str | None, tuple[Any, str, str]] = {}
        self._may_be_fast = is_plain_celery(app)

    def pack(self, columns: Columns, first: int = 0) -> dict[int, Parcel]:
        """Parcels by shard. ``first``: number of the first row, for BadRow."""
        parcels: dict[int, Parcel] = {shard: Parcel() for shard in range(self._shards)}
        kinds, none = self._kinds, [None] * len(columns.task)
        kind_of = zip(
            columns.task, columns.queue or none, columns.priority or none, columns.expires or none, strict=True
        )
        arguments = zip(columns.args or none, columns.kwargs or none, strict=True)
        times = zip(columns.eta_us, columns.eta, strict=True)
        names = zip(columns.key or none, columns.task_id or none, columns.envelope, strict=True)
        n = 0
        try:
            for n, ((task, queue, priority, expires), given, at, named) in enumerate(
                zip(kind_of, arguments, times, names, strict=True)
            ):
                kind = kinds.get((task, queue, priority, expires is None))
                plain = named[:2] == _NOTHING or (is_plain(named[0]) and is_plain(named[1]))
                if plain and kind is not None and kind.proven and kind.is_usual:
                    shard, packed, values = self._fast(kind, *given, *at, *named)
                else:
                    shard, packed, values = self._slow(columns, n)
                parcels[shard].add(packed, values)
        except Exception as error:
            row = columns.row(n)
            why = reason(row) or str(error).partition("\n")[0] or type(error).__name__
            raise BadRow(f"row {first + n:,}: {why}; it is {_shown(row)}") from error
        return {shard: parcel for shard, parcel in parcels.items() if parcel.lines}

    def _fast(
        self, kind: Kind, args: Any, kwargs: Any, eta_us: Any, eta: Any, key: Any, task_id: Any, envelope_id: str
    ) -> tuple[int, Packed, str]:
        template = kind.template
        given = arguments(args, list)
        known = self._memo.get(kwargs)
        named, kwargs_in, kwargs_shown = known if known is not None else self._remember(kwargs, template)
        if template.check_arguments is not None:
            template.check_arguments(*given, **named)
        if not 0 <= eta_us < _END_US:
            raise ValueError("eta must be from 1970 to the end of 9998")
        task_id, key = task_id or envelope_id, key or template.key
        values = (
            f"{inside(args, '[]')}{US}{kwargs_in}{US}{quoted(task_id)}{US}{quoted(eta)}{US}"
            f"{quoted(shown(given, template.max_args, template.max_levels))}{US}{kwargs_shown}{US}"
            f'"{envelope_id}"{US}{-(-eta_us // 1000)}{US}{"null" if key is None else quoted(key)}'
        )
        if len(values) > SURELY_SMALL:
            self._measure(kind.message(values))
        return shard_of(key, task_id, self._shards) if self._shards > 1 else 0, kind.packed, values

    def _remember(self, kwargs: str | None, template: Template) -> tuple[Any, str, str]:
        """What they are, as they stand in the body, and how they show."""
        named = arguments(kwargs, dict)
        found = named, inside(kwargs, "{}"), quoted(shown(named, template.max_kwargs, template.max_levels))
        if len(self._memo) >= _MEMO:
            self._memo.clear()
        self._memo[kwargs] = found
        return found

    def _slow(self, columns: Columns, n: int) -> tuple[int, Packed, str]:
        """By Celery's own code, or of a kind with more than the usual."""
        row = columns.row(n)
        if why := reason(row):
            raise ValueError(why)
        call, args, kwargs = self._call(row)
        place = (
            columns.task[n],
            call.options.get("queue"),
            call.options.get("priority"),
            "expires" not in call.options,
        )
        envelope_id = columns.envelope[n]
        task_id = call.task_id = call.task_id or envelope_id
        kind = self._kinds.get(place)
        if kind is not None and kind.proven and is_plain(task_id) and is_plain(call.key):
            values = kind.values(call, args, kwargs, task_id, envelope_id)
            if len(values) > SURELY_SMALL:
                self._measure(kind.message(values))
            return shard_of(call.key or kind.template.key, task_id, self._shards), kind.packed, values
        caught = reidentified(self._catcher.send(call), envelope_id)
        if place not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            usable = self._may_be_fast and caught.embed is not None and is_plain_task(call.task)
            self._kinds[place] = Kind(self._app, call, caught) if usable else None
        elif kind is not None:
            kind.proven = kind.agrees(caught, kind.values(call, args, kwargs, task_id, envelope_id))
            if not kind.proven:
                self._kinds[place] = None
        message = written(caught.message)
        self._measure(message)
        return shard_of(caught.envelope["key"], task_id, self._shards), WHOLE, message.decode()

    def _call(self, row: dict[str, Any]) -> tuple[Call, str | None, str | None]:
        args, kwargs = row.pop("args", None), row.pop("kwargs", None)
        given = {"args": tuple(arguments(args, list)), "kwargs": arguments(kwargs, dict)}
        return self._read({**row, **given}), args, kwargs

    def _measure(self, message: bytes) -> None:
        if len(message) > self._max_bytes:
            raise ValueError(
                f"message must be at most {self._max_bytes:,} bytes (wheel_max_message_bytes), got {len(message):,}"
            )

    def close(self) -> None:
        self._catcher.close()


def arguments(text: Any, kind: type[Any]) -> Any:
    """What a JSON text says: args, a list, as a tuple; or kwargs, an object."""
    if text is None:
        return () if kind is list else {}
    try:
        found, end = _scan(text, 0)
        if end != len(text):
            raise ValueError
    except (ValueError, StopIteration):
        found = json.loads(text)  # spaces around it; or it says what is wrong
    if type(found) is not kind:
        raise TypeError(f"{'args' if kind is list else 'kwargs'} must be JSON of {kind.__name__}, got {text!r:.60}")
    return tuple(found) if kind is list else found


def _shown(row: dict[str, Any]) -> str:
    text = json.dumps(row, default=str, ensure_ascii=False)
    return text if len(text) <= 1_000 else text[:999] + "…"
