"""The template of a kind of messages: a sample that Celery's own code made, with places for the values of a row.

::

    values of a row       args and kwargs, their reprs, id, eta, expires, own headers, key (also the group), envelope
    parts of the kind     all others: destination, serializer, compression, priority, limits, origin, parents …

The call's eta is a ``WheelEta``, so that a task with a past eta passes through the wheel as well. With the JSON
serializer and no compression the body is text in the message, which takes few bytes in a pack.
"""

from __future__ import annotations

import json.encoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii as quoted
from operator import itemgetter
from typing import Any

from celery.utils.saferepr import saferepr
from kombu.serialization import registry
from kombu.utils import json as kombu_json

from celery_wheel.broker.envelope import GROUP, HEADER
from celery_wheel.broker.queues import DEFAULT_EXCHANGE, build_message, encode_body, encode_message, preparer
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.producer.eta import expiry_ms
from celery_wheel.producer.interception import WheelEta
from celery_wheel.producer.options import with_batch
from celery_wheel.store import message_pack
from celery_wheel.store.message_pack import PackTemplate
from celery_wheel.store.model import Message
from celery_wheel.values.ids import uuid7
from celery_wheel.values.instants import now_ms

_NUMBERS = frozenset((int, float, bool))


#: The encoder that ``kombu.utils.json.dumps`` makes anew for each call.
_encoder = kombu_json.JSONEncoder()
_json = _encoder.encode
#: The C encoder that ``encode`` makes anew for each call; without the check for cycles, which raise RecursionError.
_make: Any = getattr(json.encoder, "c_make_encoder", None)  # None in a Python without C
_chunks = _make and _make(None, _encoder.default, quoted, None, ": ", ", ", False, False, True)


def argsrepr(value: Any, max_length: int, max_levels: int) -> str:
    """Return the text of a call's args or kwargs for the header ``argsrepr`` or ``kwargsrepr``."""
    text: str | None = None
    if max_levels > 0:
        if type(value) is tuple or type(value) is list:
            text = _sequence(value)
        elif type(value) is dict:
            text = _mapping(value)
    if text is None or len(text) >= max_length:
        text = saferepr(value, max_length, maxlevels=max_levels)
    return text


# Loops: for the short arguments of most calls they take half the time of ``map``.
def _sequence(value: Any) -> str | None:
    parts = []
    for item in value:
        part = _plain(item)
        if part is None:
            return None
        parts.append(part)
    inside = ", ".join(parts)
    if type(value) is list:
        return f"[{inside}]"
    return f"({inside},)" if len(parts) == 1 else f"({inside})"


def _mapping(value: dict[Any, Any]) -> str | None:
    parts = []
    for name, item in value.items():
        key, part = _plain(name), _plain(item)
        if key is None or part is None:
            return None
        parts.append(f"{key}: {part}")
    return "{" + ", ".join(parts) + "}"


