"""The fast way: a message of the same kind as one that Celery's own code made, with this row's parts put in.

::

    kind = (task, options)      1st row   slow: what was caught becomes a Template
                                2nd row   slow, and by the template; they must be equal, or the kind stays slow
                                others    by the template

    of the row                  id, args, kwargs and how they show, eta, expires, own headers, key, envelope
    of the kind                 all else: destination, serializer, compression, priority, limits, origin, parents …

Whatever could make a message depend on a row in another way keeps the kind, or the whole load, on the slow way: it is
listed in ``writing``.
"""

from __future__ import annotations

import json
import json.encoder
import time
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from operator import itemgetter
from typing import Any

from celery.utils.time import add_seconds_to_datetime as later
from celery.utils.time import maybe_make_aware
from kombu.serialization import registry
from kombu.utils import json as kombu_json

from celery_wheel import eta as etas
from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.raw import base64, kombu
from celery_wheel.bulk.catching import Caught
from celery_wheel.bulk.places import EXPIRES, PLACES, with_places
from celery_wheel.bulk.row import Call
from celery_wheel.bulk.shown import shown

#: What is compared only as to whether it is there: it is counted from now.
_COUNTED = ("expires", "expires_ms", "created_ms")

#: What ``kombu.utils.json.dumps`` makes anew for each call.
_encoder = kombu_json.JSONEncoder()
_json = _encoder.encode
#: And what that makes anew for each call; without looking for circles, which end in a RecursionError.
_make: Any = getattr(json.encoder, "c_make_encoder", None)  # None where Python has no C
_chunks = _make and _make(None, _encoder.default, quoted, None, ": ", ", ", False, False, True)


class Template:
    """Made of a caught message and the call that it is of. ``proven`` once a second row came out the same both ways."""

    def __init__(self, app: Any, call: Call, caught: Caught) -> None:
        self.proven = False
        self._app = app
        self.embed, self._serializer, self._compression = caught.embed, caught.serializer, caught.compression
        self.is_json = _chunks is not None and not caught.compression and _is_kombu_json(caught.serializer)
        self._behind_arguments = f", {_json(caught.embed)}]"
        self.max_args, self.max_kwargs = app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize
        self.max_levels = app.conf.task_repr_maxlevels
        self._counted = call.options["expires"] if "expires" in call.options else getattr(call.task, "expires", None)
        self.key: str | None = caught.envelope["key"] if call.key is None else None  #: its route's
        self.check_arguments = getattr(call.task, "__header__", None) if getattr(call.task, "typing", False) else None
        self._text, places = with_places(call, caught)
        self._in_order = itemgetter(*map(PLACES.index, places))
        self.expire = EXPIRES in places

    def write(self, call: Call, task_id: str, envelope_id: str) -> str:
        """The message of a call of this kind. Raises what ``apply_async`` would raise for its arguments."""
        args, kwargs = call.args or (), call.kwargs or {}
        if type(args) is not tuple and not isinstance(args, list | tuple):
            raise TypeError("task args must be a list or tuple")
        if type(kwargs) is not dict and not isinstance(kwargs, Mapping):
            raise TypeError("task keyword arguments must be a mapping")
        if self.check_arguments is not None:
            self.check_arguments(*args, **kwargs)
        expires, expires_ms = self.expires(call) if self.expire else ("null", "null")
        key = call.key or self.key
        values = (  # in the order of PLACES
            self.body(args, kwargs),
            quoted(task_id),
            quoted(shown(args, self.max_args, self.max_levels)),
            quoted(shown(kwargs, self.max_kwargs, self.max_levels)),
            quoted(call.due.text),
            expires,
            _members(call.options["headers"]) if "headers" in call.options else "",
            f'"{envelope_id}"',
            call.due.eta_ms,
            time.time_ns() // 1_000_000,
            expires_ms,
            "null" if key is None else quoted(key),
        )
        text: str = self._text % self._in_order(values)
        return text

    def body(self, args: Any, kwargs: Any) -> str:
        """The body as a JSON text of base64."""
        if self.is_json:
            try:
                text = "".join(_chunks((args, kwargs), 0))[:-1] + self._behind_arguments
            except Exception:  # noqa: S110 - kombu raises it below in its own words
                pass
            else:
                return f'"{b64encode(text.encode()).decode()}"'
        body, _, _ = kombu._prepare(
            (args, kwargs, self.embed), self._serializer, compression=self._compression, headers={}
        )
        return f'"{base64(body)}"'

    def expires(self, call: Call) -> tuple[str, str]:
        """The header and the instant, as ``as_task_v2`` and the interception make them."""
        asked: Any = call.options.get("expires", self._counted)
        if not isinstance(asked, datetime):
            asked = maybe_make_aware(later(self._app.now(), asked), tz=self._app.timezone)
        text = asked.isoformat()
        at_ms = etas.expires_ms(self._app, text)
        return quoted(text), "null" if at_ms is None else str(at_ms)

    def agrees(self, call: Call, caught: Caught) -> bool:
        """Whether this row comes out here as it was caught, but for what is counted or drawn anew."""
        envelope = caught.envelope
        try:
            ours = json.loads(self.write(call, envelope["task_id"], envelope["id"]))
        except Exception:  # Celery's own code could do it
            return False
        theirs = json.loads(_json(caught.message))
        return _comparable(ours) == _comparable(theirs)


def _is_kombu_json(serializer: str | None) -> bool:
    encoder = registry._encoders.get(serializer or "json")
    return encoder is not None and bool(encoder.encoder is kombu_json.dumps)


def _members(headers: Any) -> str:
    """A dict's members as they stand within another."""
    return _json(headers)[1:-1] + ", " if headers else ""


def _comparable(message: dict[str, Any]) -> str:
    """As text: the order counts."""
    headers = message["headers"]
    for part in (headers, headers[HEADER]):
        for name in _COUNTED:
            if part.get(name) is not None:
                part[name] = "counted"
    return json.dumps(message)


def kind_of(call: Call) -> Any:
    """What rows have in common that may share a template; None for a row that shares none.

    Equal values of different types count as different: 1 and True are not the same in a header.
    """
    if not call.options:
        return call.name, call.task
    parts: list[Any] = [call.name, call.task]
    for name, value in call.options.items():
        if name == "headers":
            if type(value) is not dict or not _FIXED.isdisjoint(value):
                return None
            parts.append(name if value else None)
        elif name == "expires":
            if value is not None and type(value) not in _EXPIRES:
                return None
            parts.append((name, value is None))
        else:
            parts.append((name, value, type(value)))
    kind = tuple(parts)
    try:
        hash(kind)
    except TypeError:  # a list or a dict somewhere: links, stamps
        return None
    return kind


_EXPIRES = (int, float, datetime)

#: Headers that Celery or the wheel writes.
_FIXED = frozenset(
    [
        "lang",
        "task",
        "id",
        "shadow",
        "eta",
        "expires",
        "group",
        "group_index",
        "retries",
        "timelimit",
        "root_id",
        "parent_id",
        "argsrepr",
        "kwargsrepr",
        "origin",
        "ignore_result",
        "replaced_task_nesting",
        "stamped_headers",
        "stamps",
        "compression",
    ]
) | {HEADER}
