"""Answers about the pending tasks of the shards that this scheduler holds, in the form in which a worker shows its own.

Two fields differ from a worker's: ``args`` and ``kwargs`` are the texts that the producer put into the headers, since
no body is opened; ``acknowledged`` is true, since the store has the message and no longer the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from celery_wheel.scheduler.remote_control import SchedulerView
from celery_wheel.store.ports.pages import Criteria, MessageHead, Task
from celery_wheel.values.instants import utc
from celery_wheel.values.log import get_logger

#: The priority of a task with an eta in a worker's timer.
ETA_PRIORITY = 6


def scheduled_item(task: Task, head: MessageHead, node: str) -> dict[str, Any]:
    return {"eta": utc(task.due_ms).isoformat(), "priority": ETA_PRIORITY, "request": request_item(task, head, node)}


def more_item(last: Task, count: int, node: str) -> dict[str, Any]:
    """Return the last item of a shortened list; it has the form of the others, so that callers can print it."""
    text = f"and about {count:,} more, due later: app.wheel.pending() has them all"
    nowhere = {"exchange": "", "routing_key": "", "priority": None, "redelivered": False}
    request = _request("more", text, "", "", text, node, nowhere)
    return {"eta": utc(last.due_ms).isoformat(), "priority": ETA_PRIORITY, "request": request}


def request_item(task: Task, head: MessageHead, node: str) -> dict[str, Any]:
    headers = json.loads(head.headers or b"{}")
    address = {"exchange": head.exchange, "routing_key": head.routing_key}
    place = {**address, "priority": task.priority, "redelivered": False}
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


logger = get_logger(__name__)

#: Tasks in one answer: about 500 bytes each, and the caller waits for a second.
MAX_TASKS = 1_000

#: Ids in one question.
MAX_IDS = 1_000


def scheduled(view: SchedulerView) -> list[dict[str, Any]]:
    found: list[Task] = []
    cut = False
    for shard in view.held():
        page = view.store.browse.pending(Criteria(shard=shard), limit=MAX_TASKS)
        found += page.items
        cut |= page.next is not None
    found.sort(key=lambda task: task.position)
    cut |= len(found) > MAX_TASKS
    del found[MAX_TASKS:]
    heads = _heads(view, found)
    shown = [scheduled_item(task, heads[task.id], view.name) for task in found if task.id in heads]
    if cut and found:
        left = max(1, sum(map(view.store.browse.count_pending, view.held())) - len(found))
        logger.info(
            "inspect scheduled shows %d tasks of %d", MAX_TASKS, MAX_TASKS + left, extra={"action": "scheduled_cut"}
        )
        shown.append(more_item(found[-1], left, view.name))
    return shown


def _heads(view: SchedulerView, tasks: Iterable[Task]) -> dict[int, MessageHead]:
    """Return the heads of tasks, with the mask: Celery's headers have the arguments as texts."""
    heads = view.store.browse.heads([task.id for task in tasks])
    return {id_: replace(head, headers=view.mask.part(head.headers)) for id_, head in heads.items()}


def query(view: SchedulerView, task_ids: Sequence[str]) -> dict[str, list[Any]]:
    """Return the pending ones of these tasks; of several tries of a task the next due."""
    if len(task_ids) > MAX_IDS:
        logger.warning("query_task answers for %d of %d ids", MAX_IDS, len(task_ids), extra={"action": "query_cut"})
    ids = [one for one in task_ids[:MAX_IDS] if isinstance(one, str)]
    rows = [task for shard in view.held() for task in view.store.browse.find_pending(shard, ids)]
    found = {task.task_id: task for task in sorted(rows, key=lambda task: task.position, reverse=True)}
    heads = _heads(view, found.values())
    there = {task_id: task for task_id, task in found.items() if task.id in heads}
    return {task_id: ["scheduled", request_item(task, heads[task.id], view.name)] for task_id, task in there.items()}


def cancelled(view: SchedulerView) -> list[str]:
    """Return ids of cancelled tasks that the store still knows, the latest first."""
    found = [
        one
        for shard in view.held()
        for one in view.store.browse.outcomes(["cancelled"], Criteria(shard=shard), limit=MAX_TASKS).items
    ]
    found.sort(key=lambda one: one.position, reverse=True)
    return list(dict.fromkeys(one.task_id for one in found))[:MAX_TASKS]


def wheel(view: SchedulerView) -> dict[str, Any]:
    """Return the part of ``stats`` that no worker has."""
    shards = {str(shard): _shard(view, shard) for shard in view.held()}
    return {
        "pending": sum(one["pending"] for one in shards.values()),
        "late_ms_max": max((one["late_ms_max"] for one in shards.values()), default=0),
        "shards": shards,
    }


def _shard(view: SchedulerView, shard: int) -> dict[str, Any]:
    state = view.store.state(shard)
    snapshot = state.snapshot or {}
    names = ("late_ms_max", "accepted", "dispatched", "cancelled", "rejected")
    # The snapshot has only the next due of the window, and most pending tasks are due later.
    _, due_ms = view.store.browse.lanes(shard)
    return {
        "pending": view.store.browse.count_pending(shard),
        "epoch": state.epoch,
        "next_due_ms": min(due_ms.values(), default=None),
        **{name: snapshot.get(name, 0) for name in names},
    }
