"""Pending tasks in the form in which a worker shows its own.

::

    scheduled     {"eta": ISO 8601, "priority": 6, "request": {…}}
    query_task    {task id: ["scheduled", {…}]}
    {…}           id, name, args, kwargs, type, hostname, time_start, acknowledged, delivery_info, worker_pid

Two fields differ from a worker's: ``args`` and ``kwargs`` are the texts that the producer put into the headers, since
no body is opened; ``acknowledged`` is true, since the store has the message and no longer the broker.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from celery_wheel.store.ports.pages import MessageHead, Task

#: The priority of a task with an eta in a worker's timer.
ETA_PRIORITY = 6


def scheduled(task: Task, head: MessageHead, node: str) -> dict[str, Any]:
    return {"eta": eta_of(task), "priority": ETA_PRIORITY, "request": request(task, head, node)}


def more(last: Task, count: int, node: str) -> dict[str, Any]:
    """Return the last item of a shortened list; it has the form of the others, so that callers can print it."""
    text = f"and about {count:,} more, due later: app.wheel.pending() has them all"
    nowhere = {"exchange": "", "routing_key": "", "priority": None, "redelivered": False}
    request = _request("more", text, "", "", text, node, nowhere)
    return {"eta": eta_of(last), "priority": ETA_PRIORITY, "request": request}


def eta_of(task: Task) -> str:
    return datetime.fromtimestamp(task.due_ms / 1_000, UTC).isoformat()


def request(task: Task, head: MessageHead, node: str) -> dict[str, Any]:
    headers = json.loads(head.headers or b"{}")
    place = {
        "exchange": head.exchange,
        "routing_key": head.routing_key,
        "priority": task.priority,
        "redelivered": False,
    }
    args, kwargs = headers.get("argsrepr") or "", headers.get("kwargsrepr") or ""
    return _request(task.task_id, headers.get("shadow") or task.task, args, kwargs, task.task, node, place)


def _request(
    task_id: str, name: str, args: str, kwargs: str, type_: str, node: str, place: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": task_id,
        "name": name,
        "args": args,
        "kwargs": kwargs,
        "type": type_,
        "hostname": node,
        "time_start": None,
        "acknowledged": True,
        "delivery_info": place,
        "worker_pid": None,
    }
