"""What waits, as a test reads it: the queues, what a worker holds, and the wheel, in the order in which they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_wheel.store.ports.pages import Detail
from celery_wheel.testing.clock import at
from celery_wheel.testing.inbound import Inbound
from celery_wheel.testing.seen import Pending, Ran, Skipped
from celery_wheel.testing.worker import Delivery, Worker

#: Tasks that a summary names.
SHOWN = 5

_unpack: Any = decompress
_loads: Any = loads
_accepted: Any = prepare_accept_content


def pending(app: Any, worker: Worker, inbound: Inbound) -> list[Pending]:
    """First what is to run at once, then by due time."""
    held = [_of_worker(one, "worker") for one in worker.held]
    waiting = [_of_wheel(app, one) for one in inbound.waiting()]
    in_order = sorted(held + waiting, key=lambda one: one[0])
    return [one for _, one in [*(_of_worker(one, "queue") for one in worker.ready), *in_order]]


def _of_worker(delivery: Delivery, where: str) -> tuple[int, Pending]:
    args, kwargs = delivery.call()
    retries = int((delivery.message.headers or {}).get("retries") or 0)
    found = Pending(
        delivery.task, args, kwargs, delivery.id, delivery.queue, delivery.eta, retries=retries, where=where
    )
    return delivery.due_ms, found


def _of_wheel(app: Any, detail: Detail) -> tuple[int, Pending]:
    task, headers = detail.task, headers_of(detail.headers)
    args, kwargs = _call(app, detail, headers.get("compression"))
    found = Pending(
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


def summary(now: datetime, waiting: Sequence[Pending], ran: Sequence[Ran], skipped: Sequence[Skipped]) -> str:
    """The wheel in a line: what waits, the next first."""
    lost = f", {len(skipped)} skipped" if skipped else ""
    head = f"<wheel at {now.isoformat(' ', 'milliseconds')}: {len(waiting)} waiting, {len(ran)} ran{lost}"
    shown = "; ".join(f"{one.task} {one.id} {_in(now, one)}" for one in waiting[:SHOWN])
    more = f"; and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    return f"{head}: {shown}{more}>" if shown else f"{head}>"


def _in(now: datetime, one: Pending) -> str:
    if one.eta is None or one.eta <= now:
        return "now"
    seconds = (one.eta - now).total_seconds()
    return f"in {seconds:,.3f} s" if seconds < 60 else f"in {str(one.eta - now).split('.')[0]}"
