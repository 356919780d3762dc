"""``celery_wheel.Batches``: the base of a task that runs for many calls at once, collected by the scheduler.

::

    @app.task(base=Batches, flush_every=100, flush_interval=10)      size and wait of a call that names no batch itself
    def insert(calls):
        return [row.id for row in bulk_insert(call.args for call in calls)]

    call ──delay──► wheel: a pending task like any other ──size or wait──► one message with the closed calls ──► worker
    worker          opens each call ─► runs the task once, with the calls ─► ends each call as a task of its own

    the task returns        each call
    a list                  has the result at its place; an exception there is its failure, ``call.retry()`` its retry
    None                    has the result None, unless the task has stored one by ``backend.mark_as_done``
    raises                  has failed with that exception; but Retry, Ignore and Reject are about the whole message

Each call ends by Celery's own tracer: its result, its links, chain and chord, its signals. It has its own serializer,
compression and ``expires``; a call that cannot be read fails alone. A message of a single call (without the wheel, by
``apply()``, by ``task_always_eager``, or of a batch of one) runs as a batch of one.

Promises: no call of a message is left without an end, whatever another call does, also where the process is lost or
killed by the time limit (``celery_wheel.worker.batch_request``). Non-promises: time limits,
acknowledgement and events are those of the message; a revoke finds a call only before it is dispatched.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import celery
from celery import signals, states
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_task_logger
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import compression, serialization

from celery_wheel.broker.envelope import BATCH, REDELIVERED
from celery_wheel.values.error_text import Malformed, error_text
from celery_wheel.values.log import make_visible

logger = get_task_logger(__name__)
logger.addFilter(make_visible)

# Without types in kombu.
_decompress: Any = compression.decompress
_loads: Any = serialization.loads
_prepare_accept_content: Any = serialization.prepare_accept_content


class RetryCall:
    """The outcome of a call that is to be retried; ``call.retry`` makes it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


class BatchCall(Context):  # type: ignore[misc]  # celery carries no types
    """A call of a batch: Celery's request, with ``id``, ``args``, ``kwargs``, ``retries``, ``headers`` and others."""

    unreadable: Exception | None = None  #: why its arguments cannot be read

    @property
    def name(self) -> str:
        return str(self.task)

    def retry(self, **options: Any) -> RetryCall:
        """Return the outcome by which the call is retried, with the options of ``Task.retry``: countdown, exc, …"""
        return RetryCall(options)


