"""The event, result and signal with which a worker records a revoked task, for tasks that were cancelled while pending.

The request comes from the headers, and from a body of JSON, msgpack or YAML. A pickle is never opened here, and may say
that the task belongs to a chord: if it has a group, the message is sent to its queue with an ``expires`` long ago, and
the worker refuses it as expired and records the rest.

1. Each task is recorded at least once (see ``engine.announce``), so a receiver of the signal may be called twice.
2. While the backend is away, a call tries AWAY_AFTER tasks, and memory holds SUSPECTS of them at most.
3. A task that alone cannot be recorded is given up after TRIES failures. A failure counts where the error is the task's
   (it cannot be serialised), or where the backend has recorded another task since the last failure.
4. The log has the kind of an error, and the task's id and name. The text of an error may quote arguments.
"""

from __future__ import annotations

import bz2
import json
import logging
import lzma
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import celery
import zstandard
from celery import signals
from celery.app.task import Context
from kombu import compression as compressions
from kombu import serialization
from kombu.entity import Exchange
from kombu.exceptions import SerializationError

from celery_wheel.store.model import Row
from celery_wheel.timing import RetryLog
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.log import get_logger

# kombu carries no types.
_encoder: Any = compressions.get_encoder
_decompress_whole: Any = compressions.decompress
_loads: Any = serialization.loads

#: Content type of a compression → a decompressor with a bound: bytes may become a thousand times as many.
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lzma.LZMADecompressor,
}

#: The most bytes of a body that is decompressed here. The state of a task with a larger one has no arguments.
MAX_OPENED = 32 * 2**20

#: Content types that no decoder runs code for.
SAFE = frozenset(("application/json", "application/x-msgpack", "application/x-yaml"))


@dataclass(frozen=True, slots=True)
class PendingRequest:
    context: Context
    headers: dict[str, Any]
    properties: dict[str, Any]
    opened: bool  #: False where the body is of a content type that is never opened here
    broken: str = ""  #: the kind of the error with which the body was decoded


def read_request(row: Row, node: str) -> PendingRequest:
    """Return the request of a cancelled task; ``node`` is its hostname."""
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
        "id": row.task_id,
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


def _decompress(body: bytes, compression: str) -> bytes:
    """Return a body. Raises Malformed above MAX_OPENED, and the library's errors.

    A compression that the project has registered, or installed (brotli), has no bound here.
    """
    kind = _encoder(compression)[1]
    if kind == "application/zstd":
        opened = zstandard.ZstdDecompressor().stream_reader(body).read(MAX_OPENED + 1)
        is_whole = len(opened) <= MAX_OPENED
    elif make := _DECOMPRESSORS.get(kind):
        decompressor = make()
        opened, is_whole = decompressor.decompress(body, MAX_OPENED), decompressor.eof
    else:
        opened, is_whole = _decompress_whole(body, compression), True
    if not is_whole:
        raise Malformed(f"a body must be whole, and have at most {MAX_OPENED:,} bytes")
    return bytes(opened)


logger = get_logger(__name__)


#: After so many failures in a row a call ends: each may take a minute.
AWAY_AFTER = 3

TRIES = 5
SUSPECTS = 1_000


