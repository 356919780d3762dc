"""Rows as what goes into the inbox, each by the fast way where that is known to give the same.

By Celery's own code, row by row, go

    all rows     while a receiver of before_task_publish, after_task_publish or task_sent is connected, with
                 ``task_send_sent_event`` (what is sent for each message is sent for each), with ``task_protocol = 1``,
                 with a router that is a function (it may look at the arguments), and where ``send_task`` or the
                 making of messages is not Celery's own (a subclass of the app's, an instrumentation)
    a task's     whose ``apply_async`` or ``shadow_name`` is not Celery's own, that dumps pydantic models, or whose kind
                 of row did not come out the same both ways
    a row        with options that cannot be compared (links, stamps), with headers that Celery itself writes, and the
                 first two of a kind
"""

from __future__ import annotations

from typing import Any

import celery
from celery import signals
from celery.app import amqp as celery_amqp
from celery.app import routes
from celery.app import task as celery_task
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from celery_wheel.app import WheelApp
from celery_wheel.broker.envelope import MAX_TEXT
from celery_wheel.broker.names import shard_of
from celery_wheel.broker.raw import written
from celery_wheel.bulk.catching import Catcher
from celery_wheel.bulk.row import Call, Reader
from celery_wheel.bulk.template import Template, kind_of
from celery_wheel.ids import uuid7

#: Kinds that are known at a time; a load of more has some option that is another in every row.
MAX_KINDS = 1_000

_before, _after, _sent = signals.before_task_publish, signals.after_task_publish, signals.task_sent


class Writing:
    """Makes (shard, message) and the task id of each row. Use it in one thread."""

    def __init__(self, app: Any, shards: int, max_bytes: int) -> None:
        app.finalize()  # tasks have their names then
        self._app = app
        self._shards = shards
        self._max_bytes = max_bytes
        self._read = Reader(app).read
        self._catcher = Catcher(app)
        #: By kind; None for a kind that stays slow.
        self._templates: dict[Any, Template | None] = {}
        self._may_be_fast = is_plain_celery(app)

    def write(self, row: Any) -> tuple[int, bytes, str]:
        """(shard, message, task id). Raises whatever is wrong with the row."""
        call = self._read(row)
        template, kind = None, None
        if (
            self._may_be_fast
            and not call.asks_for_more
            and not (_before.receivers or _after.receivers or _sent.receivers)
        ):
            kind = kind_of(call)
            template = self._templates.get(kind) if kind is not None else None
        if template is None or not template.proven or not is_plain(call.task_id) or not is_plain(call.key):
            return self._slowly(call, kind, template)
        new_id = uuid7()  # of the message, and of the task where it has none
        task_id = call.task_id or new_id
        return self._placed(call.key or template.key, task_id, template.write(call, task_id, new_id).encode())

    def _slowly(self, call: Call, kind: Any, template: Template | None) -> tuple[int, bytes, str]:
        caught = self._catcher.send(call)
        envelope, message = caught.envelope, written(caught.message)
        if kind is not None and kind not in self._templates:
            if len(self._templates) >= MAX_KINDS:
                self._templates.clear()
            usable = caught.embed is not None and is_plain_task(call.task)
            self._templates[kind] = Template(self._app, call, caught) if usable else None
        elif template is not None and not template.proven:
            template.proven = template.agrees(call, caught)
            if not template.proven:
                self._templates[kind] = None
        return self._placed(envelope["key"], envelope["task_id"], message)

    def _placed(self, key: str | None, task_id: str, message: bytes) -> tuple[int, bytes, str]:
        if len(message) > self._max_bytes:
            raise ValueError(
                f"message must be at most {self._max_bytes:,} bytes (wheel_max_message_bytes), got {len(message):,}"
            )
        return shard_of(key, task_id, self._shards), message, task_id

    def is_outage(self, error: Exception) -> bool:
        """Whether a row failed because the broker or the result backend, asked on the slow way, did not answer."""
        return isinstance(error, (OSError, OperationalError, *getattr(self._app.backend, "connection_errors", ())))

    def close(self) -> None:
        self._catcher.close()


def is_plain(text: str | None) -> bool:
    """What every store takes; anything else is for the envelope to judge."""
    return text is None or (text.isascii() and 0 < len(text) <= MAX_TEXT and "\0" not in text)


def is_plain_celery(app: Any) -> bool:
    amqp, conf = app.amqp, app.conf
    senders = [one.__dict__["send_task"] for one in type(app).__mro__ if "send_task" in one.__dict__]
    return (
        conf.task_protocol == 2
        and not conf.task_send_sent_event
        and senders == [WheelApp.send_task, celery.Celery.send_task]
        and "send_task" not in vars(app)
        and _is_of(celery.Celery.send_task, celery.app.base)
        and _is_of(amqp.create_task_message, celery_amqp)
        and _is_of(vars(amqp).get("send_task_message", celery_amqp.AMQP._create_task_sender), celery_amqp)
        and _is_of(type(amqp)._create_task_sender, celery_amqp)
        and type(amqp.router) is routes.Router
        and all(isinstance(router, routes.MapRoute) for router in amqp.router.routes)
        and _is_of(Signature.apply_async, celery.canvas)
    )


def is_plain_task(task: Any) -> bool:
    if task is None:
        return True
    return (
        _is_of(type(task).apply_async, celery_task)
        and _is_of(type(task).shadow_name, celery_task)
        and not {"apply_async", "shadow_name"} & vars(task).keys()
        and getattr(task, "_dump_pydantic_arguments", None) is None
    )


def _is_of(function: Any, module: Any) -> bool:
    """Whether the function is written in that module, and not wrapped around one that is."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_filename == module.__file__
