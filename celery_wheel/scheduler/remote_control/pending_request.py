"""The request in a pending message, as a worker would read it, as far as that is safe.

::

    headers      id, task, group, retries, stamps, …      always
    body         args, kwargs, and the embed: callbacks, errbacks, chain, chord
                     JSON, msgpack, YAML: read       pickle and anything else: never opened, ``opened`` is False
                     cannot be decoded               ``broken`` is the kind of the error, whose text may quote the body

Protocol 1 has no headers: its body has all fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from celery.app.task import Context
from kombu import compression as compressions
from kombu import serialization

from celery_wheel.store.model import Row, TaskRow

_decompress: Any = compressions.decompress  # kombu carries no types
_loads: Any = serialization.loads

#: Content types that no decoder runs code for.
SAFE = frozenset(("application/json", "application/x-msgpack", "application/x-yaml"))


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The request of a message."""

    context: Context
    headers: dict[str, Any]
    properties: dict[str, Any]
    opened: bool  #: False where the body is of a content type that is never opened here
    broken: str = ""  #: the kind of the error with which the body was decoded


def read(one: TaskRow, node: str) -> PendingRequest:
    """Return the request of a cancelled task; ``node`` is its hostname."""
    row = one.row
    headers: dict[str, Any] = json.loads(row.parts().headers)
    properties: dict[str, Any] = json.loads(row.parts().properties)
    opened = properties.get("content_type") in SAFE
    fields, broken = dict(headers), ""
    if opened:
        try:
            fields |= _fields(row, headers, properties)
        except Exception as error:  # each decoder has its own
            broken = type(error).__name__
    fields |= {
        "id": one.task_id,
        "task": row.route.task,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "hostname": node,
        "delivery_info": {
            "exchange": row.route.exchange,
            "routing_key": row.route.routing_key,
            "priority": row.route.priority,
            "redelivered": False,
        },
    }
    return PendingRequest(Context(fields), headers, properties, opened, broken)


def _fields(row: Row, headers: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the body adds; none where it is no task's body."""
    body = row.parts().body
    if compression := headers.get("compression"):
        body = _decompress(body, compression)
    payload = _loads(body, properties["content_type"], properties.get("content_encoding") or "utf-8", accept=SAFE)
    if isinstance(payload, dict):  # protocol 1
        names = ("args", "kwargs", "retries", "chord", "callbacks", "errbacks", "timelimit")
        return {"group": payload.get("taskset")} | {name: payload.get(name) for name in names}
    if isinstance(payload, list | tuple) and len(payload) == 3:
        args, kwargs, embed = payload
        return {"args": args, "kwargs": kwargs, **(embed or {})}
    return {}
