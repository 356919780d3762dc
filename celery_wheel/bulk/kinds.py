"""A kind of packed rows: the format that they share, and the values that each puts into it.

::

    {"body": "[%s, %s, {…}]", …, "headers": {…, "id": %s, …, "wheel": {…}}, "properties": {…, "body_encoding": "utf-8"}}
               args, kwargs: parts of a text, escaped as they stand in one

It is ``template``'s format with the body as text where the serializer is JSON, so that arguments are parts of it; and
with what does not differ (created_ms) written into it.
"""

from __future__ import annotations

import json
import time
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from celery_wheel.broker.envelope import HEADER, decode
from celery_wheel.broker.raw import written
from celery_wheel.bulk.catching import Caught
from celery_wheel.bulk.places import (
    ARGSREPR,
    BODY,
    CREATED_MS,
    ENVELOPE,
    ETA,
    ETA_MS,
    EXPIRES,
    EXPIRES_MS,
    ID,
    KEY,
    KWARGSREPR,
    OWN_HEADERS,
    with_places,
)
from celery_wheel.bulk.row import Call
from celery_wheel.bulk.shown import shown
from celery_wheel.bulk.template import Template
from celery_wheel.store.model import Message
from celery_wheel.store.packed import US

ARGS, KWARGS = "args", "kwargs"

#: Values of nearly all kinds: those of JSON and without an expires.
USUAL = [ARGS, KWARGS, ID, ETA, ARGSREPR, KWARGSREPR, ENVELOPE, ETA_MS, KEY]


class Kind:
    """``proven`` once a second row came out the same both ways."""

    def __init__(self, app: Any, call: Call, caught: Caught) -> None:
        self.proven = False
        self.template = Template(app, call, caught)
        kept: list[str] = []
        parts: list[str] = []
        constants = {OWN_HEADERS: "", CREATED_MS: str(time.time_ns() // 1_000_000)}
        text, places = with_places(call, self._in_plain(caught))
        for place in places:
            parts.append(constants.get(place) or ("" if place in constants else self._place(place)))
            if place == BODY and self.template.is_json:
                kept += [ARGS, KWARGS]
            elif place not in constants:
                kept.append(place)
        self._names = list(dict.fromkeys(kept))
        self.packed = text.replace("%%", "%%%%") % tuple(parts), tuple(map(self._names.index, kept))
        self.is_usual = self._names == USUAL

    def _in_plain(self, caught: Caught) -> Caught:
        if not self.template.is_json:
            return caught
        properties = {**caught.message["properties"], "body_encoding": "utf-8"}
        return Caught({**caught.message, "properties": properties}, caught.embed, None, None)

    def _place(self, place: str) -> str:
        if place != BODY or not self.template.is_json:
            return "%s"
        return '"[%s, %s, ' + quoted(json.dumps(self.template.embed))[1:-1].replace("%", "%%") + ']"'

    def values(self, call: Call, args: str | None, kwargs: str | None, task_id: str, envelope_id: str) -> str:
        """The values of a row of whatever kind; ``args`` and ``kwargs`` as they were given, as JSON."""
        template = self.template
        given, named = call.args or (), call.kwargs or {}
        if template.check_arguments is not None:
            template.check_arguments(*given, **named)
        expires, expires_ms = template.expires(call) if template.expire else ("null", "null")
        key = call.key or template.key
        values = {
            ARGS: inside(args, "[]"),
            KWARGS: inside(kwargs, "{}"),
            ID: quoted(task_id),
            ETA: quoted(call.due.text),
            ARGSREPR: quoted(shown(given, template.max_args, template.max_levels)),
            KWARGSREPR: quoted(shown(named, template.max_kwargs, template.max_levels)),
            ENVELOPE: f'"{envelope_id}"',
            ETA_MS: str(call.due.eta_ms),
            KEY: "null" if key is None else quoted(key),
            EXPIRES: expires,
            EXPIRES_MS: expires_ms,
        }
        if not template.is_json:
            values[BODY] = template.body(given, named)
        return US.join([values[name] for name in self._names])

    def message(self, values: str) -> bytes:
        """The message that the scheduler will find."""
        text, places = self.packed
        given = values.split(US)
        return (text % tuple([given[place] for place in places])).encode()

    def agrees(self, caught: Caught, values: str) -> bool:
        """Whether the scheduler would read the same as in what was caught, but for what is counted from now."""
        ours, theirs = (decode(one, 2**40) for one in (self.message(values), written(caught.message)))
        if not isinstance(ours, Message) or not isinstance(theirs, Message):
            return False
        return _comparable(ours) == _comparable(theirs)


def inside(given: str | None, none: str) -> str:
    """A JSON text as it stands inside of a text."""
    return none if given is None else quoted(given)[1:-1]


def _comparable(message: Message) -> dict[str, Any]:
    """Bodies as what they say: spaces are the caller's."""
    found = {name: getattr(message, name) for name in Message.__slots__ if name not in ("created_ms", "expires_ms")}
    headers = json.loads(message.headers)
    headers["expires"] = headers.get("expires") is not None
    properties = json.loads(message.properties)
    found["headers"], found["properties"] = list(headers.items()), list(properties.items())
    if properties.get("content_type") == "application/json" and not headers.get("compression"):
        found["body"] = json.loads(message.body)
    return found


def reidentified(caught: Caught, envelope_id: str) -> Caught:
    """The same message under the id that makes it idempotent."""
    caught.message["headers"][HEADER]["id"] = envelope_id
    return caught
