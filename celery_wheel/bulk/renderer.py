"""Calls as messages, each by the form of its kind where that is known to give what Celery's own code would.

::

    kind = (task, key or none, options)      1st row   a sample, which becomes the kind's form
                                             2nd row   a sample, and by the form: they must be equal
                                             others    by the form

Celery's own code, which is as slow as ``apply_async``, makes

    all messages   while a receiver of before_task_publish, after_task_publish or task_sent is connected, and where
                   the app is not plain (``overrides``): a router that is a function, ``task_send_sent_event``,
                   ``task_protocol = 1``, a subclass or an instrumentation that has a part in a message
    a task's       that is not plain, or whose second sample was not what the form gives
    a row's        with options that cannot be compared (links, stamps), with headers that Celery itself writes, with
                   options of the wheel other than a key
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime
from typing import Any, NamedTuple

from celery import signals
from kombu.exceptions import OperationalError

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.names import shard_of
from celery_wheel.bulk.form import Form
from celery_wheel.bulk.overrides import is_plain_app, is_plain_task
from celery_wheel.bulk.row import Call
from celery_wheel.bulk.sample import Sampler
from celery_wheel.ids import uuid7
from celery_wheel.options import PLAIN
from celery_wheel.store.packed import WHOLE
from celery_wheel.store.packed import Form as PackedForm
from celery_wheel.store.text import text_rule

#: Kinds that are known at a time, of about 3 kB each; of more, the one that was used last the longest ago is forgotten.
MAX_KINDS = 10_000

_EXPIRES = (int, float, datetime)

_before, _after, _sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent


class Line(NamedTuple):
    """A message as its form and the values of its places."""

    shard: int
    form: PackedForm
    values: tuple[str, ...]
    task_id: str


class Renderer:
    """For one load of one process; use it in one thread, and close it."""

    def __init__(self, app: Any, shards: int, max_bytes: int) -> None:
        app.finalize()  # tasks have their names then
        self._app = app
        self._shards = shards
        self._max_bytes = max_bytes
        self._sampler = Sampler(app)
        self._forms: dict[Any, Form | None] = {}  #: in the order of their last use; None: sampled, all of them
        self._is_plain = is_plain_app(app)
        #: Headers that Celery, kombu or the wheel writes.
        self._fixed = {*app.amqp.as_task_v2("id", "task").headers, "compression", HEADER} if self._is_plain else set()

    def render(self, call: Call) -> Line:
        """Raises whatever is wrong with the row."""
        form, kind = None, None
        if self._is_plain and call.asked is PLAIN and not (_before.receivers or _after.receivers or _sent.receivers):
            kind = kind_of(call, self._fixed)
            if kind in self._forms:
                form = self._forms[kind] = self._forms.pop(kind)  # the last one used now
        if form is None or not form.proven or not _is_text(call.task_id) or not _is_text(call.key):
            return self._sampled(call, kind, form)
        new_id = call.envelope_id or uuid7()  # of the message, and of the task where it has none
        task_id = call.task_id or new_id
        return self._line(call.key or form.key, form, form.values(call, task_id, new_id), task_id)

    def _sampled(self, call: Call, kind: Any, form: Form | None) -> Line:
        sample = self._sampler.send(call)
        if kind is not None and kind not in self._forms:
            if len(self._forms) >= MAX_KINDS:
                del self._forms[next(iter(self._forms))]
            self._forms[kind] = Form(self._app, call, sample) if is_plain_task(call.task) else None
        elif form is not None and not form.proven:
            form.proven = form.agrees(call, sample)
            if not form.proven:
                self._forms[kind] = None
        envelope = sample.envelope
        return self._line(envelope["key"], WHOLE, (sample.raw.decode(),), envelope["task_id"])

    def _line(self, key: str | None, form: PackedForm, values: tuple[str, ...], task_id: str) -> Line:
        size = form.size(values)
        if size > self._max_bytes:
            raise ValueError(
                f"message must be at most {self._max_bytes:,} bytes (wheel_max_message_bytes), got {size:,}"
            )
        return Line(shard_of(key, task_id, self._shards), form, values, task_id)

    def is_outage(self, error: Exception) -> bool:
        """Whether a row failed because the broker or the result backend, asked for a sample, did not answer."""
        return isinstance(error, (OSError, OperationalError, *getattr(self._app.backend, "connection_errors", ())))

    def close(self) -> None:
        self._sampler.close()


def _is_text(text: str | None) -> bool:
    """Whether a task id or a key is fit for the store; of any other, Celery's own code says what is wrong."""
    return text is None or text_rule(text) is None


def kind_of(call: Call, fixed: Set[str]) -> Any:
    """What rows have in common that may share a form; None for a row that shares none. ``fixed``: no header of a row's.

    Equal values of different types count as different: 1 and True are not the same in a header.
    """
    parts: list[Any] = [call.name, call.task, call.key is None]
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