def _plain(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return None if "'" in value else f"'{value}'"
    if kind in _NUMBERS or value is None:
        return str(value)
    return None


@dataclass(slots=True)
class Sample:
    """A message of the wheel queue, in the form of kombu's virtual transports."""

    message: dict[str, Any]  #: its body is the base64 text
    embed: Any  #: the third part of a body of protocol 2, after args and kwargs; None for protocol 1
    serializer: str | None
    compression: str | None
    queues: Sequence[Any]  #: those that Celery's own producer would declare, besides the wheel queue

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["headers"][HEADER]
        return found

    @property
    def raw(self) -> bytes:
        return encode_message(self.message)


class Sampler:
    """Replaces the producer of a call."""

    exchange = DEFAULT_EXCHANGE
    routing_key = ""

    def __init__(self, app: Any, *, takes_native: bool = False) -> None:
        self._app = app
        #: Read by the interception: a message is for the wheel even if its route has ``wheel=False``.
        self.takes_native = takes_native
        self._real: Any = None
        self._found: Sample | None = None

    def send(self, call: TaskCall) -> Sample:
        """Return the message of a call. Raises Celery's errors, and ValueError for a message not for the wheel."""
        self._found = None
        task_id = call.task_id or call.envelope_id or uuid7()
        wheel = with_batch(call.task, call.wheel)
        wheel = replace(
            wheel, key=call.key, group=call.group, transactional=False
        ).checked()  # a load commits by itself
        eta = WheelEta(call.due, now_ms(), wheel)
        options = {**call.options, "eta": eta, "task_id": task_id, "producer": self, "add_to_parent": False}
        if call.task is None:
            self._app.send_task(call.name, call.args, call.kwargs, **options)
        else:
            call.task.apply_async(call.args, call.kwargs, **options)
        found = self.take()
        if call.envelope_id is not None:
            found.envelope["id"] = call.envelope_id
        self._forget_result(task_id)
        return found

    def take(self) -> Sample:
        """Return the message that was published last. Raises ValueError where none was."""
        found, self._found = self._found, None
        if found is None:
            raise ValueError("apply_async did not publish it")
        return found

    def _forget_result(self, task_id: str) -> None:
        """Unsubscribe Redis's result backend, which subscribes at the call, from one of perhaps a million results."""
        consumer: Any = getattr(self._app.backend, "result_consumer", None)
        if type(consumer).__module__ == "celery.backends.redis":
            consumer.cancel_for(task_id)

    @property
    def connection(self) -> Any:
        """The app's own connection, unconnected, which names the broker."""
        return self._app.amqp.producer_pool.connections.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer(), name)

    def _producer(self) -> Any:
        if self._real is None:
            self._real = self._app.amqp.producer_pool.acquire(block=True)
        return self._real

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        headers = publish.get("headers") or {}
        if isinstance(headers.get(HEADER), dict) and "eta_ms" in headers[HEADER]:
            self._found = self.capture(body, publish)
        elif "task" in headers or (isinstance(body, dict) and "task" in body):
            raise ValueError(
                "the message is not for the wheel: its route has wheel=False, or a receiver of before_task_publish "
                "removed its eta"
            )
        else:
            return self._producer().publish(body, *args, **publish)

    def capture(self, body: Any, publish: dict[str, Any]) -> Sample:
        """Return a message as its sample."""
        queues = [one for one in publish.get("declare") or () if one.name != publish["routing_key"]]
        embed = body[2] if isinstance(body, tuple) else None
        coding = publish.get("serializer"), publish.get("compression")
        return Sample(build_message(body, publish), embed, *coding, queues)

    def close(self) -> None:
        if self._real is not None:
            self._real.release()
            self._real = None


class MessageTemplate(PackTemplate):
    """Made of a call and its sample. ``proven`` is set once the template gives a second sample exactly."""

    def __init__(self, app: Any, call: TaskCall, sample: Sample) -> None:
        self.proven = False
        self.key: str | None = sample.envelope.get("key") if call.key is None else None  #: the route's
        self._app = app
        self.queues = sample.queues
        self._embed, self._serializer, self._compression = sample.embed, sample.serializer, sample.compression
        self._is_json = not sample.compression and _is_kombu_json(sample.serializer)
        self._max_args, self._max_kwargs = app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize
        self._max_levels = app.conf.get("task_repr_maxlevels", 3)  # Celery has the setting since 5.7
        self._expires = call.options["expires"] if "expires" in call.options else getattr(call.task, "expires", None)
        self._check_arguments = getattr(call.task, "__header__", None) if getattr(call.task, "typing", False) else None
        self._behind = f", {_json(sample.embed)}]"  #: the arguments, in a JSON body
        text, names = _with_places(call, sample, is_text=self._is_json)
        own = [name for name in message_pack.PLACES if name in names]
        super().__init__(text, [own.index(name) for name in names], own)
        self._own = itemgetter(*map(message_pack.PLACES.index, own))
        self._can_expire = message_pack.EXPIRES in own

    def values(self, call: TaskCall, task_id: str, envelope_id: str) -> tuple[str, ...]:
        """Return the values of a call of this kind. Raises the errors of ``apply_async`` for its arguments."""
        args, kwargs = call.args or (), call.kwargs or {}
        if type(args) is not tuple and not isinstance(args, list | tuple):
            raise TypeError("task args must be a list or tuple")
        if type(kwargs) is not dict and not isinstance(kwargs, Mapping):
            raise TypeError("task keyword arguments must be a mapping")
        if self._check_arguments is not None:
            self._check_arguments(*args, **kwargs)
        expires, expires_ms = self._expiry(call) if self._can_expire else ("null", "null")
        key, own = call.key or self.key, call.options.get("headers")
        found: tuple[str, ...] = self._own(
            (  # in the order of PLACES
                self._body(args, kwargs),
                quoted(task_id),
                quoted(argsrepr(args, self._max_args, self._max_levels)),
                quoted(argsrepr(kwargs, self._max_kwargs, self._max_levels)),
                quoted(call.due.text),
                expires,
                _json(own)[1:-1] + ", " if own else "",
                f'"{envelope_id}"',
                str(call.due.eta_ms),
                str(now_ms()),
                expires_ms,
                "null" if key is None else quoted(key),
            )
        )
        return found

    def _body(self, args: Any, kwargs: Any) -> str:
        if self._is_json:
            try:
                text = "".join(_chunks((args, kwargs), 0))
            except Exception:
                text = _json((args, kwargs))  # its error names the fault
            return quoted(text[:-1] + self._behind)
        body, _, _ = preparer._prepare(
            (args, kwargs, self._embed), self._serializer, compression=self._compression, headers={}
        )
        return f'"{encode_body(body)}"'

    def _expiry(self, call: TaskCall) -> tuple[str, str]:
        """Return header and instant, as ``as_task_v2`` and the interception make them."""
        expires: Any = call.options.get("expires", self._expires)
        if not isinstance(expires, datetime):
            now = self._app.now()  # seconds are elapsed ones, also where the clocks change
            expires = (now.astimezone(UTC) + timedelta(seconds=expires)).astimezone(now.tzinfo)
        text = expires.isoformat()
        at_ms = expiry_ms(self._app, text)
        return quoted(text), "null" if at_ms is None else str(at_ms)

    def agrees(self, call: TaskCall, sample: Sample) -> bool:
        """Whether the scheduler reads the same message from this template as from the sample, except relative times."""
        envelope = sample.envelope
        try:
            ours = self.fill(self.values(call, envelope["task_id"], envelope["id"]))
        except Exception:  # Celery's own code raised nothing
            return False
        return bool(_comparable(ours) == _comparable(sample.raw))