class Batches(celery.Task):  # type: ignore[misc]
    """See the module. ``flush_every`` calls are a full batch, which waits ``flush_interval`` seconds at most."""

    abstract = True
    Request = "celery_wheel.worker.batch_request:BatchRequest"
    typing = False  # the task is called with other arguments than its function has
    flush_every: int = 10
    flush_interval: float = 30

    @property
    def wheel_batch(self) -> dict[str, Any]:
        """The wheel's options of a call that names no batch."""
        return {"batch": self.name, "size": self.flush_every, "wait": self.flush_interval}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        if isinstance(outcome := vars(request).get("wheel_outcome"), _CallEnd):
            return outcome.give(self)
        if is_message(request):
            self._run_message(request, *args)
            raise Ignore  # each call has ended by itself: the message has no result
        outcomes = self._outcomes([BatchCall(vars(request), args=tuple(args), kwargs=kwargs)])
        return None if outcomes is None else _CallEnd(outcomes[0]).give(self)

    def _run_message(self, request: Context, members: Sequence[Any]) -> None:
        every = [open_call(self, request, *member) for member in members]
        calls = [call for call in every if call.unreadable is None and not self._is_expired(call)]
        outcomes: Sequence[Any] | None = ()
        if calls:
            try:
                outcomes = self._outcomes(calls)
            except (Retry, Ignore, Reject):
                raise
            except Exception as error:
                outcomes = [error] * len(calls)
        if outcomes is None:
            calls = [call for call in calls if not self._has_result(call)]
            outcomes = [None] * len(calls)
        trace = build_tracer(self.name, self, app=self.app, hostname=request.hostname)
        unreadable = [(call, call.unreadable) for call in every if call.unreadable is not None]
        for call, value in [*zip(calls, outcomes, strict=True), *unreadable]:
            trace(call.id, call.args, call.kwargs, {**vars(call), "wheel_outcome": _CallEnd(value)})

    def _outcomes(self, calls: list[BatchCall]) -> Sequence[Any] | None:
        """Run the task; returns an outcome for each call, or None as the task does."""
        found: Any = self.run(calls)
        if found is not None and not (isinstance(found, list | tuple) and len(found) == len(calls)):
            what = f"a list of {len(found)}" if isinstance(found, list | tuple) else repr(found)[:60]
            raise TypeError(
                f"task {self.name} must return None, or a list with a result for each of its {len(calls)} calls, got "
                f"{what}; a call's exception, or call.retry(), may be in the list"
            )
        outcomes: Sequence[Any] | None = found
        return outcomes

    def _has_result(self, call: BatchCall) -> bool:
        """Whether the task has stored the call's result itself."""
        if not stores_result(self, call):
            return False
        try:
            return self.backend.get_state(call.id) in states.READY_STATES
        except NotImplementedError:  # no result backend
            return False

    def _is_expired(self, call: BatchCall) -> bool:
        """Whether the call has expired; it is then revoked, as by a worker that receives it."""
        try:
            at = call.expires and maybe_make_aware(maybe_iso8601(call.expires), self.app.timezone)
        except (TypeError, ValueError):  # Celery's worker runs it, too
            return False
        if not at or at > self.app.now():
            return False
        logger.info("Discarding expired call: %s[%s]", self.name, call.id)
        self.backend.mark_as_revoked(call.id, "expired", request=call, store_result=stores_result(self, call))
        signals.task_revoked.send(sender=self, request=call, terminated=False, signum=None, expired=True)
        return True


def is_message(request: Context) -> bool:
    """Whether a request is of a message with several calls; a call alone has the name of its batch in that header."""
    return isinstance(getattr(request, BATCH, None), int)


def stores_result(task: Any, call: Context) -> bool:
    ignored = vars(call).get("ignore_result")
    return not (task.ignore_result if ignored is None else ignored)


class _CallEnd:
    """In the request of a call that ends: Celery's tracer calls the task, which gives this."""

    def __init__(self, value: Any) -> None:
        self._value = value
        # One exception may be raised for each call of a batch, and would get longer with each.
        self._traceback = value.__traceback__ if isinstance(value, BaseException) else None

    def give(self, task: Any) -> Any:
        """Return the value, or raise it; a retry is one of the call whose request is the task's."""
        if isinstance(self._value, RetryCall):
            raise task.retry(**self._value.options)
        if isinstance(self._value, BaseException):
            raise self._value.with_traceback(self._traceback)
        return self._value


def open_call(task: Any, request: Context, headers: Any, properties: Any, body: Any) -> BatchCall:
    """Return the call of a closed message; one that cannot be read has ``unreadable``, and no arguments."""
    values = {
        **headers,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "delivery_info": request.delivery_info,
        "hostname": request.hostname,
        "args": (),
        "kwargs": {},
        "called_directly": False,
        "is_eager": False,
    }
    if marked := vars(request).get(REDELIVERED):
        values[REDELIVERED] = marked
    call = BatchCall(values)
    try:
        args, kwargs, embedded = _read(task, headers, properties, body)
        call.update({"args": tuple(args), "kwargs": dict(kwargs)}, **(embedded or {}))
    except Exception as error:  # each serializer has its own classes
        # Celery logs and stores an error by its repr, which may have the whole body.
        call.unreadable = Malformed(f"the call's arguments cannot be read: {error_text(error)}")
    return call


def _read(task: Any, headers: Mapping[str, Any], properties: Mapping[str, Any], body: str) -> Iterator[Any]:
    data = b64decode(body)
    if method := headers.get("compression"):
        data = _decompress(data, method)
    accept = _prepare_accept_content(task.app.conf.accept_content)
    found: Any = _loads(data, properties.get("content_type"), properties.get("content_encoding"), accept=accept)
    return iter(found)
