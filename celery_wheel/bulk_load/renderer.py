"""The renderer, which makes the messages of calls: by the template of a kind once it is proven equal to Celery's code.

A kind is (task, key or none, options). Its first message is a sample, which becomes its template; its second one is
made both ways, and must be equal. Celery's own code, which is as slow as ``apply_async``, makes

    all messages   while a receiver of before_task_publish, after_task_publish or task_sent is connected, and where
                   the app is not plain: a router that is a function (it may read the arguments), a route by which
                   the eta changes (jitter, window, batch), ``task_send_sent_event``, ``task_protocol = 1``, a subclass
                   or an instrumentation
    a task's       if the task is not plain, or its second sample differs from the template's message
    a row's        if it has options that cannot be compared (links, stamps), headers that Celery itself writes, or
                   options of the wheel other than a key and a group

An app or a task is plain if a module of MODULES defines each method that makes messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from celery import signals
from celery.app.routes import MapRoute, Router
from kombu.exceptions import OperationalError

from celery_wheel.broker import shard_of
from celery_wheel.broker.envelope import GROUP, HEADER
from celery_wheel.bulk_load.message_template import MessageTemplate, Sampler
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.producer.groups import may_name_group, with_group
from celery_wheel.producer.options import PLAIN
from celery_wheel.store.message_pack import WHOLE, PackTemplate
from celery_wheel.values.ids import uuid7
from celery_wheel.values.text import text_rule

MODULES = frozenset(
    [
        *("celery.app.amqp", "celery.app.base", "celery.app.routes", "celery.app.task"),
        *("celery_wheel.app", "celery_wheel.producer.interception"),
    ]
)

_APP = ("send_task",)
_AMQP = ("as_task_v2", "create_task_message", "send_task_message", "_create_task_sender")
_ROUTER = ("route", "expand_destination", "lookup_route", "query_router")
_TASK = ("apply_async", "shadow_name", "_get_exec_options")


#: Cached kinds, of about 3 kB each; beyond this number the least recently used kind is dropped.
MAX_KINDS = 10_000

_EXPIRES = (int, float, datetime)

_before, _after, _sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent


def is_plain_app(app: Any) -> bool:
    """Whether messages of the app's tasks depend on their rows only as in Celery's protocol 2."""
    amqp, conf = app.amqp, app.conf
    router = amqp.router
    return (
        conf.task_protocol == 2
        and not conf.task_send_sent_event
        and amqp.create_task_message == amqp.as_task_v2
        and _is_celerys(app, _APP)
        and _is_celerys(amqp, _AMQP)
        and type(router) is Router
        and _is_celerys(router, _ROUTER)
        and all(type(routes) is MapRoute and _is_celerys(routes, ("__call__",)) for routes in router.routes)
        and not any(map(_changes_eta, router.routes))
    )


def is_plain_task(task: Any) -> bool:
    """Whether only Celery's own code makes the task's messages; None is a task of which only the name is known."""
    own = [getattr(task, name, None) for name in ("_dump_pydantic_arguments", "wheel_batch")]
    return task is None or (_is_celerys(task, _TASK) and own == [None, None])


def _is_celerys(thing: Any, names: tuple[str, ...]) -> bool:
    return all(_is_defined_by_celery(part) for name in names for part in _definitions(thing, name))


def _definitions(thing: Any, name: str) -> Iterator[Any]:
    """Generate an object's own attribute of that name, and those of its classes."""
    for owner in (vars(thing), *map(vars, type(thing).__mro__)):
        if name in owner:
            yield owner[name]


def _is_defined_by_celery(part: Any) -> bool:
    if isinstance(part, partial):  # ``divert_sender`` around the sender of an app that was used before
        return not part.keywords and all(_is_defined_by_celery(one) for one in (part.func, *part.args[-1:]))
    if isinstance(part, property):
        return _is_defined_by_celery(part.fget)
    if isinstance(part, cached_property):
        return _is_defined_by_celery(part.func)
    if isinstance(part, classmethod | staticmethod | MethodType):
        return _is_defined_by_celery(part.__func__)
    return type(part) is FunctionType and part.__globals__.get("__name__") in MODULES


def _changes_eta(routes: MapRoute) -> bool:
    for route in (*routes.map.values(), *routes.patterns.values()):
        with suppress(TypeError, ValueError):  # the name of a queue
            wheel = dict(route).get("wheel")
            if isinstance(wheel, Mapping) and any(map(wheel.get, ("jitter", "max_wait", "window", "batch"))):
                return True
    return False


