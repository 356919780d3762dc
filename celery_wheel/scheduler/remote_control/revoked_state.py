"""The state that a worker records of a revoked task, recorded for tasks that were cancelled while pending.

::

    event      task-revoked            where task events are on; a lost event is lost, as in Celery
    backend    REVOKED, with the request: a chord of which the task was a member ends as well
    signal     task_revoked            in the scheduler process

``celery.worker.request.Request`` records the same when it refuses a task: terminated False, signum None, expired
False; an ignored result is not stored.

A body that is not opened here (pickle) may say that the task belongs to a chord. Its result is stored all the same; and
if it has a group, the message is sent to its queue with an ``expires`` long ago: the worker, which may open it, refuses
it as expired and records the rest.

Promises: each task at least once (see ``engine.announce``), so a receiver of the signal may be called twice; an error
of one task delays that task alone; it is tried again, with a back-off of up to a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import celery
from celery import signals
from kombu.entity import Exchange

from celery_wheel.scheduler.remote_control.pending_request import PendingRequest, read
from celery_wheel.store.model import TaskRow
from celery_wheel.timing import Backoff

logger = logging.getLogger(__name__)

REASON = "revoked"

LONG_AGO = "1970-01-01T00:00:00+00:00"

RETRY_FIRST_S, RETRY_MOST_S = 2.0, 60.0


class RevokedState:
    """Called by the engines' announcing threads with rows; returns the ids of the rows that are recorded."""

    def __init__(self, app: Any, node: str, events_on: Callable[[], bool]) -> None:
        self._app = app
        self._node = node
        self._events_on = events_on
        self._failed: dict[int, tuple[Backoff, float]] = {}  #: by row id: its waits, and the instant of the next try

    def __call__(self, rows: Sequence[TaskRow]) -> set[int]:
        self._app.set_current()  # of this thread: Celery before 5.6 restores the group of a chord by it
        recorded = set[int]()
        with ExitStack() as stack:
            send = self._sender(stack)
            for one in rows:
                if one.row.id in self._failed and self._failed[one.row.id][1] > time.monotonic():
                    continue
                try:
                    self._record(one, send)
                except Exception as error:  # of a backend, or of a broken message: the others go on
                    self._note_failure(one, error)
                else:
                    recorded.add(one.row.id)
                    self._failed.pop(one.row.id, None)
        return recorded

    def _note_failure(self, one: TaskRow, error: Exception) -> None:
        backoff, _ = self._failed.get(one.row.id) or (Backoff(RETRY_FIRST_S, RETRY_MOST_S), 0.0)
        self._failed[one.row.id] = backoff, time.monotonic() + backoff.failed()
        logger.warning(
            "task %s was cancelled, and the result backend could not record that (%r); it is tried again",
            one.task_id,
            error,
            extra={"action": "revoked_state_failed", "task_id": one.task_id},
        )

    def _record(self, one: TaskRow, send: Callable[..., None]) -> None:
        pending = read(one, self._node)
        context = pending.context
        task = self._app.tasks.get(one.row.route.task)
        backend = self._app.backend if task is None else task.backend
        left_to_worker = not pending.opened and bool(context.group)
        if not left_to_worker and (task is None or task.send_events):
            send(one.task_id)
        store = _stores(self._app, task, pending)
        backend.mark_as_revoked(one.task_id, REASON, request=context, store_result=store)
        if left_to_worker:
            self._leave_to_worker(one, pending)
        else:
            sender = one.row.route.task if task is None else task
            signals.task_revoked.send(sender=sender, request=context, terminated=False, signum=None, expired=False)

    def _sender(self, stack: ExitStack) -> Callable[..., None]:
        """Return a function that sends task-revoked, where events are on and the broker answers."""
        if not self._events_on():
            return lambda task_id: None
        try:
            dispatcher = stack.enter_context(self._app.events.default_dispatcher(hostname=self._node))
        except Exception as error:  # of the broker; the result matters more
            logger.warning("task-revoked is not sent: %r", error, extra={"action": "event_lost"})
            return lambda task_id: None

        def send(task_id: str) -> None:
            try:
                dispatcher.send("task-revoked", uuid=task_id, terminated=False, signum=None, expired=False)
            except Exception as error:  # as above
                logger.warning("task-revoked is not sent: %r", error, extra={"action": "event_lost"})

        return send

    def _leave_to_worker(self, one: TaskRow, pending: PendingRequest) -> None:
        row, properties = one.row, dict(pending.properties)
        exchange: Any = Exchange(row.route.exchange, row.route.exchange_type) if row.route.exchange else ""  # type: ignore[no-untyped-call]
        kind, encoding = properties.pop("content_type"), properties.pop("content_encoding", None)
        with self._app.producer_or_acquire() as producer:
            producer.publish(
                row.parts().body,
                exchange=exchange,
                routing_key=row.route.routing_key,
                headers=pending.headers | {"expires": LONG_AGO},
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
