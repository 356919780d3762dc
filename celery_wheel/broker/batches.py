"""One message for up to ``size`` calls of a batch: the worker's side is ``celery_wheel.Batches``.

::

    rows of a chunk    a1  x  a2  b1  a3           a, b: names of batches, in the header wheel_batch of each call
    messages           [a1 a2 a3]  x  b1           where the first one of each batch stood; one alone stays as it is

    headers            lang, task, id, timelimit of the first call, …, "wheel_batch": 3
    body               [[[headers, properties, "body as base64"], …]], {}, {…}]          as JSON: a call of Celery with
                                                                                         one argument, the closed calls

Promises: bodies stay closed. Each row of the chunk is in exactly one message, in order within its batch. A message of
the same calls has the same id: a worker that knows results of messages that came twice knows this one.
Non-promises: a batch of which a part is in another chunk, or which is larger than MAX_BYTES, is several messages. A
message of Celery's first protocol stays alone.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery_wheel.broker.envelope import BATCH
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import PublishInterrupted
from celery_wheel.store.model import PLAIN, Parts, Row, join

#: The calls of one message have at most so many bytes.
MAX_BYTES = 2 * 2**20

_CLOSED = b', {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


@dataclass(slots=True, eq=False)
class MergedRow(Row):
    """A row for the message of several rows, with the place of the first one."""

    row_ids: tuple[int, ...] = ()


def ids_of(row: Row) -> tuple[int, ...]:
    return row.row_ids if isinstance(row, MergedRow) else (row.id,)


def merge(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows to publish: those of batches are merged; without any, the same sequence."""
    if not any(row.route.batch for row in rows):
        return rows
    merged: list[Row | _Open] = []
    opened: dict[Any, _Open] = {}
    for row in rows:
        call = _call_of(row) if row.route.batch else None
        if call is None:
            merged.append(row)
            continue
        name = row.route, call.name
        one = opened.get(name)
        if one is None or len(one.calls) >= (row.route.batch or 0) or one.size + row.size > MAX_BYTES:
            one = opened[name] = _Open()
            merged.append(one)
        one.add(call)
    return [one.row() if isinstance(one, _Open) else one for one in merged]


def publish_merged(rows: Sequence[Row], publish: Callable[[Sequence[Row]], Confirmed]) -> Confirmed:
    """Publish rows, merged; the answer is about each of them. Raises as ``publish``."""
    merged = merge(rows)
    if merged is rows:
        return publish(rows)
    ids = {row.id: ids_of(row) for row in merged}
    try:
        answer = publish(merged)
    except PublishInterrupted as error:
        error.confirmed = {one for row_id in error.confirmed for one in ids[row_id]}
        raise
    failed = {one: reason for row_id, reason in answer.failed.items() for one in ids[row_id]}
    refused = {one: reason for row_id, reason in answer.refused.items() for one in ids[row_id]}
    return Confirmed(failed, refused)


@dataclass(frozen=True, slots=True)
class _ClosedCall:
    row: Row
    name: str
    headers: dict[str, Any]
    parts: Parts


def _call_of(row: Row) -> _ClosedCall | None:
    """Return the call of a row; None for one whose message stays alone, as it is."""
    try:
        parts = row.parts()
        headers = json.loads(parts.headers)
        name = headers[BATCH]
    except (ValueError, KeyError, TypeError, RecursionError):  # damaged bytes: the edge says what is wrong with them
        return None
    is_protocol_2 = isinstance(name, str) and "task" in headers and "id" in headers
    return _ClosedCall(row, name, headers, parts) if is_protocol_2 else None


class _Open:
    """The calls of a message that may get others."""

    def __init__(self) -> None:
        self.calls: list[_ClosedCall] = []
        self.size = 0

    def add(self, call: _ClosedCall) -> None:
        self.calls.append(call)
        self.size += call.row.size

    def row(self) -> Row:
        calls, first = self.calls, self.calls[0].row
        if len(calls) == 1:
            return first
        ids = tuple(one.row.id for one in calls)
        own_id = str(uuid5(NAMESPACE_OID, json.dumps([one.headers["id"] for one in calls])))
        headers = {
            **{"lang": "py", "task": first.route.task, "id": own_id, "root_id": own_id, "retries": 0},
            **dict.fromkeys(("shadow", "eta", "expires", "group", "parent_id")),
            "timelimit": calls[0].headers.get("timelimit") or [None, None],
            "argsrepr": f"(<{len(calls)} calls>,)",
            "kwargsrepr": "{}",
            "origin": "celery-wheel",
            "ignore_result": True,  # each call has a result of its own
            BATCH: len(calls),
        }
        kind = {"content_type": "application/json", "content_encoding": "utf-8"}
        properties = {**kind, "correlation_id": own_id, "reply_to": "", "delivery_mode": 2}
        closed = b", ".join(
            b'[%b, %b, "%b"]' % (*one.parts[:2], b2a_base64(one.parts.body, newline=False)) for one in calls
        )
        parts = json.dumps(headers).encode(), json.dumps(properties).encode(), b"[[[%b]]%b" % (closed, _CLOSED)
        place = first.id, first.lane, first.due_ms, first.seq, first.eta_ms, first.route
        return MergedRow(*place, None, None, sum(map(len, parts)), join(*parts), PLAIN, row_ids=ids)
