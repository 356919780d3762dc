"""The books that a worker keeps of revoked tasks, kept for those that were cancelled while they waited.

::

    event      task-revoked            where task events are on; one that is lost is lost, as in Celery
    backend    REVOKED, with the request: a chord of which it was a member comes to its end, too
    signal     task_revoked            in the scheduler process

Exactly what ``celery.worker.request.Request`` does when it refuses a task: terminated False, signum None, expired
False; an ignored result is not stored.

A body that is not opened here (pickle) may say that the task belongs to a chord. Its result is stored all the same; and
if it has a group, the message is sent to its queue with an ``expires`` long ago: the worker, which may open it, refuses
it as expired and keeps the rest of the books.

Promises: each task at least once (see ``engine.announce``), so a receiver of the signal may be called twice; an error
of one task keeps back that task alone, and it is tried again, at first at once and then once a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from celery import signals
from kombu.entity import Exchange

from celery_wheel.node.message import Waiting, read
from celery_wheel.store.model import Cancelled

logger = logging.getLogger(__name__)

REASON = "revoked"

LONG_AGO = "1970-01-01T00:00:00+00:00"

RETRY_MAX_S = 60.0


class Books:
    """Is called by the engines' announcing threads, with rows; answers with the ids of those that are in the books."""

    def __init__(self, app: Any, node: str, events_on: Callable[[], bool]) -> None:
        self._app = app
        self._node = node
        self._events_on = events_on
        self._failed: dict[int, tuple[int, float]] = {}  #: row id → how often, and not before when

    def __call__(self, rows: Sequence[Cancelled]) -> set[int]:
        told = set[int]()
        with ExitStack() as stack:
            send = self._sender(stack)
            for one in rows:
                if self._failed.get(one.row.id, (0, 0.0))[1] > time.monotonic():
                    continue
                try:
                    self._enter(one, send)
                except Exception as error:  # of a backend, or of whatever there is in the message: the others go on
                    self._note_failure(one, error)
                else:
                    told.add(one.row.id)
                    self._failed.pop(one.row.id, None)
        return told

    def _note_failure(self, one: Cancelled, error: Exception) -> None:
        times = self._failed.get(one.row.id, (0, 0.0))[0] + 1
        self._failed[one.row.id] = times, time.monotonic() + min(RETRY_MAX_S, 2.0**times)
        logger.warning(
            "task %s was cancelled, and that could not be written to the result backend (%r); tried again",
            one.task_id,
            error,
            extra={"action": "books_failed", "task_id": one.task_id, "times": times},
        )

    def _enter(self, one: Cancelled, send: Callable[..., None]) -> None:
        waiting = read(one, self._node)
        context = waiting.context
        task = self._app.tasks.get(one.row.task)
        backend = self._app.backend if task is None else task.backend
        left_to_worker = not waiting.opened and bool(context.group)
        if not left_to_worker and (task is None or task.send_events):
            send(one.task_id)
        store = _stores(self._app, task, waiting)
        backend.mark_as_revoked(one.task_id, REASON, request=context, store_result=store)
        if left_to_worker:
            self._leave_to_worker(one, waiting)
        else:
            said = {"request": context, "terminated": False, "signum": None, "expired": False}
            signals.task_revoked.send(sender=one.row.task if task is None else task, **said)

    def _sender(self, stack: ExitStack) -> Callable[..., None]:
        """Sends task-revoked of an id, if anybody wants it and the broker takes it."""
        if not self._events_on():
            return lambda task_id: None
        try:
            dispatcher = stack.enter_context(self._app.events.default_dispatcher(hostname=self._node))
        except Exception as error:  # the broker is away; the result matters more
            logger.warning("task-revoked is not sent: %r", error, extra={"action": "event_lost"})
            return lambda task_id: None

        def send(task_id: str) -> None:
            try:
                dispatcher.send("task-revoked", uuid=task_id, terminated=False, signum=None, expired=False)
            except Exception as error:  # as above
                logger.warning("task-revoked is not sent: %r", error, extra={"action": "event_lost"})

        return send

    def _leave_to_worker(self, one: Cancelled, waiting: Waiting) -> None:
        row, properties = one.row, dict(waiting.properties)
        exchange: Any = Exchange(row.exchange, row.exchange_type) if row.exchange else ""  # type: ignore[no-untyped-call]
        kind, encoding = properties.pop("content_type"), properties.pop("content_encoding", None)
        with self._app.producer_or_acquire() as producer:
            producer.publish(
                row.body,
                exchange=exchange,
                routing_key=row.routing_key,
                headers=waiting.headers | {"expires": LONG_AGO},
                content_type=kind,
                content_encoding=encoding,
                priority=row.priority,
                **properties,
            )


def _stores(app: Any, task: Any, waiting: Waiting) -> bool:
    """Whether a worker would store that it was revoked."""
    ignored = waiting.headers.get("ignore_result")
    if ignored is None:
        ignored = app.conf.task_ignore_result if task is None else task.ignore_result
    even_if = app.conf.task_store_errors_even_if_ignored if task is None else task.store_errors_even_if_ignored
    return not ignored or bool(even_if)