def _is_kombu_json(serializer: str | None) -> bool:
    encoder = registry._encoders.get(serializer or "json")
    return encoder is not None and bool(encoder.encoder is kombu_json.dumps)


def _comparable(raw: bytes) -> Any:
    found = QueuedMessageReader().decode(raw)
    if not isinstance(found, Message):
        return raw
    headers = json.loads(found.headers)
    headers["expires"] = headers.get("expires") is not None
    fields = {name: getattr(found, name) for name in Message.__slots__ if name not in ("created_ms", "expires_ms")}
    return {**fields, "headers": json.dumps(headers)}  # as text: the order counts


def _with_places(call: TaskCall, sample: Sample, *, is_text: bool) -> tuple[str, list[str]]:
    """Return the message with %s for each place, and the places in order; a place may occur twice.

    ``is_text``: the body is text; otherwise it is in base64.
    """
    message = sample.message
    headers, properties, envelope = dict(message["headers"]), dict(message["properties"]), dict(sample.envelope)
    task_id = envelope["task_id"]
    mark = uuid7()  # occurs nowhere else
    at = {name: f"{mark} {name}" for name in message_pack.PLACES}
    for name in call.options.get("headers") or ():
        headers.pop(name)
    headers.update(id=at[message_pack.ID], eta=at[message_pack.ETA])
    for name in (message_pack.ARGSREPR, message_pack.KWARGSREPR):
        if name not in call.options:
            headers[name] = at[name]
    if headers["root_id"] == task_id:
        headers["root_id"] = at[message_pack.ID]
    if headers["expires"] is not None:
        headers["expires"] = at[message_pack.EXPIRES]
        envelope["expires_ms"] = at[message_pack.EXPIRES_MS]
    envelope |= {name: at[name] for name in (message_pack.ETA_MS, message_pack.CREATED_MS, message_pack.KEY)}
    envelope |= {"id": at[message_pack.ENVELOPE], "task_id": at[message_pack.ID]}
    group: dict[str, Any] = {}
    if headers.pop(GROUP, None) is not None:  # it is the key
        group[GROUP] = envelope["group"] = at[message_pack.KEY]
    del headers[HEADER]  # the compression follows it
    behind = {name: headers.pop(name) for name in ("compression",) if name in headers}
    own: dict[str, Any] = {at[message_pack.OWN_HEADERS]: None} if call.options.get("headers") else {}
    headers |= {**own, **group, HEADER: envelope, **behind}
    if properties.get("correlation_id") == task_id:
        properties["correlation_id"] = at[message_pack.ID]
    if is_text:
        properties["body_encoding"] = "utf-8"
    text = _json({**message, "body": at[message_pack.BODY], "headers": headers, "properties": properties})
    text = text.replace(f'"{at[message_pack.OWN_HEADERS]}": null, ', f'"{at[message_pack.OWN_HEADERS]}"')
    return _split(text.replace("%", "%%"), mark)


def _split(text: str, mark: str) -> tuple[str, list[str]]:
    first, *rest = text.split(f'"{mark} ')
    parts = [part.partition('"') for part in rest]
    return "%s".join([first, *(piece for _, _, piece in parts)]), [name for name, _, _ in parts]
