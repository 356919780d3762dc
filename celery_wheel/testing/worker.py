"""A worker without a process, and the transport in memory that delivers messages to it, or to the wheel's engine.

Exchanges, bindings and routing keys are kombu's own virtual ones, so a message finds its queues as on Redis. A message
is delivered as soon as it is published, converted by JSON as on the way to a worker. One without an eta, or with a past
one, is ready, in the order of arrival; a future eta is held as in a worker (``wheel=False``). A task runs by Celery's
own request and tracer. The worker has no time limits, rate limits and priorities, and redelivers no rejected message.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery import signals, states
from celery.app import trace
from celery.app.task import Task
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker import state as worker_state
from celery.worker.control import Panel
from celery.worker.strategy import proto1_to_proto2
from kombu.connection import Connection
from kombu.serialization import prepare_accept_content
from kombu.transport import memory, virtual
from kombu.transport.virtual import Message
from kombu.utils import json

from celery_wheel.broker import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.testing.engine import SteppedEngine
from celery_wheel.values.instants import ceil_ms, utc
from celery_wheel.worker.batches import BatchCall

HOSTNAME = "wheel@testing"


@dataclass(frozen=True, order=True)
class QueuedTask:
    due_ms: int  #: 0: at once
    number: int
    queue: str = field(compare=False)
    message: Any = field(compare=False)
    task: str = field(compare=False)
    id: str = field(compare=False)

    @property
    def eta(self) -> datetime | None:
        return utc(self.due_ms) if self.due_ms else None

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return call_of(self.message.payload)


def call_of(payload: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in the body of a task, of either protocol."""
    args, kwargs = (payload["args"], payload["kwargs"]) if isinstance(payload, dict) else payload[:2]
    return tuple(args), dict(kwargs)


@dataclass(frozen=True)
class Trace:
    """The end of an execution; ``state`` is None for one that was not begun, with the ``reason``."""

    id: str
    state: str | None
    value: Any = None
    reason: str = ""
    retries: int = 0
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class VirtualTimeRequest:
    """Mixed into the request class of a task."""

    expires: Any
    _app: Any

    def maybe_expire(self) -> bool:
        """Return whether the task has expired; unlike Celery's method, record nothing for the whole process."""
        expires = self.expires
        if not expires:
            return False
        expires = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        self.expired = bool(self._app.now() > expires)
        return self.expired


class Worker:
    def __init__(self, app: Any, now: Callable[[], datetime]) -> None:
        self._app = app
        self._now = now
        self._count = 0
        self._imported = False
        self.ready: deque[QueuedTask] = deque()
        self.scheduled: list[QueuedTask] = []

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        message: Any = Message(raw, channel=channel)  # type: ignore[no-untyped-call]
        message.accept = prepare_accept_content(self._app.conf.accept_content)  # type: ignore[no-untyped-call]
        fields = message.headers if "task" in (message.headers or {}) else message.payload
        self._count += 1
        due_ms = self._due_ms(fields.get("eta"))
        delivery = QueuedTask(due_ms, self._count, queue, message, fields["task"], fields["id"])
        if due_ms:
            insort(self.scheduled, delivery)
        else:
            self.ready.append(delivery)

    def _due_ms(self, eta: Any) -> int:
        if not eta:
            return 0
        moment = maybe_make_aware(maybe_iso8601(eta), self._app.conf.timezone)
        return ceil_ms(moment) if moment > self._now() else 0

    def next_due(self) -> datetime | None:
        return self.scheduled[0].eta if self.scheduled else None

    def release(self) -> None:
        while self.scheduled and self.scheduled[0].due_ms <= ceil_ms(self._now()):
            self.ready.append(self.scheduled.pop(0))

    def take(self, task_id: str) -> QueuedTask | None:
        """Remove and return the ready delivery of a task id, out of turn."""
        found = next((delivery for delivery in self.ready if delivery.id == task_id), None)
        if found is not None:
            self.ready.remove(found)
        return found

    def command(self, raw: dict[str, Any], channel: Any) -> None:
        """Carry out a remote control command, if it revokes, by Celery's own code."""
        command = Message(raw, channel=channel).payload  # type: ignore[no-untyped-call]
        if command["method"] in ("revoke", "revoke_by_stamped_headers"):
            arguments = {**command["arguments"], "terminate": False}  # there is no process to terminate
            Panel.data[command["method"]](SimpleNamespace(app=self._app, consumer=None), **arguments)

    def run(self, delivery: QueuedTask) -> list[Trace]:
        """Execute a task; returns its end, or that of each call of a batch."""
        task = self._task(delivery.task)
        if task is None:
            return [Trace(delivery.id, None, reason="not a task of this app")]
        request = self._request(delivery, task)
        signals.task_received.send(sender=self, request=request)
        with _recorded_traces(self._app, task) as traced, _recorded_calls(delivery.id) as calls, _stack_protection():
            request.execute()
        if calls:
            return calls
        if not traced:
            return [Trace(delivery.id, None, reason="expired" if getattr(request, "expired", False) else "revoked")]
        value, info = traced[0][:2]
        state, value = (info.state, info.retval) if info else (states.SUCCESS, value)
        return [Trace(delivery.id, state, value, "", request._request_dict.get("retries") or 0, *delivery.call())]

    def _task(self, name: str) -> Any:
        if name not in self._app.tasks and not self._imported:
            self._imported = True
            self._app.loader.import_default_modules()  # as a worker does when it starts
        return self._app.tasks.get(name)

    def _request(self, delivery: QueuedTask, task: Any) -> Any:
        message, body, headers, decoded, utc = delivery.message, None, None, False, self._app.uses_utc_timezone()
        if "task" not in (message.headers or {}):
            body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
        return _request_class(symbol_by_name(task.Request))(
            message, app=self._app, task=task, hostname=HOSTNAME, body=body, headers=headers, decoded=decoded, utc=utc
        )


