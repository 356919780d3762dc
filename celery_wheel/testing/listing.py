"""The list of pending tasks for a test: those in queues, in the worker and in the wheel, in the order of execution."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_wheel.store.ports.pages import Detail
from celery_wheel.testing.clock import at
from celery_wheel.testing.engine import SteppedEngine
from celery_wheel.testing.records import Execution, PendingTask, SkippedMessage
from celery_wheel.testing.worker import QueuedTask, Worker

#: Number of tasks in a summary.
SUMMARY_LENGTH = 5

_unpack: Any = decompress
_loads: Any = loads
_accepted: Any = prepare_accept_content


def pending(app: Any, worker: Worker, engine: SteppedEngine) -> list[PendingTask]:
    """Return pending tasks: first those without a delay, then by due time."""
    delayed = [_of_worker(delivery, "worker") for delivery in worker.scheduled]
    delayed += [_of_wheel(app, detail) for detail in engine.pending()]
    delayed.sort(key=lambda found: found[0])
    return [task for _, task in [*(_of_worker(delivery, "queue") for delivery in worker.ready), *delayed]]


def _of_worker(delivery: QueuedTask, where: str) -> tuple[int, PendingTask]:
    args, kwargs = delivery.call()
    retries = int((delivery.message.headers or {}).get("retries") or 0)
    found = PendingTask(
        delivery.task, args, kwargs, delivery.id, delivery.queue, delivery.eta, retries=retries, where=where
    )
    return delivery.due_ms, found


def _of_wheel(app: Any, detail: Detail) -> tuple[int, PendingTask]:
    task, headers = detail.task, headers_of(detail.headers)
    args, kwargs = _call(app, detail, headers.get("compression"))
    found = PendingTask(
        task.task,
        args,
        kwargs,
        task.task_id,
        task.target,
        at(task.eta_ms),
        task.key,
        int(headers.get("retries") or 0),
    )
    return task.due_ms, found


def headers_of(raw: bytes) -> dict[str, Any]:
    headers: dict[str, Any] = json.loads(raw)
    return headers


def _call(app: Any, detail: Detail, compression: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    body = _unpack(detail.body, compression) if compression else detail.body
    properties = json.loads(detail.properties)
    accept = _accepted(app.conf.accept_content)
    payload = _loads(body, properties["content_type"], properties["content_encoding"], accept=accept)
    args, kwargs = (payload["args"], payload["kwargs"]) if isinstance(payload, dict) else payload[:2]
    return tuple(args), dict(kwargs)


def summary(
    now: datetime, waiting: Sequence[PendingTask], ran: Sequence[Execution], skipped: Sequence[SkippedMessage]
) -> str:
    """Return the wheel's state in a line: the pending tasks, the next first."""
    lost = f", {len(skipped)} skipped" if skipped else ""
    head = f"<wheel at {now.isoformat(' ', 'milliseconds')}: {len(waiting)} pending, {len(ran)} ran{lost}"
    tasks = "; ".join(f"{task.task} {task.id} {_delay(now, task)}" for task in waiting[:SUMMARY_LENGTH])
    more = f"; and {len(waiting) - SUMMARY_LENGTH} more" if len(waiting) > SUMMARY_LENGTH else ""
    return f"{head}: {tasks}{more}>" if tasks else f"{head}>"


def _delay(now: datetime, task: PendingTask) -> str:
    if task.eta is None or task.eta <= now:
        return "now"
    seconds = (task.eta - now).total_seconds()
    return f"in {seconds:,.3f} s" if seconds < 60 else f"in {str(task.eta - now).split('.')[0]}"
