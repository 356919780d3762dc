"""A caught message as a format: what is of the row becomes a place, all else stays as Celery's code wrote it.

::

    {"body": %s, …, "headers": {"lang": "py", "task": "shop.remind", "id": %s, …, <own headers> "wheel": {…}}, …}
"""

from __future__ import annotations

from kombu.utils.json import JSONEncoder

from celery_wheel.broker.envelope import HEADER
from celery_wheel.bulk.catching import Caught
from celery_wheel.bulk.row import Call
from celery_wheel.ids import uuid7

#: What is of a row. Each stands for a JSON value, but for the own headers, which are members of an object.
BODY, ID, ARGSREPR, KWARGSREPR, ETA, EXPIRES, OWN_HEADERS, ENVELOPE, ETA_MS, CREATED_MS, EXPIRES_MS, KEY = PLACES = (
    "body",
    "id",
    "argsrepr",
    "kwargsrepr",
    "eta",
    "expires",
    "own headers",
    "envelope",
    "eta_ms",
    "created_ms",
    "expires_ms",
    "key",
)


def with_places(call: Call, caught: Caught) -> tuple[str, list[str]]:
    """The format, with %s for each place, and the places in order; one may come twice."""
    message = caught.message
    headers, envelope = dict(message["headers"]), dict(caught.envelope)
    task_id = envelope["task_id"]
    mark = uuid7()  # occurs nowhere else
    at = {name: f"{mark} {name}" for name in PLACES}
    for name in call.options.get("headers") or ():
        headers.pop(name)
    headers.update(id=at[ID], eta=at[ETA])
    for name in (ARGSREPR, KWARGSREPR):
        if name not in call.options:
            headers[name] = at[name]
    if headers["root_id"] == task_id:
        headers["root_id"] = at[ID]
    if headers["expires"] is not None:
        headers["expires"] = at[EXPIRES]
        envelope["expires_ms"] = at[EXPIRES_MS]
    envelope |= {name: at[name] for name in (ETA_MS, CREATED_MS, KEY)}
    envelope |= {"id": at[ENVELOPE], "task_id": at[ID]}
    del headers[HEADER]  # the compression comes behind it
    behind = {name: headers.pop(name) for name in ("compression",) if name in headers}
    headers |= {at[OWN_HEADERS]: None, HEADER: envelope, **behind}
    properties = dict(message["properties"])
    if properties.get("correlation_id") == task_id:
        properties["correlation_id"] = at[ID]
    text = JSONEncoder().encode({**message, "body": at[BODY], "headers": headers, "properties": properties})
    return _split(text, mark)


def _split(text: str, mark: str) -> tuple[str, list[str]]:
    text = text.replace("%", "%%").replace(f'"{mark} {OWN_HEADERS}": null, ', f'"{mark} {OWN_HEADERS}"')
    first, *rest = text.split(f'"{mark} ')
    pieces, names = [first], []
    for part in rest:
        name, _, piece = part.partition('"')
        names.append(name)
        pieces.append(piece)
    return "%s".join(pieces), names