@cache
def _request_class(own: type) -> Any:
    return type("VirtualRequest", (VirtualTimeRequest, own), {})


@contextmanager
def _recorded_traces(app: Any, task: Any) -> Iterator[list[Any]]:
    """Trace executions of a task as in a worker, and record their ends."""
    traced: list[Any] = []
    tracer = trace.build_tracer(task.name, task, app=app, hostname=HOSTNAME)

    def record(*args: Any, **kwargs: Any) -> Any:
        traced.append(tracer(*args, **kwargs))
        return traced[-1]

    before, task.__trace__ = task.__trace__, record
    try:
        yield traced
    finally:
        task.__trace__ = before


@contextmanager
def _recorded_calls(message_id: str) -> Iterator[list[Trace]]:
    """Record the ends of the calls of a batch, each of which has its own signals within the run of their message."""
    calls: list[Trace] = []

    def ended(task_id: str, task: Any, args: Any, kwargs: Any, retval: Any, state: str, **_: Any) -> None:
        if task.request.get("wheel_outcome") is not None and task_id != message_id:
            calls.append(Trace(task_id, state, retval, "", task.request.retries, tuple(args), dict(kwargs)))

    def revoked(request: Any, **_: Any) -> None:
        if isinstance(request, BatchCall):
            calls.append(Trace(request.id, None, reason="expired"))

    signals.task_postrun.connect(ended, weak=False)
    signals.task_revoked.connect(revoked, weak=False)
    try:
        yield calls
    finally:
        signals.task_postrun.disconnect(ended)
        signals.task_revoked.disconnect(revoked)


@contextmanager
def _stack_protection() -> Iterator[None]:
    """Protect the request of a task class that overrides ``__call__``, as a worker does: Celery 5.4 needs it."""
    if getattr(Task, "_stackprotected", False):
        yield
        return
    trace._install_stack_protection()
    try:
        yield
    finally:
        del Task._stackprotected
        Task.__call__ = trace._patched.pop("BaseTask.__call__")


@contextmanager
def isolated_revocations() -> Iterator[None]:
    """Restore Celery's set of revoked tasks, which belongs to the whole process."""
    ids, before = worker_state.revoked, set(worker_state.revoked)
    with mock.patch.dict(worker_state.revoked_stamps):
        try:
            yield
        finally:
            for task_id in set(ids) - before:
                ids.discard(task_id)


_loads: Any = json.loads
_dumps: Any = json.dumps
_connection: Any = Connection
_state: Any = virtual.BrokerState


def connection_to(sink: MessageSink) -> Any:
    """Return a connection with exchanges, bindings and queues of its own: kombu's memory has one set for a process."""
    channel = type("Channel", (_Channel,), {"sink": sink, "queues": {}})
    transport = type("Transport", (_Transport,), {"Channel": channel, "global_state": _state()})
    return _connection("wheel.testing", transport=transport)


class _Transport(memory.Transport):
    def drain_events(self, connection: Any, timeout: Any = None, **kwargs: Any) -> None:
        """Raise TimeoutError at once, so that ``inspect`` does not wait for workers."""
        raise TimeoutError("no worker answers in a test with the fixture 'wheel'")


class _Channel(memory.Channel):
    sink: MessageSink

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.sink.deliver(self, queue, _loads(_dumps(message)))

    def _put_fanout(self, exchange: str, message: Any, routing_key: str | None = None, **options: Any) -> None:
        self.sink.broadcast(self, exchange, _loads(_dumps(message)))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return True


class MessageSink:
    """Receives published messages; ``raw`` is a message as a broker would store it."""

    def __init__(self, app: Any, engine: SteppedEngine, worker: Worker) -> None:
        self._app = app
        self._engine = engine
        self._worker = worker

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        if queue == wheel_queue_name(Conf(self._app).namespace, 0):
            self._engine.arrive(raw)
        else:
            self._worker.deliver(channel, queue, raw)

    def broadcast(self, channel: Any, exchange: str, raw: dict[str, Any]) -> None:
        if exchange == self._app.control.mailbox.exchange.name:
            self._worker.command(raw, channel)
        else:
            self._worker.deliver(channel, exchange, raw)  # this worker is one of the listeners