class RevokedState:
    """Called by the engines' announcing jobs with rows; returns the ids of the rows that need no further try."""

    def __init__(self, app: Any, node: str, events_on: Callable[[], bool]) -> None:
        self._app = app
        self._node = node
        self._events_on = events_on
        self._log = RetryLog(logger, time.monotonic)
        self._lock = threading.Lock()  # for the two below: the jobs of several shards record at the same time
        self._recorded = 0  #: tasks that the backend has recorded
        self._suspects: dict[int, tuple[int, int]] = {}  #: by row id: failures that count, ``_recorded`` at the last

    def __call__(self, rows: Sequence[Row]) -> set[int]:
        self._app.set_current()  # of this thread: Celery before 5.6 restores the group of a chord by it
        ended, failures = set[int](), 0
        with ExitStack() as stack:
            send = self._sender(stack)
            for one in rows:
                if self._ends(one, send):
                    ended.add(one.id)
                    failures = 0
                    continue
                failures += 1
                if failures == AWAY_AFTER:
                    break
        return ended

    def _ends(self, one: Row, send: Callable[..., None]) -> bool:
        """Record a task; returns whether it is recorded, or given up."""
        try:
            self._record(one, send)
        except Exception as error:  # of a backend or the broker
            return self._is_given_up(one, error)
        with self._lock:
            self._recorded += 1
            self._suspects.pop(one.id, None)
        return True

    def _is_given_up(self, one: Row, error: Exception) -> bool:
        with self._lock:
            tries, recorded = self._suspects.pop(one.id, (0, self._recorded))
            of_the_task = isinstance(error, SerializationError | TypeError | ValueError | LookupError)
            tries += of_the_task or recorded < self._recorded
            if tries < TRIES:
                if len(self._suspects) >= SUSPECTS:
                    self._suspects.pop(next(iter(self._suspects)))
                self._suspects[one.id] = tries, self._recorded
        level, cause, then = logging.WARNING, "tried_again", "it is tried again"
        if tries >= TRIES:
            level, cause, then = logging.ERROR, "given_up", "it is not tried again: its AsyncResult stays PENDING"
        what = "was cancelled, and the result backend could not record that"
        self._say(level, cause, one, what, type(error).__name__, then)
        return tries >= TRIES

    def _say(self, level: int, cause: str, one: Row, what: str, kind: str, then: str) -> None:
        self._log.write(
            level,
            cause,
            "task %s (%s) %s (%s); %s",
            one.task_id,
            one.route.task,
            what,
            kind,
            then,
            extra={"action": "revoked_state_failed", "task_id": one.task_id},
        )

    def _record(self, one: Row, send: Callable[..., None]) -> None:
        pending = read_request(one, self._node)
        if pending.broken:
            what, then = "was cancelled, and its body cannot be decoded", "its state is recorded without its arguments"
            self._say(logging.WARNING, "broken", one, what, pending.broken, then)
        context = pending.context
        task = self._app.tasks.get(one.route.task)
        backend = self._app.backend if task is None else task.backend
        left_to_worker = not pending.opened and bool(context.group)
        if not left_to_worker and (task is None or task.send_events):
            send(one.task_id)
        store = _stores(self._app, task, pending)
        backend.mark_as_revoked(one.task_id, "revoked", request=context, store_result=store)
        if left_to_worker:
            self._leave_to_worker(one, pending)
        else:
            sender = one.route.task if task is None else task
            signals.task_revoked.send(sender=sender, request=context, terminated=False, signum=None, expired=False)

    def _sender(self, stack: ExitStack) -> Callable[..., None]:
        """Return a function that sends task-revoked, where events are on and the broker answers."""
        if not self._events_on():
            return lambda task_id: None
        try:
            dispatcher = stack.enter_context(self._app.events.default_dispatcher(hostname=self._node))
        except Exception as error:  # of the broker; the result matters more
            self._lost(error)
            return lambda task_id: None

        def send(task_id: str) -> None:
            try:
                dispatcher.send("task-revoked", uuid=task_id, terminated=False, signum=None, expired=False)
            except Exception as error:  # as above
                self._lost(error)

        return send

    def _lost(self, error: Exception) -> None:
        self._log.write(logging.WARNING, "event_lost", "task-revoked is not sent: %r", error)

    def _leave_to_worker(self, row: Row, pending: PendingRequest) -> None:
        properties = dict(pending.properties)
        exchange: Any = Exchange(row.route.exchange, row.route.exchange_type) if row.route.exchange else ""  # type: ignore[no-untyped-call]
        kind, encoding = properties.pop("content_type"), properties.pop("content_encoding", None)
        with self._app.producer_or_acquire() as producer:
            producer.publish(
                row.parts().body,
                exchange=exchange,
                routing_key=row.route.routing_key,
                headers=pending.headers | {"expires": "1970-01-01T00:00:00+00:00"},
                content_type=kind,
                content_encoding=encoding,
                priority=row.route.priority,
                **properties,
            )


def _stores(app: Any, task: Any, pending: PendingRequest) -> bool:
    """Return whether a worker would store the revoked state."""
    ignored = pending.headers.get("ignore_result")
    if ignored is None or (not ignored and celery.VERSION < (5, 7)):  # where a call that does not say it sends False
        ignored = app.conf.task_ignore_result if task is None else task.ignore_result
    even_if = app.conf.task_store_errors_even_if_ignored if task is None else task.store_errors_even_if_ignored
    return not ignored or bool(even_if)