class RenderedMessage(NamedTuple):
    """A message as its template and the values of its places."""

    shard: int
    template: PackTemplate
    values: tuple[str, ...]
    task_id: str
    size: int  #: bytes of the whole message
    queues: Sequence[Any]  #: see ``Sample``


class Renderer:
    """Renders the calls of one load in one process; use it in one thread, and close it.

    Args:
        takes_native: whether a task whose route has ``wheel=False`` is rendered as well.
    """

    def __init__(self, app: Any, shards: int, max_bytes: int, *, takes_native: bool = False) -> None:
        app.finalize()  # gives tasks their names
        self._app = app
        self._shards = shards
        self._max_bytes = max_bytes
        self.sampler = Sampler(app, takes_native=takes_native)
        #: In the order of their last use; None: all messages of the kind are samples.
        self._templates: dict[Any, MessageTemplate | None] = {}
        self._is_plain = is_plain_app(app)
        self._may_name_group = may_name_group(app)
        #: Headers that Celery, kombu or the wheel writes.
        self._fixed = (
            {*app.amqp.as_task_v2("id", "task").headers, "compression", GROUP, HEADER} if self._is_plain else set()
        )

    def render(self, call: TaskCall) -> RenderedMessage:
        """Return the message of a call. Raises Celery's errors, and ValueError for the wheel's rules."""
        template, kind = None, None
        if self._may_name_group and call.group is None:
            self._name_group(call)
        if self._is_plain and call.wheel is PLAIN and not (_before.receivers or _after.receivers or _sent.receivers):
            kind = kind_of(call, self._fixed)
            if kind in self._templates:
                template = self._templates[kind] = self._templates.pop(kind)  # now the last used
        if template is None or not template.proven or not _is_text(call.task_id) or not _is_text(call.key):
            return self._sampled(call, kind, template)
        new_id = call.envelope_id or uuid7()  # the message's id, and that of a task without one
        task_id = call.task_id or new_id
        values = template.values(call, task_id, new_id)
        return self._rendered(call.key or template.key, template, values, task_id, template.queues)

    def _name_group(self, call: TaskCall) -> None:
        options, own = replace(call.wheel, key=call.key), {"name": call.name, "args": call.args, "kwargs": call.kwargs}
        own |= {"task_id": call.task_id, "task_type": call.task}
        call.group = with_group(self._app, options, {**call.options, **own}).group
        call.key = call.group or call.key

    def _sampled(self, call: TaskCall, kind: Any, template: MessageTemplate | None) -> RenderedMessage:
        sample = self.sampler.send(call)
        if kind is not None and kind not in self._templates:
            if len(self._templates) >= MAX_KINDS:
                del self._templates[next(iter(self._templates))]
            self._templates[kind] = MessageTemplate(self._app, call, sample) if is_plain_task(call.task) else None
        elif template is not None and not template.proven:
            template.proven = template.agrees(call, sample)
            if not template.proven:
                self._templates[kind] = None
        envelope = sample.envelope
        return self._rendered(envelope.get("key"), WHOLE, (sample.raw.decode(),), envelope["task_id"], sample.queues)

    def _rendered(
        self, key: str | None, template: PackTemplate, values: tuple[str, ...], task_id: str, queues: Sequence[Any]
    ) -> RenderedMessage:
        size = template.size(values)
        if size > self._max_bytes:
            raise ValueError(
                f"message must be at most {self._max_bytes:,} bytes (wheel_max_message_bytes), got {size:,}"
            )
        return RenderedMessage(shard_of(key, task_id, self._shards), template, values, task_id, size, queues)

    def is_outage(self, error: Exception) -> bool:
        """Whether a row failed because the broker or the result backend did not answer.

        An OSError about a file is none: a router, a serializer or a task class of the project has raised it.
        """
        if isinstance(error, OSError) and error.filename is not None:
            return False
        return isinstance(error, (OSError, OperationalError, *getattr(self._app.backend, "connection_errors", ())))

    def close(self) -> None:
        self.sampler.close()


def _is_text(text: str | None) -> bool:
    """Whether the store can hold a task id or a key; Celery's own code raises the error for others."""
    return text is None or text_rule(text) is None


def kind_of(call: TaskCall, fixed: Set[str]) -> Any:
    """Return the key of the rows that share a template; None for a row that shares none.

    ``fixed`` are names that a row's own headers must not have. Equal values of different types count as different: 1
    and True are different in a header.
    """
    parts: list[Any] = [call.name, call.task, call.key is None, call.group and True]
    for name, value in call.options.items():
        if name == "headers":
            if type(value) is not dict or not fixed.isdisjoint(value):
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
